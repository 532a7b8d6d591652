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
}

// Add appends the next tensor's round; false: there is no place for more.
func (r *Rounds) Add(last uint64) bool {
	end := len(r.Last) - 1
	switch {
	case end >= 0 && r.Last[end] == last:
		r.Counts[end]++
	case end+1 == maxRoundRuns:
		return false
	default:
		r.Counts, r.Last = append(r.Counts, 1), append(r.Last, last)
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

// Len is the number of tensors.
func (r Rounds) Len() (n uint64) {
	for _, count := range r.Counts {
		n += uint64(count)
	}
	return n
}

// FirstRounds returns the first round of each tensor under a new plan, from what all workers have promised: two after the newest
// that any of them had begun. It is NoRound for tensors that one of them excepts or does not list.
func FirstRounds(promises []Rounds) (first Rounds) {
	if len(promises) == 0 {
		return first
	}
	length := promises[0].Len()
	for _, p := range promises {
		length = min(length, p.Len(), MaxTensors)
	}
	for id := range uint32(length) {
		newest := uint64(0)
		for _, p := range promises {
			begun, known := p.Of(id)
			if !known {
				begun = NoRound
			}
			newest = max(newest, begun)
		}
		if newest < NoRound-2 {
			newest += 2
		} else {
			newest = NoRound
		}
		if !first.Add(newest) {
			break
		}
	}
	return first
}
