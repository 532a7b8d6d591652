package balance

import (
	"math"

	"fptps/gocore/plan"
)

// minStreak is the number of consecutive observations that must show a gain.
const minStreak = 2

// Watch decides when a new plan is worth the change. The zero value is ready.
type Watch struct {
	streak int // consecutive observations that showed a gain
}

// Change is a plan that should replace the present one.
type Change struct {
	Shares []plan.Share
	Gain   float64 // how much longer the present plan takes: 0.25 is a quarter, infinity a plan that cannot be used
}

// Observe compares the present plan with the best one under new capacities, and returns nil if the
// present one should stay. A plan that cannot be used (nil; one with nodes that are not in hosts)
// is replaced at once, others after two consecutive observations with a gain above minGain. Observe
// returns the change again until present is a better plan, and after an error (Plan's) starts to count anew.
func (w *Watch) Observe(hosts []Host, present []plan.Share, minGain float64) (*Change, error) {
	m, err := newModel(hosts)
	if err != nil {
		w.streak = 0
		return nil, err
	}
	shares := m.shares()
	gain := m.gain(present, shares)
	if gain <= minGain {
		w.streak = 0
		return nil, nil
	}
	w.streak++
	if w.streak < minStreak && !math.IsInf(gain, 1) {
		return nil, nil
	}
	return &Change{m.plan(shares), gain}, nil // rounding takes longest, and is done for a change alone
}

// gain is how much longer a round takes with the present plan than with shares.
func (m *model) gain(present []plan.Share, shares []float64) float64 {
	return m.slowest(m.fractions(present))/m.slowest(shares) - 1
}
