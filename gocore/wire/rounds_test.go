package wire

import (
	"math/rand/v2"
	"reflect"
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

func TestFirstRounds(t *testing.T) {
	rounds := func(list ...uint64) (r Rounds) {
		for _, n := range list {
			r.Add(n)
		}
		return r
	}
	for name, tc := range map[string]struct {
		promises []Rounds
		want     Rounds
	}{
		"no worker":                   {nil, Rounds{}},
		"one":                         {[]Rounds{rounds(1, 1, 5)}, rounds(2, 2, 6)},
		"the newest counts":           {[]Rounds{rounds(1, 2, 5), rounds(2, 1, 5)}, rounds(3, 3, 6)},
		"one excepts a tensor":        {[]Rounds{rounds(1, NoRound), rounds(2, 9)}, rounds(3, NoRound)},
		"one does not list a tensor":  {[]Rounds{rounds(1), rounds(2, 9)}, rounds(3)},
		"the last of all rounds":      {[]Rounds{rounds(NoRound - 1)}, rounds(NoRound)},
		"counts without their rounds": {[]Rounds{{Counts: []uint32{2}}, rounds(2, 9)}, Rounds{}},
		"runs without tensors":        {[]Rounds{{Counts: []uint32{0, 1, 0}, Last: []uint64{7, 8, 9}}}, rounds(9)},
		"runs that end at others":     {[]Rounds{rounds(1, 1, 1, 4), rounds(2, 3, 3, 3)}, rounds(3, 4, 4, 5)},
	} {
		if got := FirstRounds(tc.promises); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v, expected %+v", name, got, tc.want)
		}
	}
}

// Counts that no cluster has, from a peer that sends anything, take no time.
func TestFirstRoundsOfNonsense(t *testing.T) {
	var r Rounds
	for range 1 << 16 {
		r.Counts, r.Last = append(r.Counts, 1<<32-1), append(r.Last, 1)
	}
	if first := FirstRounds([]Rounds{r, r}); len(first.Last) > maxRoundRuns {
		t.Errorf("%d runs", len(first.Last))
	}
}
