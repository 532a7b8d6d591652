package plan

import (
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
