// Package aggregate sums packets: who has contributed, when a packet is
// complete, what its sum is. It is pure: a packet goes in, sums come out.
//
// Each packet that this node sums has two slots, for the rounds r and r+1. No
// more are needed (idea 6): a worker starts round r+2 only when its round r+1 is
// complete, so every worker has contributed to r+1, so every worker has all of
// round r. A slot is free by these numbers alone, whatever the send loop still
// has in hand: buffers are counted, and the new round takes another one.
package aggregate

import (
	"errors"
	"fmt"
	"time"

	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// Sum is a finished packet.
type Sum struct {
	Header wire.Header
	Buffer *Buffer // held once for the receiver of the Sum; nil where Header.WireLen is 0

	Policy       wire.Policy // of the tensor
	LearningRate float32     // what a contribution said of it
	Rated        bool        // one did
	Rows         Rows        // of a table: those that somebody pushed; valid until the packet's next round but one
}

// ErrStale is a contribution to a round that is long complete. It does no harm.
var ErrStale = errors.New("contribution to a round that is complete")

// Table holds the slots of one aggregator. It is not safe for concurrent use.
type Table struct {
	workers int
	pool    *Pool
	slots   map[name]*[2]slot
	open    int // slots that have some contributions but not all
	now     time.Time
	told    time.Time
}

// name is a packet of a tensor: (tensor, packet) without the round.
type name struct {
	tensor, packet uint32
}

// slot is one round of one packet.
// Invariants: used and not whole <=> it counts in Table.open; acc != nil only while not whole.
type slot struct {
	used  bool
	whole bool // the sum has left; what stays is who contributed, to know a repetition
	round uint64
	from  ranks
	count int
	acc   *Buffer // the sum so far, nil while it is all zeros
	op    wire.Op
	named bool // op is known: Empty does not name one
	clash bool
	prio  int32
	since time.Time
	dtype wire.DType
	raw   uint32
	codec wire.Codec
	rows  Rows // of a table: that are in acc

	policy wire.Policy
	rate   float32
	rated  bool
}

// NewTable makes the slots of an aggregator for so many workers. now is the time,
// until Tick tells the next.
func NewTable(workers int, pool *Pool, now time.Time) *Table {
	return &Table{workers: workers, pool: pool, slots: map[name]*[2]slot{}, now: now, told: now}
}

// Add takes the contribution h of worker rank, whose elements are payload. Where
// they lie in a buffer of the pool, owned is that buffer, which Add takes over
// whatever it returns; else payload is only read during the call. done is true
// when this was the last contribution, and sum is then the packet's sum.
//
// ErrStale and a repetition (done false, no error) change nothing. Any other
// error means that the peer breaks the protocol.
func (t *Table) Add(rank int, h *wire.Header, payload []byte, owned *Buffer) (sum Sum, done bool, err error) {
	defer func() {
		if owned != nil {
			owned.Release()
		}
	}()
	if !reduce.Supported(h.DType) || h.Op == wire.OpMean && !reduce.CanDivide(h.DType) {
		return Sum{}, false, fmt.Errorf("tensor %d: operation %d of %v is not possible on this node", h.Tensor, h.Op, h.DType)
	}
	raw := h.RawLen
	if h.Codec == wire.CodecRows {
		raw = wire.PacketBytes
	}
	s, err := t.slot(rank, h, h.Packet, raw)
	if s == nil || err != nil {
		return Sum{}, false, err
	}
	if s.named && s.op != h.Op {
		s.clash = true
	}
	s.op, s.named = h.Op, true
	switch {
	case h.Codec == wire.CodecRows:
		if err := t.addRows(s, h, payload); err != nil {
			return Sum{}, false, err
		}
	case s.acc == nil && reduce.Wide(h.DType):
		s.acc = t.pool.Get(reduce.AccBytes(h.DType, len(payload)))
		reduce.Widen(h.DType, s.acc.Bytes, payload)
	case s.acc == nil && owned != nil: // the first whole packet becomes the slot
		s.acc, owned = owned, nil
	case s.acc == nil:
		s.acc = t.pool.Get(len(payload))
		copy(s.acc.Bytes, payload)
	case reduce.Wide(h.DType):
		reduce.AddWide(h.DType, s.acc.Bytes, payload)
	default:
		reduce.Add(h.DType, s.acc.Bytes, payload)
	}
	sum, done = t.count(s, rank, h, h.Packet)
	return sum, done, nil
}

// AddEmpty takes zeros from worker rank for h.Run packets and appends to sums
// those that are thereby complete.
func (t *Table) AddEmpty(rank int, h *wire.Header, sums []Sum) ([]Sum, error) {
	stale := true
	for p := h.Packet; p < h.Packet+h.Run; p++ {
		raw := uint32(wire.PacketBytes)
		if p == h.Packet+h.Run-1 {
			raw = h.RawLen
		}
		s, err := t.slot(rank, h, p, raw)
		if err == ErrStale {
			continue
		}
		if err != nil {
			return sums, err
		}
		stale = false
		if s == nil {
			continue
		}
		if sum, done := t.count(s, rank, h, p); done {
			sums = append(sums, sum)
		}
	}
	if stale {
		return sums, ErrStale
	}
	return sums, nil
}

// slot finds the slot of packet in h's round, free for a contribution of rank;
// nil when rank has contributed already.
func (t *Table) slot(rank int, h *wire.Header, packet, raw uint32) (*slot, error) {
	if rank < 0 || rank >= t.workers {
		return nil, fmt.Errorf("a contribution of rank %d in a cluster of %d workers", rank, t.workers)
	}
	key := name{h.Tensor, packet}
	pair := t.slots[key]
	if pair == nil {
		pair = new([2]slot)
		pair[0].from, pair[1].from = newRanks(t.workers), newRanks(t.workers)
		t.slots[key] = pair
	}
	s := &pair[h.Round%2]
	switch {
	case s.used && s.round > h.Round:
		return nil, ErrStale
	case s.used && s.round < h.Round && !s.whole:
		return nil, fmt.Errorf("tensor %d packet %d: round %d arrives before round %d is complete", h.Tensor, packet, h.Round, s.round)
	case !s.used || s.round < h.Round:
		*s = slot{
			used: true, round: h.Round, from: s.from.cleared(), prio: h.Priority, since: t.now,
			dtype: h.DType, raw: raw, codec: h.Codec, rows: s.rows.cleared(), policy: h.Policy(),
		}
		t.open++
	case s.from.has(rank):
		return nil, nil
	}
	if s.dtype != h.DType || s.raw != raw || s.codec != h.Codec || s.policy != h.Policy() {
		return nil, fmt.Errorf("tensor %d packet %d: %d bytes of %v, codec %d, %v, others sent %d of %v, codec %d, %v",
			h.Tensor, packet, raw, h.DType, h.Codec, h.Policy(), s.raw, s.dtype, s.codec, s.policy)
	}
	return s, nil
}

// count notes rank's contribution and, where it was the last, makes the sum.
func (t *Table) count(s *slot, rank int, h *wire.Header, packet uint32) (Sum, bool) {
	s.from.add(rank)
	s.count++
	s.prio = max(s.prio, h.Priority)
	if h.Flags&wire.FlagLearningRate != 0 {
		s.rate, s.rated = h.LearningRate, true
	}
	if s.count < t.workers {
		return Sum{}, false
	}
	s.whole = true
	t.open--
	sum := Sum{Header: wire.Header{
		Kind: wire.Sum, DType: s.dtype, Op: s.op, Codec: s.codec, Tensor: h.Tensor, Packet: packet, Run: 1, Round: s.round,
		Epoch: h.Epoch, Plan: h.Plan, Generation: h.Generation,
		Priority: s.prio, Contributors: uint16(s.count), RawLen: s.raw,
	}, Policy: s.policy, LearningRate: s.rate, Rated: s.rated, Rows: s.rows}
	acc := s.acc
	s.acc = nil
	switch {
	case acc == nil:
	case s.clash:
		sum.Header.Flags |= wire.FlagClash
		acc.Release()
	default:
		s.finish(acc, &sum)
	}
	return sum, true
}

// finish scales acc, turns it back into the tensor's type and hands it to sum.
func (s *slot) finish(acc *Buffer, sum *Sum) {
	wide := reduce.Wide(s.dtype)
	if s.op == wire.OpMean {
		scaled := s.dtype
		if wide {
			scaled = wire.Float32
		}
		reduce.Divide(scaled, acc.Bytes, s.count)
		sum.Header.Flags |= wire.FlagScaled
	}
	if wide {
		reduce.Narrow(s.dtype, acc.Bytes[:s.raw], acc.Bytes)
		acc.Bytes = acc.Bytes[:s.raw]
	}
	sum.Buffer, sum.Header.WireLen = acc, s.raw
}
