package wire

// maxRoundRuns bounds the bytes of Rounds. Tensors that are pushed together have the same last round, so that a
// program needs a few runs.
const maxRoundRuns = 4096

// Rounds are the last rounds of a worker's tensors, by id from 0: Last[i] is that of the next Counts[i] tensors.
type Rounds struct {
	Counts []uint32
	Last   []uint64
}

// Add appends the next tensor's last round; false: there is no place for more.
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

// Of gives the last round of a tensor; false where that is not known.
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
