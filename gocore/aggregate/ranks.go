package aggregate

// ranks is a set of workers' ranks.
type ranks []uint64

func newRanks(workers int) ranks { return make(ranks, (workers+63)/64) }

// has may be asked about any rank, also one that the set was not made for.
func (r ranks) has(rank int) bool { return rank/64 < len(r) && r[rank/64]>>(rank%64)&1 == 1 }
func (r ranks) add(rank int)      { r[rank/64] |= 1 << (rank % 64) }

// cleared returns an empty set for so many workers, in the memory of r if that suffices.
func (r ranks) cleared(workers int) ranks {
	if len(r) < (workers+63)/64 {
		return newRanks(workers)
	}
	clear(r)
	return r
}

// union adds the ranks of another set, which may have been made for fewer workers.
func (r ranks) union(other ranks) {
	for i := range other {
		r[i] |= other[i]
	}
}

// intersect removes the ranks that are not in another set.
func (r ranks) intersect(other ranks) {
	for i := range r {
		if i < len(other) {
			r[i] &= other[i]
		} else {
			r[i] = 0
		}
	}
}

// list returns the ranks below n that are in the set, or with in false those that are not.
func (r ranks) list(n int, in bool) []int {
	var all []int
	for rank := range n {
		if r.has(rank) == in {
			all = append(all, rank)
		}
	}
	return all
}
