package balance

import (
	"math"
	"math/rand/v2"
	"testing"

	"fptps/gocore/plan"
)

// A plan's flows of a host's nodes to other hosts add up to the load of its link, and both ends of
// a flow agree.
func TestFlowsAddUpToTheLoad(t *testing.T) {
	for seed := range uint64(300) {
		hosts := randomHosts(rand.New(rand.NewPCG(seed, 5)), 10)
		m := modelOf(t, hosts)
		shares := planOf(t, hosts)
		p, err := plan.New(shares)
		if err != nil {
			t.Fatal(err)
		}
		var workers []uint32
		for _, n := range m.nodes {
			if n.Worker {
				workers = append(workers, n.ID)
			}
		}
		flows := map[uint32]map[uint32]float64{}
		for _, n := range m.nodes {
			flows[n.ID] = p.Flows(n.ID, workers)
		}
		fractions := m.fractions(shares)
		for _, h := range m.hosts {
			local := map[uint32]bool{}
			for _, n := range m.nodes[h.from:h.to] {
				local[n.ID] = true
			}
			load := 0.0
			for id := range local {
				for peer, bytes := range flows[id] {
					if !local[peer] {
						load += bytes
					}
					if back := flows[peer][id]; bytes <= 0 || math.Abs(back-bytes) > 1e-12 {
						t.Fatalf("seed %d: %g from %d to %d, %g back", seed, bytes, id, peer, back)
					}
				}
			}
			if want := h.base + h.slope*total(fractions[h.from:h.to]); load-want > 1e-9 || want-load > 1e-9 {
				t.Errorf("seed %d: flows of %g, load %g", seed, load, want)
			}
		}
	}
}
