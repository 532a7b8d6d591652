package aggregate

import (
	"cmp"
	"slices"
	"time"
)

// StallAfter is how long a round may wait for a contribution before Tick reports it, and the
// time until Tick reports it again. It is short, so that the error of a wait that times out names the missing workers.
const StallAfter = time.Second

// Stall is a round of a tensor that has waited too long.
type Stall struct {
	Tensor  uint32
	Round   uint64
	Missing []int // ranks that have not contributed to some packet of it
	Waiting []int // ranks that have
}

// maxLooks bounds the slots that one Tick inspects, so that a Tick is short in a large model too. The next Tick
// inspects the following slots.
const maxLooks = 1024

// watch puts an open slot at the end of the ring. Every slot is due StallAfter later, so the ring is in the order of due.
func (t *Slots) watch(s *slot) {
	s.due = t.now.Add(StallAfter)
	s.prev, s.next = t.open.prev, &t.open
	s.prev.next, s.next.prev = s, s
}

// unwatch removes a slot from the ring.
func (s *slot) unwatch() {
	s.prev.next, s.next.prev = s.next, s.prev
	s.prev, s.next = nil, nil
}

// Tick sets the time; the caller calls it about once a second. It returns the rounds with packets that have waited for
// StallAfter since their first contribution, or since a Tick last inspected them. It inspects maxLooks packets at most,
// the longest overdue first. It frees the slots to which only dead workers have contributed.
func (t *Slots) Tick(now time.Time) []Stall {
	t.now = now
	type round struct {
		tensor uint32
		round  uint64
	}
	type sets struct{ all, any ranks }
	workers := t.members.now.Load()
	found := map[round]sets{}
	for looks := 0; looks < maxLooks && t.open.next != &t.open && !now.Before(t.open.next.due); looks++ {
		s := t.open.next
		if workers.allGone(s.from) { // they were ahead of the others, who repeat the round, perhaps under another plan
			t.giveUp(s)
			continue
		}
		s.unwatch()
		t.watch(s)
		id := round{s.tensor, s.round}
		f, known := found[id]
		if !known {
			f = sets{newRanks(workers.ranks()), newRanks(workers.ranks())}
			f.all.union(s.from)
			found[id] = f
		}
		f.any.union(s.from)
		f.all.intersect(s.from)
	}
	var stalls []Stall
	for id, f := range found {
		missing := slices.DeleteFunc(f.all.list(workers.ranks(), false), workers.gone)
		if len(missing) > 0 { // else the round waits for dead ones, until it is repeated
			stalls = append(stalls, Stall{id.tensor, id.round, missing, f.any.list(workers.ranks(), true)})
		}
	}
	slices.SortFunc(stalls, func(a, b Stall) int {
		return cmp.Or(cmp.Compare(a.Tensor, b.Tensor), cmp.Compare(a.Round, b.Round))
	})
	return stalls
}
