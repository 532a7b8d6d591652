package transport

import (
	"math"
	"testing"
	"time"
)

// working plays seconds of a node's life in steps of 200 ms. In each, a loop is busy for a part of the time, while bytes per second pass
// in each direction.
func working(p *processor, from time.Duration, seconds int, part func(step int) (busy, rate float64)) (now time.Duration) {
	var spent time.Duration
	var moved uint64
	if p.busy != nil {
		spent, moved = p.busy[0], p.moved
	}
	now = from
	for step := range 5 * seconds {
		now += 200 * time.Millisecond
		busy, rate := part(step)
		spent += time.Duration(busy * float64(200*time.Millisecond))
		moved += uint64(2 * rate / 5)
		p.observe(now, []time.Duration{spent, spent / 2}, moved)
	}
	return now
}

func steadily(busy, rate float64) func(int) (float64, float64) {
	return func(int) (float64, float64) { return busy, rate }
}

func TestTheProcessorLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		part func(int) (float64, float64)
		want float64
	}{
		"a link limits":            {steadily(0.4, 100e6), 0},
		"always busy":              {steadily(0.95, 30e6), 30e6},
		"busy half of the time":    {func(step int) (float64, float64) { return float64(step%2) * 0.9, 30e6 * float64(step%2) }, 30e6},
		"busy for a moment":        {func(step int) (float64, float64) { return 0.9 * float64(min(1, max(0, step%20-12))), 30e6 }, 0},
		"of many windows half":     {func(step int) (float64, float64) { return 0.9, 20e6 + 1e6*float64(step%21) }, 30e6},
		"busy with something else": {steadily(1, 0), 0},
	} {
		var p processor
		working(&p, 0, 10, tc.part)
		if math.Abs(p.known-tc.want) > 0.04*tc.want {
			t.Errorf("%s: %g B/s, want %g", name, p.known, tc.want)
		}
	}
}

// A slow processor is known for a minute after it was last the limit, then for two.
func TestASlowProcessorIsForgotten(t *testing.T) {
	var p processor
	now := time.Duration(0)
	for _, seconds := range []int{60, 120, 240} {
		now = working(&p, now, 5, steadily(0.9, 30e6))
		limited := now
		if p.known == 0 {
			t.Fatalf("nothing is known after %v", now)
		}
		now = working(&p, now, seconds-1, steadily(0.2, 20e6))
		if p.known == 0 {
			t.Errorf("forgotten within %v", now-limited)
		}
		if now = working(&p, now, 2, steadily(0.2, 20e6)); p.known != 0 {
			t.Errorf("still known after %v", now-limited)
		}
	}
}

// Looks that come at once, as after a pause of the process, are one window.
func TestAShortWindowIsNotDue(t *testing.T) {
	var p processor
	if !p.due(0) {
		t.Error("the first window is not due")
	}
	p.observe(time.Second, []time.Duration{0}, 0)
	if p.due(time.Second+windowTime-1) || !p.due(time.Second+windowTime) {
		t.Error("a window is due before or after its time")
	}
}

// The kernel counts the time for which a thread computes.
func TestBusyThreads(t *testing.T) {
	var idle thread
	if _, err := idle.busy(); err != errNoThread {
		t.Errorf("before the loop begins: %v", err)
	}
	measured := make(chan [2]time.Duration)
	go func() {
		var here thread
		here.begin()
		first, err := here.busy()
		if err != nil {
			t.Error(err)
		}
		last := first
		for begin := time.Now(); last-first < 20*time.Millisecond && time.Since(begin) < 10*time.Second; {
			last, _ = here.busy()
		}
		measured <- [2]time.Duration{first, last}
	}()
	if times := <-measured; times[1]-times[0] < 20*time.Millisecond {
		t.Errorf("a thread that computed for 10 s was busy from %v to %v", times[0], times[1])
	}
}
