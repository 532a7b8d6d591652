package wire

import "math"

// maxRoundRuns bounds the bytes of Rounds. Tensors that are pushed together have the same last round, so that a
// program needs a few runs.
const maxRoundRuns = 4096

// NoRound stands for no round in Rounds.
const NoRound = math.MaxUint64

// Rounds are round numbers of tensors, by id from 0: Last[i] is that of the next Counts[i] tensors.
type Rounds struct {
	Counts []uint32
	Last   []uint64

	Unpushed uint32 // in a promise: tensors with NoRound that may change their plan once they have been pushed
}

// Add appends the next tensor's round; false: there is no place for more.
func (r *Rounds) Add(last uint64) bool { return r.add(1, last) }

// add appends the round of the next count tensors.
func (r *Rounds) add(count uint32, last uint64) bool {
	end := len(r.Last) - 1
	switch {
	case end >= 0 && r.Last[end] == last && r.Counts[end] <= MaxTensors-count:
		r.Counts[end] += count
	case end+1 == maxRoundRuns:
		return false
	default:
		r.Counts, r.Last = append(r.Counts, count), append(r.Last, last)
	}
	return true
}

// Of gives the round of a tensor; false where that is not known.
func (r Rounds) Of(id uint32) (uint64, bool) {
	if len(r.Counts) != len(r.Last) {
		return 0, false
	}
	before := uint64(0)
	for i, n := range r.Counts {
		if before += uint64(n); uint64(id) < before {
			return r.Last[i], true
		}
	}
	return 0, false
}

// cursor walks over the runs of Rounds.
type cursor struct {
	Rounds
	run  int
	left uint32 // tensors of the run that are left
}

// next moves to the next run that has tensors, if the present one has none left; false at the end.
func (c *cursor) next() bool {
	for c.left == 0 {
		if c.run++; c.run >= min(len(c.Counts), len(c.Last)) {
			return false
		}
		c.left = c.Counts[c.run]
	}
	return true
}

// FirstRounds returns the first round of each tensor under a new plan, from what all workers have promised: the one after the
// newest that any of them had begun. A tensor keeps its plan (NoRound) if one of them excepts it. The list ends where the shortest promise does.
func FirstRounds(promises []Rounds) (first Rounds) {
	newest := MostRounds(promises)
	for i, round := range newest.Last {
		if round < NoRound {
			newest.Last[i]++
		}
	}
	for i, n := range newest.Counts {
		first.add(n, newest.Last[i])
	}
	return first
}

// MostRounds returns the largest number of each tensor in any of the lists. It ends where the shortest of them does.
func MostRounds(lists []Rounds) (most Rounds) {
	cursors := make([]cursor, len(lists))
	for i, p := range lists {
		cursors[i] = cursor{Rounds: p, run: -1}
	}
	for len(cursors) > 0 {
		count, newest := uint32(MaxTensors), uint64(0)
		for i := range cursors {
			c := &cursors[i]
			if !c.next() {
				return most
			}
			count, newest = min(count, c.left), max(newest, c.Last[c.run])
		}
		if !most.add(count, newest) {
			return most
		}
		for i := range cursors {
			cursors[i].left -= count
		}
	}
	return most
}
