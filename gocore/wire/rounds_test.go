package wire

import (
	"math/rand/v2"
	"testing"
)

func TestRounds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var r Rounds
		var want []uint64
		for range random.IntN(200) {
			last := random.Uint64N(3)
			if !r.Add(last) {
				t.Fatal("no place")
			}
			want = append(want, last)
		}
		for id, last := range want {
			if got, known := r.Of(uint32(id)); !known || got != last {
				t.Fatalf("tensor %d: %d, %v, want %d", id, got, known, last)
			}
		}
		if _, known := r.Of(uint32(len(want))); known {
			t.Fatal("more tensors than there are")
		}
	}
}

// The bytes are bounded; what does not fit is not known, and nothing else is wrong.
func TestRoundsAreBounded(t *testing.T) {
	var r Rounds
	for n := uint64(0); r.Add(n); n++ {
	}
	if len(r.Last) != maxRoundRuns {
		t.Fatalf("%d runs", len(r.Last))
	}
	if got, known := r.Of(maxRoundRuns - 1); !known || got != maxRoundRuns-1 {
		t.Errorf("the last is %d, %v", got, known)
	}
	if _, known := (Rounds{Counts: []uint32{5}}).Of(0); known {
		t.Error("counts without rounds")
	}
}
