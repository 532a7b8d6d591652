package plan

import (
	"cmp"
	"slices"

	"fptps/gocore/wire"
)

// Tally cuts the tensors of a model, one after another, so that the bytes of each aggregator
// follow its share, those of small tensors too. Nodes that cut tensors of the same sizes in the same order make the
// same cuts.
type Tally struct {
	plan *Plan
	// owed is, for each aggregator, its share of the bytes of all tensors so far, less the
	// bytes that it sums, times the plan's total. The sum over all aggregators is 0.
	owed []int64
}

// NewTally returns a Tally without tensors.
func NewTally(p *Plan) *Tally { return &Tally{p, make([]int64, len(p.shares))} }

// Owed returns what a Tally has counted so far. ResumeTally continues from it: both make the same next cuts.
func (t *Tally) Owed() []int64 { return slices.Clone(t.owed) }

// ResumeTally is described at Owed.
func ResumeTally(p *Plan, owed []int64) *Tally {
	t := NewTally(p)
	copy(t.owed, owed)
	return t
}

// Cut appends to runs the cut of the next tensor, of size bytes: at most one run per
// aggregator, in ascending order of packets; together they hold every packet once.
//
// Each aggregator gets the whole packets that it is owed, and those that are owed most
// beyond these get one more. So none gets a packet or more in excess of its share. The last run, with the
// packet that may be short, goes to the aggregator that is then owed least.
func (t *Tally) Cut(size uint64, runs []Run) []Run {
	for i, s := range t.plan.shares {
		t.owed[i] += int64(uint64(s.Share) * size) // below 2^61: MaxShare times MaxTensorBytes
	}
	packets := wire.Packets(size)
	counts, order := t.divide(packets)
	first := uint32(0)
	for _, i := range order {
		if counts[i] == 0 {
			continue
		}
		end := first + counts[i]
		bytes := min(size, uint64(end)*wire.PacketBytes) - uint64(first)*wire.PacketBytes
		t.owed[i] -= int64(t.plan.total * bytes)
		runs = append(runs, Run{Node: t.plan.shares[i].Node, First: first, Count: counts[i]})
		first = end
	}
	return runs
}

// divide returns how many packets each aggregator gets, and the aggregators in the order in
// which their runs follow each other.
func (t *Tally) divide(packets uint32) (counts []uint32, order []int) {
	packet := int64(t.plan.total) * wire.PacketBytes
	counts = make([]uint32, len(t.owed))
	rest := slices.Clone(t.owed)
	for _, i := range mostFirst(rest) {
		counts[i] = min(packets, uint32(max(0, rest[i]/packet)))
		packets -= counts[i]
		rest[i] -= int64(counts[i]) * packet
	}
	// All of them together are owed more than packets-1, and each now less than 1.
	for _, i := range mostFirst(rest)[:packets] {
		counts[i]++
		rest[i] -= packet
	}
	return counts, mostFirst(rest)
}

// mostFirst lists the aggregators by what they are owed, and equals in the plan's order.
func mostFirst(owed []int64) []int {
	order := make([]int, len(owed))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(owed[b], owed[a]) })
	return order
}
