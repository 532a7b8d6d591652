package balance

import (
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/optimize/convex/lp"
)

// The optimum is that of the simplex method, which knows nothing of its structure.
func TestSimplexFindsTheSameTime(t *testing.T) {
	for seed := range uint64(300) {
		hosts := randomHosts(rand.New(rand.NewPCG(seed, 1)), 8)
		want, err := simplex(hosts)
		if err != nil {
			t.Fatal(err)
		}
		m := modelOf(t, hosts)
		if got := m.slowest(m.best()); !near(got, want, 1e-9) {
			t.Errorf("seed %d: %g, by the simplex method %g", seed, got, want)
		}
	}
}

// simplex solves the linear programme as it is stated in docs/balance.md. The variables are the time
// and the nodes' shares. The unit is the fastest link: in bytes per second the matrices
// would be too ill-conditioned for gonum.
func simplex(hosts []Host) (time float64, err error) {
	workers, nodes, unit := 0, 0, 0.0
	for _, h := range hosts {
		workers += workersOf(h)
		nodes += len(h.Nodes)
		unit = max(unit, h.Up, h.Down)
	}
	var rows, limits []float64 // rows * variables <= limits
	addRow := func(limit, capacity float64, from, to int, slope float64) {
		row := make([]float64, 1+nodes)
		row[0] = -capacity / unit
		for i := from; i < to; i++ {
			row[1+i] = slope
		}
		rows, limits = append(rows, row...), append(limits, limit)
	}
	from := 0
	for _, h := range hosts {
		own := float64(workersOf(h))
		// Out: contributions of the host's workers to packets of others, and sums of its own
		// packets to workers elsewhere. In: the reverse.
		for _, capacity := range []float64{h.Up, h.Down} {
			addRow(-own, capacity, from, from+len(h.Nodes), float64(workers)-own-own)
		}
		for _, n := range h.Nodes {
			addRow(0, n.Sums, from, from+1, float64(workers))
			addRow(0, 0, from, from+1, -1) // share >= 0
			from++
		}
	}
	sum := make([]float64, 1+nodes)
	for i := range nodes {
		sum[1+i] = 1
	}
	objective := make([]float64, 1+nodes)
	objective[0] = 1
	c, a, b := lp.Convert(objective, mat.NewDense(len(limits), 1+nodes, rows), limits, mat.NewDense(1, 1+nodes, sum), []float64{1})
	time, _, err = lp.Simplex(c, a, b, 1e-12, nil)
	return time / unit, err
}

func workersOf(h Host) (count int) {
	for _, n := range h.Nodes {
		if n.Worker {
			count++
		}
	}
	return count
}
