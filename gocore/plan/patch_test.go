package plan

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// After any deaths, in order, each packet has one aggregator that lives, the others keep theirs, and the dead one's packets are
// spread evenly.
func TestPatch(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		nodes := make([]uint32, 2+random.IntN(9))
		for i := range nodes {
			nodes[i] = uint32(8 + i)
		}
		key, lanes := random.Uint64(), 1+random.IntN(3)
		runs := Split(key, NewTally(randomPlan(t, random, len(nodes))).Cut(random.Uint64N(1<<23), nil), lanes)
		alive := nodes
		for len(alive) > 1 {
			dead := alive[random.IntN(len(alive))]
			heirs := slices.DeleteFunc(slices.Clone(alive), func(n uint32) bool { return n == dead })
			before, after := byPacket(t, runs), []Run(nil)
			for _, run := range RunsOf(runs, dead) {
				parts := byPacket(t, Patch(key, []Run{run}, dead, heirs))
				for _, heir := range heirs {
					got := len(slices.DeleteFunc(slices.Clone(parts[run.First:]), func(r Run) bool { return r.Node != heir }))
					if least := int(run.Count) / len(heirs); got < least || got > least+1 {
						t.Fatalf("seed %d: %d of %d packets for one of %d heirs", seed, got, run.Count, len(heirs))
					}
				}
			}
			after = Patch(key, runs, dead, heirs)
			for packet, run := range byPacket(t, after) {
				switch old := before[packet]; {
				case run.Lane != old.Lane:
					t.Fatalf("seed %d: packet %d moves to another lane", seed, packet)
				case old.Node != dead && run.Node != old.Node:
					t.Fatalf("seed %d: packet %d of node %d moves, but node %d died", seed, packet, old.Node, dead)
				case !slices.Contains(heirs, run.Node):
					t.Fatalf("seed %d: node %d sums packet %d", seed, run.Node, packet)
				}
			}
			runs, alive = after, heirs
		}
	}
}

// byPacket lists the run of each packet, and checks that each has one; those before the first run have none.
func byPacket(t *testing.T, runs []Run) []Run {
	var list []Run
	for i, run := range runs {
		if i == 0 {
			list = make([]Run, run.First)
		}
		if int(run.First) != len(list) || run.Count == 0 {
			t.Fatalf("runs %+v", runs)
		}
		for range run.Count {
			list = append(list, run)
		}
	}
	return list
}

// The packets of tensors of one packet do not all go to the same heir.
func TestPatchSpreadsSmallTensors(t *testing.T) {
	got := map[uint32]int{}
	for key := range uint64(3000) {
		got[Patch(key, []Run{{Node: 8, Count: 1}}, 8, []uint32{10, 12, 14})[0].Node]++
	}
	for node, n := range got {
		if n < 900 || n > 1100 {
			t.Errorf("node %d has %d of 3000", node, n)
		}
	}
}
