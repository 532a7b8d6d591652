package aggregate

import "math/bits"

// ranks is a set of workers' ranks.
type ranks []uint64

func newRanks(workers int) ranks { return make(ranks, (workers+63)/64) }

func (r ranks) has(rank int) bool { return r[rank/64]>>(rank%64)&1 == 1 }
func (r ranks) add(rank int)      { r[rank/64] |= 1 << (rank % 64) }

func (r ranks) cleared() ranks {
	clear(r)
	return r
}

func (r ranks) union(other ranks) {
	for i := range r {
		r[i] |= other[i]
	}
}

// list returns the ranks below n that are in the set, or with in false those that are not.
func (r ranks) list(n int, in bool) []int {
	var all []int
	for i, word := range r {
		if !in {
			word = ^word
		}
		for ; word != 0; word &= word - 1 {
			if rank := i*64 + bits.TrailingZeros64(word); rank < n {
				all = append(all, rank)
			}
		}
	}
	return all
}
