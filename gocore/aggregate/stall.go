package aggregate

import (
	"cmp"
	"slices"
	"time"
)

// StallAfter is how long a round may wait for a contribution before it is told,
// and how long until it is told again. Short, so that who gives up waiting knows why.
const StallAfter = time.Second

// Stall is a round of a tensor that has waited too long.
type Stall struct {
	Tensor  uint32
	Round   uint64
	Missing []int // ranks that have not contributed to some packet of it
	Waiting []int // ranks that have
}

// Tick tells the table what time it is, about once a second, and returns the
// rounds that have waited for StallAfter, at most once in that time.
func (t *Table) Tick(now time.Time) []Stall {
	t.now = now
	if t.open == 0 || now.Sub(t.told) < StallAfter {
		return nil
	}
	type round struct {
		tensor uint32
		round  uint64
	}
	type sets struct{ all, any ranks }
	found := map[round]sets{}
	for key, pair := range t.slots {
		for i := range pair {
			s := &pair[i]
			if !s.used || s.whole || now.Sub(s.since) < StallAfter {
				continue
			}
			id := round{key.tensor, s.round}
			f, known := found[id]
			if !known {
				f = sets{slices.Clone(s.from), newRanks(t.workers)}
				found[id] = f
			}
			f.any.union(s.from)
			for w := range f.all {
				f.all[w] &= s.from[w]
			}
		}
	}
	var stalls []Stall
	for id, f := range found {
		stalls = append(stalls, Stall{id.tensor, id.round, f.all.list(t.workers, false), f.any.list(t.workers, true)})
	}
	slices.SortFunc(stalls, func(a, b Stall) int {
		return cmp.Or(cmp.Compare(a.Tensor, b.Tensor), cmp.Compare(a.Round, b.Round))
	})
	if stalls != nil {
		t.told = now
	}
	return stalls
}
