package aggregate

import (
	"fmt"
	"testing"
	"time"

	"fptps/gocore/wire"
)

func have(packet, run uint32, round uint64) *wire.Header {
	return &wire.Header{Kind: wire.Have, Tensor: 3, Packet: packet, Run: run, Round: round}
}

// TestKept plays what arrives at an heir after a death: contributions (c), skips (e), notes that a worker has the sum (h) and recalled
// sums (k), each with rank and round. The result lists the sums that the heir makes and recalls, and the workers that get a recalled one.
func TestKept(t *testing.T) {
	for name, tc := range map[string]struct{ play, want string }{
		"all contribute":                        {"c05 c15 c25", "sum5"},
		"one has the sum, one contributes":      {"h05 c15", "recall0"},
		"the other way round":                   {"c15 h05", "recall0"},
		"both contribute before":                {"c15 c25 h05 k05", "recall0 to12"},
		"one before, one after":                 {"c15 h05 c25 k05", "recall0 to12"},
		"one before, one after the sum":         {"c15 h05 k05 c25 k05", "recall0 to1 recall0 to2"},
		"all have it":                           {"h05 h15 h25", ""},
		"two have it":                           {"h05 h15 c25 k15 k05", "recall0 to2"},
		"a contribution comes twice":            {"h05 c15 c15 k05", "recall0 to1"},
		"of the round before":                   {"c06 h05 c15 k05 c16 c26", "recall0 to1 sum6"},
		"the next round follows":                {"h05 c15 k05 c06 c16 c26 c07 c17 c27", "recall0 to1 sum6 sum7"},
		"notes of a round that was summed here": {"c05 c15 c25 h05 h15", "sum5"},
		"a sum that nobody asked for":           {"k05 h05 k05 k15 k04", ""},
		"a note comes late":                     {"h06 h15", ""},
		"skips are contributions":               {"e15 h05 k05", "recall0 to1"},
	} {
		t.Run(name, func(t *testing.T) {
			pool := NewPool()
			slots := NewSlots(NewMembers(3), pool, time.Time{})
			got := ""
			note := func(format string, a ...any) {
				if got != "" {
					got += " "
				}
				got += fmt.Sprintf(format, a...)
			}
			var kind rune
			var rank, round int
			for rest := tc.play; len(rest) > 0; rest = rest[min(4, len(rest)):] {
				kind, rank, round = rune(rest[0]), int(rest[1]-'0'), int(rest[2]-'0')
				var sums []Sum
				var err error
				switch kind {
				case 'c':
					b := pool.Get(4 * ints)
					copy(b.Bytes, values(rank, 3, 1, uint64(round)))
					sum, done, e := slots.Add(rank, contribution(3, 1, uint64(round)), b.Bytes, b)
					if err = e; done {
						sums = append(sums, sum)
					}
				case 'e':
					h := contribution(3, 1, uint64(round))
					h.Kind, h.WireLen = wire.Empty, 0
					sums, err = slots.AddEmpty(rank, h, nil)
				case 'h':
					err = slots.Have(rank, have(0, 3, uint64(round)))
				case 'k':
					h := contribution(3, 1, uint64(round))
					h.Kind = wire.Kept
					if owed := slots.Kept(rank, h); owed != nil {
						text := "to"
						for _, r := range owed {
							text += fmt.Sprint(r)
						}
						note("%s", text)
					}
					continue
				}
				if err != nil && err != ErrStale {
					t.Fatalf("%s: %v", tc.play, err)
				}
				for _, sum := range sums {
					note("sum%d", sum.Header.Round)
					sum.Buffer.Release()
				}
				for _, r := range slots.Recalls() {
					if r.Tensor != 3 || r.Packet != 1 {
						t.Fatalf("recall %+v", r)
					}
					note("recall%d", r.Rank)
				}
			}
			if got != tc.want {
				t.Errorf("%s: %q, expected %q", tc.play, got, tc.want)
			}
		})
	}
}

// A note of a sum frees the contributions to its round, and the note is forgotten after the next round.
func TestKeptFreesMemory(t *testing.T) {
	for _, policy := range []wire.Policy{wire.Sync, wire.Ordered} {
		pool := NewPool()
		slots := NewSlots(NewMembers(3), pool, time.Time{})
		for _, rank := range []int{2, 1} {
			b := pool.Get(4 * ints)
			h := contribution(3, 1, 5)
			h.Policy, h.DType = policy, wire.Float32
			if _, _, err := slots.Add(rank, h, b.Bytes, b); err != nil {
				t.Fatal(err)
			}
		}
		if err := slots.Have(0, have(1, 1, 5)); err != nil {
			t.Fatal(err)
		}
		if n := pool.Lent(); n != 0 {
			t.Errorf("%v: %d buffers are lent", policy, n)
		}
		for rank := range 3 {
			sum, done, _ := slots.Add(rank, contribution(3, 1, 6), values(rank, 3, 1, 6), nil)
			if done {
				sum.Buffer.Release()
			}
		}
		if len(slots.kept) != 0 {
			t.Errorf("%v: %d sums are remembered", policy, len(slots.kept))
		}
	}
}

func TestHaveOfAStranger(t *testing.T) {
	slots := NewSlots(NewMembers(3), NewPool(), time.Time{})
	for _, rank := range []int{-1, 3} {
		if err := slots.Have(rank, have(0, 1, 5)); err == nil {
			t.Errorf("rank %d has sums", rank)
		}
	}
}
