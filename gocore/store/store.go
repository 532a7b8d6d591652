// Package store keeps the weights of the tensors that an aggregator sums, packet by packet: it applies sums and pushes to
// them by an optimiser's rule, and says when a push may be applied. It is pure: contributions go in, replies come out.
//
// A packet's weights lie in the buffer that is sent out. No buffer is written after it was handed out: the new weights are
// made in the buffer of the gradient, which nobody else holds, and the old ones go back to the pool when their last reply has
// left. So no update tears a reply, and nothing is copied.
package store

import (
	"fmt"
	"slices"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/fault"
	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// Store holds the weights of one aggregator. It is not safe for concurrent use.
type Store struct {
	workers int
	pool    *aggregate.Pool
	tensors map[uint32]*tensor
	waits   int // contributions that wait for slower workers
	now     time.Time
	told    time.Time
	scratch [2 * wire.PacketBytes]byte // a packet of 16-bit floats as float32
}

// tensor is what all packets of a tensor share.
type tensor struct {
	policy wire.Policy
	dtype  wire.DType
	codec  wire.Codec
	rule   *Rule // nil: sums are handed on as they are (Sync), or pushes are added
	pieces map[uint32]*piece
	before []uint64 // what the clock of each worker had when Resume was called, less its rounds since round 0; nil: nothing
}

// piece is one packet of a tensor.
type piece struct {
	value  *aggregate.Buffer // what is sent; nil once this is known to be a plain sum
	master []byte            // of a Wide type the value in float32, nil before the first update; else nil
	state  [maxStates][]byte // the optimiser's, as many as the rule has, nil before the first update
	rate   float64           // the learning rate
	steps  uint64            // updates since the rule was set

	round   uint64   // Sync: the round that was applied last
	arrived []uint64 // else: each worker's round that arrived last
	waiting []held   // of those the ones that are not applied yet, at most one of each worker
}

// New makes an empty store of an aggregator for so many workers. now is the time, until Tick tells the next.
func New(workers int, pool *aggregate.Pool, now time.Time) *Store {
	return &Store{workers: workers, pool: pool, tensors: map[uint32]*tensor{}, now: now, told: now}
}

// Complete takes the sum of all workers' contributions and makes it what they receive: the weights, where the tensor has a
// rule. Round 0 is the initial value. On an error the sum is no more.
func (s *Store) Complete(sum *aggregate.Sum) error {
	h := &sum.Header
	if h.Round == 0 {
		s.begin(sum)
		return nil
	}
	t, p, err := s.find(h, sum.Policy)
	if err == nil && p.round+1 != h.Round {
		err = fmt.Errorf("tensor %d packet %d: round %d is complete after round %d", h.Tensor, h.Packet, h.Round, p.round)
	}
	if err != nil {
		if sum.Buffer != nil {
			sum.Buffer.Release()
		}
		return err
	}
	p.round = h.Round
	if sum.Rated && t.rule != nil {
		p.rate = float64(sum.LearningRate)
	}
	switch {
	case t.codec == wire.CodecRows:
		s.completeRows(t, p, sum)
	case t.rule == nil:
		p.forget()
	case h.Flags&wire.FlagClash == 0:
		if sum.Buffer != nil {
			s.update(t, p, sum.Buffer)
		}
		p.value.Retain(1)
		sum.Buffer, h.WireLen = p.value, h.RawLen
	}
	return nil
}

// begin keeps the initial value of a packet.
func (s *Store) begin(sum *aggregate.Sum) {
	h := &sum.Header
	t := s.tensors[h.Tensor]
	if t == nil {
		t = &tensor{policy: sum.Policy, dtype: h.DType, codec: h.Codec, pieces: map[uint32]*piece{}}
		s.tensors[h.Tensor] = t
	}
	p := &piece{value: sum.Buffer}
	if p.value == nil {
		p.value = s.pool.Get(int(h.RawLen))
		clear(p.value.Bytes)
	} else if h.Codec != wire.CodecRows {
		p.value.Retain(1)
	} else {
		sum.Buffer, h.WireLen = nil, 0
	}
	if sum.Policy != wire.Sync {
		p.arrived = make([]uint64, s.workers)
	}
	t.pieces[h.Packet] = p
}

// find gives a packet to which such a contribution is possible.
func (s *Store) find(h *wire.Header, policy wire.Policy) (*tensor, *piece, error) {
	t := s.tensors[h.Tensor]
	if t == nil || t.pieces[h.Packet] == nil {
		return nil, nil, fmt.Errorf("tensor %d packet %d: a push before it was initialised", h.Tensor, h.Packet)
	}
	p := t.pieces[h.Packet]
	if t.dtype != h.DType || t.policy != policy || t.codec != h.Codec ||
		t.codec == wire.CodecPlain && p.value != nil && len(p.value.Bytes) != int(h.RawLen) {
		return nil, nil, fmt.Errorf("tensor %d packet %d: %d bytes of %v, codec %d, %v, but it is of %v, codec %d, %v",
			h.Tensor, h.Packet, h.RawLen, h.DType, h.Codec, policy, t.dtype, t.codec, t.policy)
	}
	return t, p, nil
}

// forget ends the keeping of a plain sum's initial value.
func (p *piece) forget() {
	if p.value != nil {
		p.value.Release()
		p.value = nil
	}
}

// update applies a gradient, or adds a push, to a packet. It takes gradient over.
func (s *Store) update(t *tensor, p *piece, gradient *aggregate.Buffer) {
	p.steps++
	old := p.value
	switch {
	case reduce.Wide(t.dtype):
		p.value = s.updateWide(t, p, gradient)
	case t.rule == nil:
		reduce.Add(t.dtype, gradient.Bytes, old.Bytes)
		p.value = gradient
	default:
		p.ready(t)
		t.rule.step(t.dtype, gradient.Bytes, gradient.Bytes, old.Bytes, p)
		p.value = gradient
	}
	old.Release()
}

// updateWide does it in float32, so that small steps are not lost, and gives the value that is sent.
func (s *Store) updateWide(t *tensor, p *piece, gradient *aggregate.Buffer) *aggregate.Buffer {
	p.ready(t)
	if t.rule == nil {
		reduce.AddWide(t.dtype, p.master, gradient.Bytes)
	} else {
		wide := s.scratch[:len(p.master)]
		reduce.Widen(t.dtype, wide, gradient.Bytes)
		t.rule.step(wire.Float32, p.master, wide, p.master, p)
	}
	gradient.Release() // whose memory is of the size of a sum in float32
	value := s.pool.Get(len(p.value.Bytes))
	reduce.Narrow(t.dtype, value.Bytes, p.master)
	return value
}

// ready makes what the first update of a packet needs.
func (p *piece) ready(t *tensor) {
	d, weights := t.dtype, p.value.Bytes
	if reduce.Wide(d) {
		if p.master == nil {
			p.master = make([]byte, reduce.AccBytes(d, len(weights)))
			reduce.Widen(d, p.master, weights)
		}
		d, weights = wire.Float32, p.master
	}
	for i := range t.rule.states() {
		if p.state[i] == nil {
			p.state[i] = make([]byte, len(weights))
			t.rule.fill(d, p.state[i])
		}
	}
}

// SetRule has the tensor's packets updated by rule from now on. The optimiser's state stays where the kind is the same.
func (s *Store) SetRule(id uint32, rule Rule) error {
	t := s.tensors[id]
	switch {
	case t == nil:
		return fault.New(fault.Key, "the tensor is not initialised")
	case !Updatable(t.dtype):
		return fault.New(fault.Type, "no optimiser works on %v", t.dtype)
	case t.rule == nil && t.pushed():
		return fault.New(fault.Value, "a worker has pushed it already: set the optimiser before the first push")
	}
	other := t.rule == nil || t.rule.Kind != rule.Kind
	t.rule = &rule
	for _, p := range t.pieces {
		p.rate = rule.Rate
		if other {
			p.state, p.steps = [maxStates][]byte{}, 0
		}
	}
	return nil
}

// pushed tells whether a round after the initial one has come.
func (t *tensor) pushed() bool {
	for _, p := range t.pieces {
		if p.round > 0 || p.arrived != nil && slices.Max(p.arrived) > 0 {
			return true
		}
	}
	return false
}

// Updatable tells whether optimisers work on a type.
func Updatable(d wire.DType) bool {
	return reduce.CanUpdate(d) || d == wire.Float16 || d == wire.BFloat16
}

// Clock gives the rounds of each worker that are applied to all packets of a tensor that are here; nil for an unknown one.
func (s *Store) Clock(id uint32) []uint64 {
	t := s.tensors[id]
	if t == nil {
		return nil
	}
	clock := slices.Repeat([]uint64{1<<64 - 1}, s.workers)
	for _, p := range t.pieces {
		for rank := range clock {
			clock[rank] = min(clock[rank], p.applied(rank))
		}
	}
	for rank := range t.before {
		clock[rank] += t.before[rank]
	}
	return clock
}

// applied is the round of a worker that was applied last.
func (p *piece) applied(rank int) uint64 {
	switch {
	case p.arrived == nil:
		return p.round
	case p.waits(rank):
		return p.arrived[rank] - 1
	}
	return p.arrived[rank]
}

// Held is the number of buffers that the store itself holds.
func (s *Store) Held() int {
	n := 0
	for _, t := range s.tensors {
		for _, p := range t.pieces {
			if p.value != nil {
				n++
			}
			for _, w := range p.waiting {
				if w.gradient != nil {
					n++
				}
			}
		}
	}
	return n
}
