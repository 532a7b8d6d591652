package balance

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"fptps/gocore/plan"
)

// 2 workers (9, 11), a server (8) with half of the shares, worker 9 with a third.
func TestFlowsOfASmallCluster(t *testing.T) {
	shares := []plan.Share{{Node: 8, Share: 3}, {Node: 9, Share: 2}, {Node: 11, Share: 1}}
	for node, want := range map[uint32]string{
		8:  "map[9:0.5 11:0.5]", // contributions to the server, its sums
		9:  "map[8:0.5 11:0.5]", // to 11: a contribution to its sixth, sums of 9's own third
		11: "map[8:0.5 9:0.5]",  // the same
		10: "map[]",             // not in the cluster
	} {
		if got, err := Flows(equal(2, 1), shares, node); err != nil || fmt.Sprint(got) != want {
			t.Errorf("node %d: %v, %v, expected %s", node, got, err, want)
		}
	}
	if got, err := Flows(equal(2, 1), nil, 9); err != nil || len(got) != 0 {
		t.Errorf("without a plan: %v, %v", got, err)
	}
}

// The flows of a host's nodes to other hosts add up to the load of its link, and both ends of
// a flow agree.
func TestFlowsAddUpToTheLoad(t *testing.T) {
	for seed := range uint64(300) {
		hosts := randomHosts(rand.New(rand.NewPCG(seed, 5)), 10)
		m := modelOf(t, hosts)
		shares := planOf(t, hosts)
		flows := map[uint32]map[uint32]float64{}
		for _, n := range m.nodes {
			var err error
			if flows[n.ID], err = Flows(hosts, shares, n.ID); err != nil {
				t.Fatal(err)
			}
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
					if back := flows[peer][id]; bytes <= 0 || back != bytes {
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
