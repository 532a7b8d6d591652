// Package aggregate sums packets: it records which workers have contributed, and
// makes the sum when a packet is complete. It is pure: contributions go in, sums come out.
//
// Each packet that this node sums has at most two slots, for the rounds r and r+1. More
// are not needed, because a worker has one round of a tensor under way at a time: it
// starts round r+2 only when its round r+1 is complete, so every worker has
// contributed to r+1, so every worker has all of round r. A slot is there from the first
// contribution to the last; of a complete round only the number stays. The send loop may still
// read the sum then: buffers are counted, and the next round takes another one.
//
// After the death of a worker the others may repeat rounds, in a new epoch (Members): a contribution of a later epoch discards what
// this node has of the round, which may even have been complete here.
package aggregate

import (
	"bytes"
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
	Plan         uint16      // of the contributions
	LearningRate float32     // that a contribution has set, if Rated
	Rated        bool        // a contribution has set LearningRate
	Rows         Rows        // of a table: the rows that a worker pushed; valid until the next call of Add or AddEmpty
}

// ErrStale is the error for a contribution to a complete round. It changes nothing.
var ErrStale = errors.New("contribution to a round that is complete")

// Slots holds the slots of one aggregator. It is not safe for concurrent use.
type Slots struct {
	members *Members
	pool    *Pool
	packets map[packetID]*packet
	open    slot    // head of the ring of slots in use, by due; see stall.go
	free    []*slot // slots for later rounds, at most maxFree
	ended   []*slot // of tables, whose sums the last call returned with their rows: free from the next call on
	now     time.Time
	// Recovers: workers may die. Those that have begun a round under another plan are dead then, as no living one has heard of it, and
	// the others repeat the round.
	Recovers bool

	kept    map[packetID]*kept // sums that workers have; see kept.go
	recalls []Recall           // of the last call
}

// maxFree bounds the slots that are not in use: enough for the packets that are under way at a time if the workers push at
// about the same time. After a worker that was far ahead, the others go.
const maxFree = 1024

var zeros [wire.PacketBytes]byte

// packetID names a packet of a tensor, in all rounds.
type packetID struct {
	tensor, packet uint32
}

// packet is what lasts from round to round. It is small, since an aggregator has one for each packet of a model.
type packet struct {
	slots    [2]*slot // of the rounds under way, at the round's number modulo 2; nil: none
	complete uint64   // rounds with lower numbers are complete
	epoch    uint16   // of the last one of these
}

// slot is one round of one packet, from the first contribution to the last. It is in the ring Slots.open.
type slot struct {
	round    uint64
	epoch    uint16
	from     ranks   // that have contributed
	count    int     // of them
	workers  int     // of the epoch
	acc      *Buffer // the sum so far but for lent, nil while it is all zeros
	lent     []byte  // the elements of a contribution that is added once there is an accumulator; nil: none
	op       wire.Op
	opKnown  bool  // a Contrib has named op; an Empty names none
	clash    bool  // contributions named different operations
	priority int32 // the highest of all contributions

	prev, next *slot // in the ring of open slots
	of         *packet
	tensor     uint32
	due        time.Time // when Tick inspects it
	dtype      wire.DType
	raw        uint32 // bytes of the packet's elements
	codec      wire.Codec
	rows       Rows // of a table: the rows that acc holds, or held

	ordered bool   // contributions are added in the order of ranks; see ordered.go
	prefix  int    // if ordered: the number of ranks, from 0 on without a gap, that have contributed
	held    []held // contributions that are not added yet, by rank

	policy wire.Policy
	plan   uint16
	rate   float32
	rated  bool
}

// NewSlots makes the slots of an aggregator. now is the time until the first Tick.
func NewSlots(members *Members, pool *Pool, now time.Time) *Slots {
	t := &Slots{members: members, pool: pool, packets: map[packetID]*packet{}, kept: map[packetID]*kept{}, now: now}
	t.open.prev, t.open.next = &t.open, &t.open
	return t
}

// Add takes the contribution h of worker rank, whose elements are payload. If
// payload lies in a buffer of the pool, owned is that buffer: Add takes it over,
// also with an error. If owned is nil, payload must not change until the round is complete,
// so that it need not be copied; in round 0 Add reads it during the call only. done
// reports whether this was the last contribution; sum is then the packet's sum.
//
// Zeros in round 0, with which programs declare gradients, take no memory.
//
// ErrStale and a repetition (done false, no error) change nothing. Any other
// error means that the peer breaks the protocol.
func (t *Slots) Add(rank int, h *wire.Header, payload []byte, owned *Buffer) (sum Sum, done bool, err error) {
	defer func() {
		if owned != nil {
			owned.Release()
		}
	}()
	t.forgetLast()
	if !reduce.Supported(h.DType) || h.Op == wire.OpMean && !reduce.CanDivide(h.DType) {
		return Sum{}, false, fmt.Errorf("tensor %d: this node cannot do operation %d on %v", h.Tensor, h.Op, h.DType)
	}
	raw := h.RawLen
	if h.Codec == wire.CodecRows {
		raw = wire.PacketBytes
	}
	s, err := t.slot(rank, h, h.Packet, raw)
	if s == nil || err != nil {
		return Sum{}, false, err
	}
	if s.opKnown && s.op != h.Op {
		s.clash = true
	}
	s.op, s.opKnown = h.Op, true
	kept := false
	if s.ordered {
		kept, err = t.hold(s, rank, h, payload, owned)
	} else {
		kept, err = t.take(s, h, payload, owned)
	}
	if kept {
		owned = nil
	}
	if err != nil {
		return Sum{}, false, err
	}
	sum, done = t.count(s, rank, h, h.Packet)
	return sum, done, nil
}

// take adds a contribution to the slot's sum, or lends it. It reports whether the slot keeps owned.
func (t *Slots) take(s *slot, h *wire.Header, payload []byte, owned *Buffer) (kept bool, err error) {
	switch {
	case h.Codec == wire.CodecRows:
		return false, t.addRows(s, h, payload)
	case isInitialZeros(h, payload):
	case s.acc == nil && owned == nil && s.lent == nil && h.Round > 0 && s.count+1 < s.workers:
		s.lent = payload
	default:
		kept = t.add(s, payload, owned)
		t.addLent(s)
	}
	return kept, nil
}

// isInitialZeros reports whether a contribution is zeros in round 0.
func isInitialZeros(h *wire.Header, payload []byte) bool {
	return h.Round == 0 && len(payload) <= len(zeros) && bytes.Equal(payload, zeros[:len(payload)])
}

// add adds elements to the slot's sum. It reports whether it has made their buffer, owned, the accumulator.
func (t *Slots) add(s *slot, elements []byte, owned *Buffer) (kept bool) {
	wide := reduce.Wide(s.dtype)
	switch {
	case s.acc == nil && wide:
		s.acc = t.pool.Get(reduce.AccBytes(s.dtype, len(elements)))
		reduce.Widen(s.dtype, s.acc.Bytes, elements)
	case s.acc == nil && owned != nil:
		s.acc = owned
		return true
	case s.acc == nil:
		s.acc = t.pool.Get(len(elements))
		copy(s.acc.Bytes, elements)
	case wide:
		reduce.AddWide(s.dtype, s.acc.Bytes, elements)
	default:
		reduce.Add(s.dtype, s.acc.Bytes, elements)
	}
	return false
}

// addLent adds what the slot has lent.
func (t *Slots) addLent(s *slot) {
	if s.lent != nil {
		t.add(s, s.lent, nil)
		s.lent = nil
	}
}

// AddEmpty takes zeros from worker rank for h.Run packets and appends to sums
// the sums of the packets that are complete with them.
func (t *Slots) AddEmpty(rank int, h *wire.Header, sums []Sum) ([]Sum, error) {
	t.forgetLast()
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

// slot finds the slot of a packet for h's round, and begins the round if this is the first
// contribution. It returns nil if rank has contributed already.
func (t *Slots) slot(rank int, h *wire.Header, number, raw uint32) (*slot, error) {
	now := t.members.now.Load()
	if err := now.check(rank, h.Epoch); err != nil {
		return nil, err
	}
	id := packetID{h.Tensor, number}
	p := t.packet(id)
	t.discard(id, p, h)
	s := p.slots[h.Round%2]
	switch {
	case h.Round < p.complete || s != nil && (h.Round < s.round || h.Epoch < s.epoch):
		t.owe(id, rank, h.Round)
		return nil, ErrStale
	case s == nil:
		s = t.begin(p, h, raw, now)
	case h.Round > s.round:
		return nil, fmt.Errorf("tensor %d packet %d: round %d arrives before round %d is complete", h.Tensor, number, h.Round, s.round)
	case s.from.has(rank), t.Recovers && s.plan != h.Plan:
		return nil, nil
	}
	if s.plan != h.Plan {
		return nil, fmt.Errorf("tensor %d packet %d round %d: this worker sent it under plan %d, others under plan %d", h.Tensor, number, h.Round, h.Plan, s.plan)
	}
	if s.dtype != h.DType || s.raw != raw || s.codec != h.Codec || s.policy != h.Policy {
		return nil, fmt.Errorf("tensor %d packet %d: this worker sent %d bytes of %v, codec %d, %v, others %d bytes of %v, codec %d, %v",
			h.Tensor, number, raw, h.DType, h.Codec, h.Policy, s.raw, s.dtype, s.codec, s.policy)
	}
	return s, nil
}

// discard discards what is here of an earlier epoch, if it is of h's round or of later ones: the workers repeat them. An earlier round that is
// still open here has ended at another aggregator: a dead worker had begun it under an earlier plan.
func (t *Slots) discard(id packetID, p *packet, h *wire.Header) {
	if h.Round < p.complete && h.Epoch > p.epoch {
		p.complete = h.Round
		delete(t.kept, id)
	}
	if s := p.slots[h.Round%2]; s != nil && h.Epoch > s.epoch {
		t.giveUp(s)
	}
}

// packet finds or makes what lasts of a packet.
func (t *Slots) packet(id packetID) *packet {
	p := t.packets[id]
	if p == nil {
		p = new(packet)
		t.packets[id] = p
	}
	return p
}

// forgetLast frees what the results of the last call referred to: the slots with rows of its sums, and its recalls.
func (t *Slots) forgetLast() {
	t.recalls = t.recalls[:0]
	for _, s := range t.ended {
		t.recycle(s)
	}
	t.ended = nil
}

// recycle keeps a slot for a later round, if there are not enough.
func (t *Slots) recycle(s *slot) {
	if len(t.free) < maxFree {
		t.free = append(t.free, s)
	}
}

// begin makes p's slot for h's round.
func (t *Slots) begin(p *packet, h *wire.Header, raw uint32, now *members) *slot {
	if len(t.free) == 0 {
		t.free = append(t.free, new(slot))
	}
	last := len(t.free) - 1
	s := t.free[last]
	t.free = t.free[:last]
	*s = slot{
		round: h.Round, epoch: h.Epoch, workers: now.size(h.Epoch), from: s.from.cleared(now.ranks()), priority: h.Priority, of: p, tensor: h.Tensor,
		dtype: h.DType, raw: raw, codec: h.Codec, rows: s.rows.cleared(), policy: h.Policy, plan: h.Plan,
		ordered: h.Policy == wire.Ordered && reduce.OrderMatters(h.DType), held: s.held,
	}
	p.slots[h.Round%2] = s
	t.watch(s)
	return s
}

// count records rank's contribution and, if it was the last, makes the sum and frees the slot.
func (t *Slots) count(s *slot, rank int, h *wire.Header, number uint32) (Sum, bool) {
	s.from.add(rank)
	s.count++
	s.priority = max(s.priority, h.Priority)
	if h.Flags&wire.FlagLearningRate != 0 {
		s.rate, s.rated = h.LearningRate, true
	}
	if s.ordered {
		t.addInOrder(s)
	}
	if s.count < s.workers {
		return Sum{}, false
	}
	t.addLent(s)
	s.unwatch()
	s.of.complete, s.of.epoch, s.of.slots[s.round%2] = s.round+1, s.epoch, nil
	delete(t.kept, packetID{s.tensor, number}) // all workers have the sum of the round before
	if s.codec == wire.CodecRows {
		t.ended = append(t.ended, s)
	} else {
		t.recycle(s)
	}
	sum := Sum{Header: wire.Header{
		Kind: wire.Sum, DType: s.dtype, Op: s.op, Codec: s.codec, Tensor: h.Tensor, Packet: number, Run: 1, Round: s.round, Epoch: s.epoch,
		Priority: s.priority, Contributors: uint16(s.count), RawLen: s.raw,
	}, Policy: s.policy.Applied(), Plan: s.plan, LearningRate: s.rate, Rated: s.rated, Rows: s.rows}
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

// finish divides acc for a mean, converts it to the tensor's type and stores it in sum.
func (s *slot) finish(acc *Buffer, sum *Sum) {
	wide := reduce.Wide(s.dtype)
	if s.op == wire.OpMean {
		scaled := s.dtype
		if wide {
			scaled = wire.Float32
		}
		reduce.Divide(scaled, acc.Bytes, s.count)
	}
	if wide {
		if s.ordered {
			reduce.NarrowRepeatably(s.dtype, acc.Bytes[:s.raw], acc.Bytes, s.round<<32|uint64(sum.Header.Packet))
		} else {
			reduce.Narrow(s.dtype, acc.Bytes[:s.raw], acc.Bytes)
		}
		acc.Bytes = acc.Bytes[:s.raw]
	}
	sum.Buffer, sum.Header.WireLen = acc, s.raw
}
