package balance

import (
	"math"
	"math/rand/v2"
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
)

const minGain = 0.03

// observe gives a Watch the same capacities until it returns a change or has seen them limit
// times, and returns how often it saw them.
func observe(t *testing.T, w *Watch, hosts []Host, present []plan.Share, limit int) (*Change, int) {
	t.Helper()
	for seen := 1; seen <= limit; seen++ {
		change, err := w.Observe(hosts, present, minGain)
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			return change, seen
		}
	}
	return nil, limit
}

func TestWatchReplacesAPlanAfterTwoObservations(t *testing.T) {
	var w Watch
	first, seen := observe(t, &w, equal(4, 2), nil, 5)
	if first == nil || seen != 1 || !math.IsInf(first.Gain, 1) {
		t.Fatalf("without a plan: %+v after %d", first, seen)
	}
	if change, _ := observe(t, &w, equal(4, 2), first.Shares, 100); change != nil {
		t.Fatalf("nothing changed, but the plan: %+v", change)
	}
	slower := equal(4, 2)
	slower[4].Up = 0.25e9
	second, seen := observe(t, &w, slower, first.Shares, 5)
	if second == nil || seen != 2 {
		t.Fatalf("with a slow server: %+v after %d", second, seen)
	}
	before, after := timeOf(t, slower, first.Shares), timeOf(t, slower, second.Shares)
	if !near(second.Gain, before/after-1, 0.01) || second.Gain < 1 {
		t.Errorf("gain %.3f: times %g and %g", second.Gain, before, after)
	}
	if again, seen := observe(t, &w, slower, first.Shares, 5); again == nil || seen != 1 {
		t.Errorf("the change could not be made: %+v after %d", again, seen)
	}
	if change, _ := observe(t, &w, slower, second.Shares, 100); change != nil {
		t.Errorf("after the change: %+v", change)
	}
}

// One observation that shows a gain, or one before an error, changes nothing.
func TestWatchIgnoresASpike(t *testing.T) {
	var w Watch
	present := planOf(t, equal(4, 2))
	spike := equal(4, 2)
	spike[4].Down = 0.1e9
	broken := equal(4, 2)
	broken[4].Down = math.NaN()
	for range 50 {
		if change, err := w.Observe(spike, present, minGain); change != nil || err != nil {
			t.Fatalf("a spike: %+v, %v", change, err)
		}
		if change, err := w.Observe(equal(4, 2), present, minGain); change != nil || err != nil {
			t.Fatalf("after a spike: %+v, %v", change, err)
		}
		if change, err := w.Observe(spike, present, minGain); change != nil || err != nil {
			t.Fatalf("a spike: %+v, %v", change, err)
		}
		if change, err := w.Observe(broken, present, minGain); change != nil || fault.CodeOf(err) != fault.Value {
			t.Fatalf("NaN: %+v, %v", change, err)
		}
	}
}

// A plan that has an aggregator that is gone cannot stay.
func TestWatchReplacesAPlanOfOtherNodesAtOnce(t *testing.T) {
	var w Watch
	if change, seen := observe(t, &w, equal(4, 1), planOf(t, equal(4, 2)), 5); change == nil || seen != 1 {
		t.Errorf("%+v after %d", change, seen)
	}
}

// Noise of 1% in every capacity never changes a plan, whatever the cluster.
func TestNoiseChangesNothing(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 4))
		hosts := randomHosts(random, 12)
		present := planOf(t, hosts)
		var w Watch
		for range 20 {
			noisy := scaled(hosts, func() float64 { return 0.99 + 0.02*random.Float64() })
			if random.IntN(2) == 0 { // the extremes alone
				noisy = scaled(hosts, func() float64 { return 0.99 + 0.02*float64(random.IntN(2)) })
			}
			m := modelOf(t, noisy)
			if gain := m.gain(present, m.shares()); gain > minGain {
				t.Fatalf("seed %d: gain %g", seed, gain)
			}
			if change, err := w.Observe(noisy, present, minGain); change != nil || err != nil {
				t.Fatalf("seed %d: %+v, %v", seed, change, err)
			}
		}
	}
}
