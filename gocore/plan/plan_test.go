package plan

import (
	"fmt"
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

func TestInvalidPlans(t *testing.T) {
	for name, shares := range map[string][]Share{
		"nobody sums":   {{Node: 8, Share: 0}},
		"no node":       nil,
		"share too big": {{Node: 8, Share: wire.MaxShare + 1}},
	} {
		if _, err := New(shares); fault.CodeOf(err) != fault.Config {
			t.Errorf("%s: got %v, expected a Config error", name, err)
		}
	}
}

func TestFraction(t *testing.T) {
	p, err := New([]Share{{Node: 8, Share: 1}, {Node: 10, Share: 0}, {Node: 12, Share: 3}})
	if err != nil {
		t.Fatal(err)
	}
	for node, want := range map[uint32]float64{8: 0.25, 10: 0, 12: 0.75, 14: 0} {
		if got := p.Fraction(node); got != want {
			t.Errorf("node %d sums %v, expected %v", node, got, want)
		}
	}
}

// 2 workers (9, 11), a server (8) with half of the shares, worker 9 with a third.
func TestFlowsOfASmallCluster(t *testing.T) {
	p, err := New([]Share{{Node: 8, Share: 3}, {Node: 9, Share: 2}, {Node: 11, Share: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for node, want := range map[uint32]string{
		8:  "map[9:0.5 11:0.5]", // contributions to the server, its sums
		9:  "map[8:0.5 11:0.5]", // to 11: a contribution to its sixth, sums of 9's own third
		11: "map[8:0.5 9:0.5]",  // the same
		10: "map[]",             // not in the cluster
	} {
		if got := fmt.Sprint(p.Flows(node, []uint32{9, 11})); got != want {
			t.Errorf("node %d: %v, expected %s", node, got, want)
		}
	}
}
