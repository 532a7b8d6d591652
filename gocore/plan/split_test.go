package plan

import (
	"math/rand/v2"
	"testing"
)

// The lanes of a run carry nearly equal numbers of packets, every packet once and in
// order. With one lane Split changes nothing.
func TestSplit(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		key, lanes := random.Uint64(), 1+random.IntN(8)
		var runs []Run
		for first, node := uint32(0), uint32(0); node < 3; node++ {
			count := 1 + random.Uint32N(1+random.Uint32N(3000))
			runs = append(runs, Run{Node: node, First: first, Count: count})
			first += count
		}
		parts := Split(key, runs, lanes)
		i := 0
		for _, run := range runs {
			for next, lane := run.First, -1; next < run.First+run.Count; i++ {
				p := parts[i]
				if p.Node != run.Node || p.First != next || p.Lane <= lane || p.Lane >= lanes {
					t.Fatalf("%+v in %d lanes: %+v", runs, lanes, parts)
				}
				if least := run.Count / uint32(lanes); p.Count < max(1, least) || p.Count > least+1 {
					t.Fatalf("%d packets of %d in one of %d lanes", p.Count, run.Count, lanes)
				}
				next, lane = next+p.Count, p.Lane
			}
		}
		if i != len(parts) {
			t.Fatalf("%+v in %d lanes: %+v", runs, lanes, parts)
		}
	}
}

// Tensors of one packet spread evenly over the lanes.
func TestSmallTensorsSpreadOverLanes(t *testing.T) {
	const lanes, keys = 4, 4000
	var got [lanes]int
	for key := range uint64(keys) {
		parts := Split(key, []Run{{Node: 8, Count: 1}}, lanes)
		if len(parts) != 1 {
			t.Fatalf("%+v", parts)
		}
		got[parts[0].Lane]++
	}
	for lane, n := range got {
		if n < keys/lanes*9/10 || n > keys/lanes*11/10 {
			t.Errorf("lane %d has %d of %d keys", lane, n, keys)
		}
	}
}
