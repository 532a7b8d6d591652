package balance

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Rounding is as good as the best of all ways to divide a sum of units among the nodes with a
// share, and none of them is better than the optimum of the linear programme.
func TestRoundingIsBest(t *testing.T) {
	checked := 0
	for seed := range uint64(400) {
		random := rand.New(rand.NewPCG(seed, 2))
		m := modelOf(t, randomHosts(random, 5))
		if m.mostWorkersOnOneHost() {
			continue
		}
		checked++
		shares := m.best()
		sum := uint32(1 + random.IntN(12))
		least, leastBalanced := math.Inf(1), math.Inf(1)
		for counts := range splits(sum, len(shares)) {
			if m.gives(counts, shares) {
				least = min(least, m.slowest(divide(counts, sum)))
				leastBalanced = min(leastBalanced, m.balanced(divide(counts, sum)))
			}
		}
		rounded := divide(m.round(shares, sum), sum)
		if got := m.slowest(rounded); !near(got, least, 1e-12) || got < m.slowest(shares)*(1-1e-12) {
			t.Errorf("seed %d: %v of %d units: time %g, possible %g, optimum %g", seed, rounded, sum, got, least, m.slowest(shares))
		}
		if got := m.balanced(rounded); !near(got, leastBalanced, 1e-12) {
			t.Errorf("seed %d: %v of %d units: time %g without slow links, possible %g", seed, rounded, sum, got, leastBalanced)
		}
	}
	if checked < 100 {
		t.Errorf("only %d clusters", checked)
	}
}

func (m *model) mostWorkersOnOneHost() bool {
	for _, h := range m.hosts {
		if h.slope < 0 {
			return true
		}
	}
	return false
}

// gives reports whether counts are 0 where shares are.
func (m *model) gives(counts []uint32, shares []float64) bool {
	for i := range counts {
		if counts[i] > 0 && shares[i] == 0 {
			return false
		}
	}
	return true
}

// splits yields all lists of the given length and sum.
func splits(sum uint32, length int) func(func([]uint32) bool) {
	return func(yield func([]uint32) bool) {
		counts := make([]uint32, length)
		var fill func(i int, left uint32) bool
		fill = func(i int, left uint32) bool {
			if i == length-1 {
				counts[i] = left
				return yield(counts)
			}
			for counts[i] = 0; counts[i] <= left; counts[i]++ {
				if !fill(i+1, left-counts[i]) {
					return false
				}
			}
			return true
		}
		fill(0, sum)
	}
}
