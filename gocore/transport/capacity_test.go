package transport

import (
	"math"
	"testing"
	"time"
)

// link plays a link for a capacity: demand in bytes per second arrives before it, and a token bucket lets bytes pass.
type link struct {
	capacity
	now            time.Duration
	passed         float64
	queued, tokens float64
	bucket         float64
}

// play lets time pass.
func (l *link) play(d time.Duration, demand, rate float64) {
	for end := l.now + d; l.now < end; {
		const step = time.Millisecond
		l.now += step
		l.queued += demand * step.Seconds()
		l.tokens = min(l.tokens+rate*step.Seconds(), max(l.bucket, rate*step.Seconds()))
		n := min(l.queued, l.tokens)
		l.queued, l.tokens, l.passed = l.queued-n, l.tokens-n, l.passed+n
		l.queued = min(l.queued, rate*0.01) // a window of 10 ms
		l.observe(l.now, sight{passed: uint64(l.passed), wait: time.Duration(l.queued / rate * float64(time.Second))})
	}
}

func (l *link) want(t *testing.T, what string, known, tolerance float64) {
	t.Helper()
	if math.Abs(l.known-known) > tolerance*known {
		t.Errorf("%s: %.3g B/s are known, want %.3g", what, l.known, known)
	}
}

const bucket128K = 128 << 10

func TestCapacityIsWhatPassesAQueue(t *testing.T) {
	for _, rate := range []float64{3e6, 12.5e6, 25e6, 125e6, 1.25e9} {
		l := &link{bucket: bucket128K}
		l.play(2*time.Second, 0.9*rate, rate)
		l.want(t, "without a queue", 0, 0)
		l.play(4*time.Second, 2*rate, rate)
		l.want(t, "with a queue", rate, 0.03)
		l.play(4*time.Second, 0.3*rate, rate)
		l.want(t, "later, with little to send", rate, 0.03)
	}
}

// Iterations of half a second: a burst, a pause.
func TestCapacityOfBursts(t *testing.T) {
	l := &link{bucket: bucket128K}
	for range 8 {
		l.play(300*time.Millisecond, 100e6, 25e6)
		l.play(200*time.Millisecond, 0, 25e6)
	}
	l.want(t, "in bursts", 25e6, 0.03)
}

// What passes is all that can be seen: packets wait at the end of a burst, and nothing is heard until the next one.
func TestCapacityLeavesOutPauses(t *testing.T) {
	for _, rate := range []float64{125e3, 1.25e6, 25e6} {
		l := &link{bucket: bucket128K}
		for range 40 {
			for l.queued = 4 * float64(capacityBytes); l.queued > 0; {
				n := min(l.queued, 16<<10)
				l.queued -= n
				l.passed += n
				l.now += time.Duration(n / rate * float64(time.Second))
				l.observe(l.now, sight{passed: uint64(l.passed), wait: time.Millisecond})
			}
			l.now += 700 * time.Millisecond
		}
		l.want(t, "with pauses", rate, 0.03)
	}
}

func TestCapacityFollowsAFall(t *testing.T) {
	l := &link{bucket: bucket128K}
	l.play(time.Second, 200e6, 125e6)
	l.play(time.Second, 200e6, 30e6)
	l.want(t, "after a fall", 30e6, 0.03)
}

// A link that has become faster carries more than before: what was known of it is no longer.
func TestCapacityIsForgottenAfterARise(t *testing.T) {
	l := &link{bucket: bucket128K}
	l.play(2*time.Second, 200e6, 30e6)
	l.play(500*time.Millisecond, 33e6, 125e6)
	l.want(t, "no more is sent", 30e6, 0.03)
	l.play(250*time.Millisecond, 60e6, 125e6)
	l.want(t, "for a moment twice as much is sent", 30e6, 0.03)
	l.play(250*time.Millisecond, 60e6, 125e6)
	l.want(t, "twice as much is sent", 0, 0)
	if c := l.carried(); c < 55e6 || c > 65e6 {
		t.Errorf("it has carried %.3g B/s", c)
	}
}

// Measurements that differ, as where the processor is the limit, teach nothing. Most of those that are wrong are too low.
func TestCapacityNeedsAgreement(t *testing.T) {
	for _, tc := range []struct {
		name  string
		rates []float64
		want  float64
	}{
		{"two", []float64{100, 100}, 0},
		{"three", []float64{100, 99, 98}, 99},
		{"three that differ", []float64{100, 99, 94}, 0},
		{"by turns", []float64{100, 93, 86, 100, 93, 86}, 0},
		{"a burst first", []float64{150, 100, 99, 101}, 100},
		{"two groups of equal size: the higher one", []float64{80, 100, 81, 99, 82, 101}, 100},
		{"two groups: the larger one", []float64{100, 120, 121, 119, 99, 101, 100}, 100},
		{"wrong ones later", []float64{100, 99, 101, 70, 90, 60}, 100},
		{"many wrong ones later", []float64{100, 100, 100, 70, 90, 60, 50, 40, 30, 20}, 100},
		{"a fall", []float64{100, 100, 100, 100, 100, 100, 100, 100, 50, 51, 49}, 50},
		{"a small fall", []float64{100, 100, 100, 100, 90, 90, 90}, 100},
		{"it lasts", []float64{100, 100, 100, 100, 90, 90, 90, 90, 90}, 90},
	} {
		c := &capacity{}
		for _, rate := range tc.rates {
			c.measured(rate, capacityTime)
		}
		if math.Abs(c.known-tc.want) > 0.5 {
			t.Errorf("%s: %v, expected %v", tc.name, c.known, tc.want)
		}
	}
}

// A link carries what it has carried lately, unless it is known to have become slower, or what came was read late.
func TestCapacityIsNoLessThanWhatWasCarried(t *testing.T) {
	for _, tc := range []struct {
		late                  bool
		known, measured, want float64
	}{{false, 0, 70e6, 0}, {false, 0, 93e6, 93e6}, {false, 100e6, 70e6, 70e6}, {true, 0, 70e6, 70e6}} {
		l := &link{capacity: capacity{known: tc.known, late: tc.late}}
		l.play(time.Second, 95e6, 100e6)
		for range fewest {
			l.measured(tc.measured, capacityTime)
		}
		l.want(t, "95 MB/s were carried", tc.want, 1e-9)
	}
}

// What a sender allows itself is not what its link carries.
func TestCapacityIsNotWhatTheSenderAllowsItself(t *testing.T) {
	for _, tc := range []struct{ passes, own, want float64 }{{50e6, 0, 50e6}, {50e6, 50e6, 0}, {46e6, 50e6, 0}, {40e6, 50e6, 40e6}} {
		c, passed := &capacity{}, 0.0
		for now := time.Duration(0); now < time.Second; now += ms {
			passed += tc.passes * ms.Seconds()
			c.observe(now, sight{passed: uint64(passed), wait: ms, own: tc.own})
		}
		if math.Abs(c.known-tc.want) > 0.03*tc.want {
			t.Errorf("%+v: %.3g B/s are known", tc, c.known)
		}
	}
}

// What was carried is forgotten after a while.
func TestCarriedIsForgotten(t *testing.T) {
	l := &link{}
	l.play(time.Second, 100e6, 125e6)
	if !l.limits() {
		t.Error("it sends as much as lately")
	}
	l.play(time.Second, 50e6, 125e6)
	if l.limits() {
		t.Error("it sends half of what it has sent lately")
	}
	l.play(2*carryFor, 10e6, 125e6)
	if c := l.carried(); c > 11e6 {
		t.Errorf("it has carried %.3g B/s", c)
	}
}

// Over a long way packets come in clumps. Their queue is long as well, and a measurement lasts for several times of it.
func TestALongQueueIsMeasuredForLonger(t *testing.T) {
	var c capacity
	passed, now := 0.0, time.Duration(0)
	for step := range 4000 {
		rate := 5e6 * 1.4
		if step/80%2 == 1 {
			rate = 5e6 * 0.6
		}
		now += time.Millisecond
		passed += rate / 1000
		c.observe(now, sight{passed: uint64(passed), wait: 100 * time.Millisecond})
	}
	if math.Abs(c.known-5e6) > 0.1*5e6 {
		t.Errorf("%.3g B/s are known, want %.3g", c.known, 5e6)
	}
}

// After a link has fallen to a quarter, packets wait for almost a second, in iterations with pauses: it is found nevertheless.
func TestALongQueueAfterAFall(t *testing.T) {
	c := capacity{late: true}
	passed, now := 0.0, time.Duration(0)
	play := func(rate float64, wait, busy, idle time.Duration, iterations int) {
		for range iterations {
			for end := now + busy; now < end; now += 13 * time.Millisecond {
				passed += rate * 0.013
				c.observe(now, sight{passed: uint64(passed), wait: min(wait, wait-(end-now-busy))})
			}
			now += idle
		}
	}
	play(5e6, 40*time.Millisecond, 400*time.Millisecond, 100*time.Millisecond, 10)
	play(1.25e6, 900*time.Millisecond, 1200*time.Millisecond, 500*time.Millisecond, 3)
	if math.Abs(c.sure-1.25e6) > 0.1*1.25e6 {
		t.Errorf("%.3g B/s are sure after 3 iterations, want %.3g", c.sure, 1.25e6)
	}
}
