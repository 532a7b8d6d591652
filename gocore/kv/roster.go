package kv

import "slices"

// roster has the workers of each epoch: see aggregate.Members.
type roster struct {
	first int     // the epoch in which this worker came
	ranks [][]int // of the workers, ascending, by epoch from first on
}

func newRoster(first int, ranks []int) roster {
	return roster{first, [][]int{slices.Sorted(slices.Values(ranks))}}
}

// epoch is the last one.
func (r *roster) epoch() int { return r.first + len(r.ranks) - 1 }

// at lists the workers of an epoch. Of epochs before the first one the roster knows nothing: it gives the first one's workers. Of epochs
// after the last one it gives the last one's.
func (r *roster) at(epoch int) []int {
	return r.ranks[min(max(0, epoch-r.first), len(r.ranks)-1)]
}

// last lists the workers of the last epoch.
func (r *roster) last() []int { return r.ranks[len(r.ranks)-1] }

// highest is the highest rank so far.
func (r *roster) highest() int {
	highest := 0
	for _, ranks := range r.ranks {
		highest = max(highest, ranks[len(ranks)-1])
	}
	return highest
}

// bury begins an epoch without a worker, or with the same workers if rank is negative.
func (r *roster) bury(rank int) {
	r.ranks = append(r.ranks, slices.DeleteFunc(slices.Clone(r.last()), func(other int) bool { return other == rank }))
}

// join begins an epoch with a new worker.
func (r *roster) join(rank int) {
	next := append(slices.Clone(r.last()), rank)
	slices.Sort(next)
	r.ranks = append(r.ranks, next)
}
