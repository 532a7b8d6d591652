package store

import (
	"cmp"
	"slices"
)

// Join adds a worker, whose rank no other has had. No round is under way on any worker then, so that all living ones have the same
// rounds behind them: those are the newcomer's, too.
func (s *Store) Join(rank int) {
	s.grow(rank + 1)
	delete(s.dead, rank)
	for _, t := range s.tensors {
		t.clockOffset = s.welcomed(t.clockOffset, []int{rank})
		for _, p := range t.packets {
			if p.weights != nil {
				p.arrived = s.welcomed(p.arrived, []int{rank})
			}
		}
	}
}

// grow makes the number of ranks at least n. Workers of new ranks are dead unless they join: they have died before they were admitted, or before this store was made, or
// join later than one of a higher rank.
func (s *Store) grow(n int) {
	for ; s.ranks < n; s.ranks++ {
		s.dead[s.ranks] = true
	}
}

// welcomed returns a list, which has something of each rank, with what it lacks of newcomers. It may be that of another store, which took some ranks for dead, and to which
// newcomers come earlier or later.
func (s *Store) welcomed(list []uint64, dead []int) []uint64 {
	if list == nil {
		return nil
	}
	s.grow(len(list))
	lowest := 0
	for s.dead[lowest] || slices.Contains(dead, lowest) {
		lowest++
	}
	value := list[min(lowest, len(list)-1)]
	list = slices.Clone(list)
	for len(list) < s.ranks {
		list = append(list, value)
	}
	for _, rank := range dead {
		if rank < len(list) && !s.dead[rank] {
			list[rank] = value
		}
	}
	return list
}

// Bury has no push wait for a worker any more, which is dead. It appends the replies to the pushes that have waited for that worker.
func (s *Store) Bury(rank int, replies []Reply) []Reply {
	s.dead[rank] = true
	for p, id := range s.waiting {
		replies = s.advance(id, s.tensors[id], p, replies)
	}
	slices.SortFunc(replies, func(a, b Reply) int {
		return cmp.Or(cmp.Compare(a.Header.Tensor, b.Header.Tensor), cmp.Compare(a.Header.Packet, b.Header.Packet))
	})
	return replies
}
