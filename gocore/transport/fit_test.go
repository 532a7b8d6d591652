package transport

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// probeOf plays a probe over a link: all peers send as much as they can, and what passes is seen in bursts, late by up to a time.
func probeOf(rate, bucket float64, late time.Duration, seed uint64) *capacity {
	l := &link{bucket: bucket, now: 20 * time.Second}
	l.probe(l.now, l.now+probeTime)
	random := rand.New(rand.NewPCG(seed, 1))
	for end := l.now + probeTime; l.now < end; {
		l.play(ms+time.Duration(random.Int64N(int64(late))), 2*rate, rate)
	}
	return &l.capacity
}

// The time of a probe suffices for links of these rates.
func TestProbeFindsWhatALinkCarries(t *testing.T) {
	for _, rate := range []float64{6.25e6, 25e6, 125e6} {
		for _, bucket := range []float64{0, bucket128K} {
			if c := probeOf(2.5e6, bucket, 10*ms, 1); c.known != 0 {
				t.Errorf("of a slow link, bucket %g: %.3g B/s are known", bucket, c.known)
			}
			for seed := range uint64(20) {
				if c := probeOf(rate, bucket, 10*ms, seed); math.Abs(c.known-rate) > 0.08*rate {
					t.Errorf("%.3g B/s, bucket %g, seed %d: %.3g are known", rate, bucket, seed, c.known)
				}
			}
		}
	}
}

// ramp observes a probe of which bytes(s) have passed after s seconds, while packets wait.
func ramp(wait time.Duration, bytes func(seconds float64) float64) *capacity {
	c := &capacity{}
	c.probe(0, probeTime)
	for now := ms; now < probeTime; now += ms {
		c.observe(now, sight{passed: uint64(bytes(now.Seconds())), wait: wait})
	}
	return c
}

func TestProbe(t *testing.T) {
	const rate = 25e6
	even := func(s float64) float64 { return rate * s }
	for name, tc := range map[string]struct {
		wait  time.Duration
		bytes func(seconds float64) float64
		known float64
	}{
		"even":                                  {ms, even, rate},
		"without a queue":                       {standTime - 1, even, 0},
		"a rate that grows all the time":        {ms, func(s float64) float64 { return rate * s * s / 0.3 }, 0},
		"a rate that falls":                     {ms, func(s float64) float64 { return rate * (s - s*s*1.5) }, 0},
		"in bursts of 5 ms":                     {ms, func(s float64) float64 { return rate * 0.005 * math.Floor(s/0.005) }, rate},
		"late at the begin":                     {ms, func(s float64) float64 { return rate * max(s/10, s-0.1) }, rate},
		"too little passes":                     {ms, func(s float64) float64 { return 1e6 * s }, 0},
		"TCP's start is above what it is later": {ms, func(s float64) float64 { return rate*s + 4e6*min(s, 0.05) }, rate},
	} {
		if c := ramp(tc.wait, tc.bytes); math.Abs(c.known-tc.known) > 0.02*tc.known {
			t.Errorf("%s: %.3g B/s are known, want %.3g", name, c.known, tc.known)
		}
	}
}

// What a link has carried is known soon, also without a queue. A burst of 256 KB is not part of it.
func TestCarriedDuringAProbe(t *testing.T) {
	for _, rate := range []float64{12.5e6, 25e6, 125e6} {
		c := ramp(0, func(s float64) float64 { return min(s/0.005, 1)*burstBytes + rate*min(s, 0.1) })
		if got := c.carried(); got > rate || got < rate-5e6 {
			t.Errorf("a link that carries %.3g B/s has carried %.3g", rate, got)
		}
	}
}

// A queue that stands for moments says nothing: each time is too short.
func TestProbeNeedsAQueueThatStands(t *testing.T) {
	c := &capacity{}
	c.probe(0, probeTime)
	for now := ms; now < probeTime; now += ms {
		wait := ms
		if now%(100*ms) == 0 {
			wait = 0
		}
		c.observe(now, sight{passed: uint64(25e6 * now.Seconds()), wait: wait})
	}
	if c.known != 0 {
		t.Errorf("%.3g B/s are known", c.known)
	}
}

// During a probe a queue counts if it is the longer part of what packets wait for.
func TestQueueOfAProbe(t *testing.T) {
	c := &capacity{}
	c.probe(0, probeTime)
	for _, tc := range []struct{ now, wait, whole, want time.Duration }{
		{ms, 4 * ms, 9 * ms, 0}, {ms, 5 * ms, 9 * ms, 5 * ms}, {probeTime, 4 * ms, 9 * ms, 4 * ms},
	} {
		if got := c.mainly(tc.now, tc.wait, tc.whole); got != tc.want {
			t.Errorf("at %v: %v of %v count as %v", tc.now, tc.wait, tc.whole, got)
		}
	}
}

// After a probe, and after one that was ended early, measurements are as long as usual.
func TestMeasurementsAfterAProbe(t *testing.T) {
	for _, early := range []bool{false, true} {
		l := &link{}
		l.probe(0, probeTime)
		if early {
			l.endProbe()
		}
		l.play(fewest*capacityTime, 2*25e6, 25e6)
		if known := l.known > 0; known == early {
			t.Errorf("ended early %v: %.3g B/s are known after %v", early, l.known, l.now)
		}
		l.play(time.Second, 2*12.5e6, 12.5e6)
		l.want(t, "later", 12.5e6, 0.03)
	}
}
