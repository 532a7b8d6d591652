// Package store keeps the weights of the tensors that an aggregator sums, packet by packet. It applies sums and pushes by an
// optimiser's rule, and decides when a push may be applied. It is pure: contributions go in, replies come out.
//
// A packet's weights lie in the buffer that is sent. No buffer is written after it was handed out: an update writes the new
// weights into the gradient's buffer, which the store alone holds, and the old weights' buffer returns to the pool after their
// last reply has left. So no reply is torn, and nothing is copied.
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
	// Recovers: after the death of an aggregator this one may get some of its packets, after that of a worker rounds may be repeated.
	Recovers bool
	// Replicates: the store of a dead aggregator is adopted by another one, so that workers repeat what they have no reply to.
	Replicates bool

	ranks          int          // of workers so far, those of dead ones included
	dead           map[int]bool // of these ranks
	pool           *aggregate.Pool
	tensors        map[uint32]*tensor
	waiting        map[*packet]uint32 // packets with contributions that wait for slower workers, and their tensors
	now            time.Time
	stallsReported time.Time
	scratch        [2 * wire.PacketBytes]byte // one packet of 16-bit floats, widened to float32
}

// tensor holds what its packets have in common.
type tensor struct {
	policy      wire.Policy
	dtype       wire.DType
	codec       wire.Codec
	rule        *Rule // nil: sums are passed on unchanged (Sync), or pushes are added
	packets     map[uint32]*packet
	clockOffset []uint64 // added to each worker's clock since Resume; nil before
}

// packet is the state of one packet of a tensor. Its value is the initial value until the first round, then the weights or,
// in a table that is a plain sum, the last sum; other plain sums have none then.
type packet struct {
	value    *aggregate.Buffer // as it is sent; nil: zeros, or none
	zeros    uint32            // the bytes of a value that is zeros and has no buffer; else 0
	plan     uint16            // number of the plan of the last applied round
	round    uint64            // Sync: the last applied round
	*weights                   // nil in a plain sum, which most models are made of
}

// weights is what a packet has besides its value if pushes update it.
type weights struct {
	master []byte            // for a wide type the weights in float32, nil before the first update
	state  [maxStates][]byte // the optimiser's arrays, nil before the first update
	rate   float64           // the learning rate
	steps  uint64            // updates since the rule was set

	incoming []uint16 // chunks that are still to come, of a packet that arrives from another aggregator

	arrived []uint64      // Bounded and Async: the last round that arrived from each worker
	waiting []pendingPush // those of arrived that are not applied yet, at most one per worker
}

// New makes an empty store for a cluster with workers of the given ranks, ascending. now is the current time; Tick updates it.
func New(ranks []int, pool *aggregate.Pool, now time.Time) *Store {
	s := &Store{dead: map[int]bool{}, pool: pool, tensors: map[uint32]*tensor{}, waiting: map[*packet]uint32{}, now: now, stallsReported: now}
	for _, rank := range ranks {
		s.Join(rank)
	}
	return s
}

// Complete takes the sum of all workers' contributions and replaces it by the reply: the new weights if the tensor has a
// rule, else the sum itself. Round 0 sets the initial value, and its reply is empty. After an error the sum is released.
func (s *Store) Complete(sum *aggregate.Sum) error {
	h := &sum.Header
	if h.Round == 0 {
		s.initPacket(sum)
		return nil
	}
	s.takeOver(sum)
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
		p.dropInitial()
	case h.Flags&wire.FlagClash == 0:
		if sum.Buffer != nil {
			s.update(t, p, sum.Buffer)
		}
		p.value.Retain(1)
		sum.Buffer, h.WireLen = p.value, h.RawLen
	}
	if t.rule != nil {
		h.Flags |= wire.FlagWeights
	}
	return nil
}

// takeOver prepares for the first round of a packet under a new plan, or after a death: another aggregator may have summed the rounds
// before, and the workers may repeat a round. A plain sum leaves nothing behind but the number of its round.
func (s *Store) takeOver(sum *aggregate.Sum) {
	h := &sum.Header
	t := s.tensors[h.Tensor]
	moves := sum.Plan > 0 || s.Recovers
	if t == nil && moves && sum.Policy == wire.Sync && h.Codec == wire.CodecPlain {
		t = s.newTensor(h.Tensor, sum.Policy, h.DType, h.Codec)
	}
	if t == nil || t.rule != nil || t.policy != wire.Sync || t.codec != wire.CodecPlain {
		return
	}
	p := t.packets[h.Packet]
	if p == nil && moves {
		p = &packet{}
		t.packets[h.Packet] = p
	}
	if p != nil && (s.Recovers || p.plan != sum.Plan && p.round < h.Round) {
		p.plan, p.round = sum.Plan, h.Round-1
	}
}

// newTensor makes a tensor without packets.
func (s *Store) newTensor(id uint32, policy wire.Policy, dtype wire.DType, codec wire.Codec) *tensor {
	t := &tensor{policy: policy, dtype: dtype, codec: codec, packets: map[uint32]*packet{}}
	s.tensors[id] = t
	return t
}

// initPacket stores the initial value of a packet. Zeros take no memory.
func (s *Store) initPacket(sum *aggregate.Sum) {
	h := &sum.Header
	t := s.tensors[h.Tensor]
	if t == nil {
		t = s.newTensor(h.Tensor, sum.Policy, h.DType, h.Codec)
	}
	if old := t.packets[h.Packet]; old != nil { // the workers repeat the round
		old.release()
	}
	p := &packet{value: sum.Buffer, plan: sum.Plan}
	if p.value == nil {
		p.zeros = h.RawLen
	}
	sum.Buffer, h.WireLen = nil, 0
	if sum.Policy != wire.Sync {
		s.keep(p)
		p.arrived = make([]uint64, s.ranks)
	}
	t.packets[h.Packet] = p
}

// keep makes p's value weights, which pushes update.
func (s *Store) keep(p *packet) {
	if p.weights == nil {
		p.weights = &weights{}
	}
	if p.value == nil {
		p.value, p.zeros = s.newZeros(p.zeros), 0
	}
}

func (s *Store) newZeros(n uint32) *aggregate.Buffer {
	b := s.pool.Get(int(n))
	clear(b.Bytes)
	return b
}

// Value gives the value of a packet of a tensor that is no table, in a buffer that the caller has to release.
func (s *Store) Value(id, number uint32) (wire.DType, *aggregate.Buffer, error) {
	t := s.tensors[id]
	if t == nil || t.codec == wire.CodecRows || !t.packets[number].hasValue() {
		return 0, nil, fmt.Errorf("tensor %d packet %d: a value that is not here is wanted", id, number)
	}
	p := t.packets[number]
	if p.value == nil {
		return t.dtype, s.newZeros(p.zeros), nil
	}
	p.value.Retain(1)
	return t.dtype, p.value, nil
}

func (p *packet) hasValue() bool { return p != nil && (p.value != nil || p.zeros > 0) }

// find returns the packet that a contribution is for, or an error if the two do not match.
func (s *Store) find(h *wire.Header, policy wire.Policy) (*tensor, *packet, error) {
	t := s.tensors[h.Tensor]
	if t == nil || t.packets[h.Packet] == nil {
		return nil, nil, fmt.Errorf("tensor %d packet %d: a push before its init", h.Tensor, h.Packet)
	}
	p := t.packets[h.Packet]
	if t.dtype != h.DType || t.policy != policy || t.codec != h.Codec ||
		t.codec == wire.CodecPlain && p.hasValue() && p.bytes() != int(h.RawLen) {
		return nil, nil, fmt.Errorf("tensor %d packet %d: %d bytes of %v, codec %d, %v, but it is of %v, codec %d, %v",
			h.Tensor, h.Packet, h.RawLen, h.DType, h.Codec, policy, t.dtype, t.codec, t.policy)
	}
	return t, p, nil
}

// bytes is the size of the value.
func (p *packet) bytes() int {
	if p.value == nil {
		return int(p.zeros)
	}
	return len(p.value.Bytes)
}

// dropInitial releases the initial value, which a plain sum does not need after round 0.
func (p *packet) dropInitial() {
	p.zeros = 0
	p.release()
}

// update applies a gradient to a packet, or adds a push. It takes ownership of gradient.
func (s *Store) update(t *tensor, p *packet, gradient *aggregate.Buffer) {
	p.steps++
	old := p.value
	switch {
	case reduce.Wide(t.dtype):
		p.value = s.updateWide(t, p, gradient)
	case t.rule == nil:
		reduce.Add(t.dtype, gradient.Bytes, old.Bytes)
		p.value = gradient
	default:
		p.allocateState(t)
		t.rule.step(t.dtype, gradient.Bytes, gradient.Bytes, old.Bytes, p.weights)
		p.value = gradient
	}
	old.Release()
}

// updateWide updates in float32, so that small steps are not rounded away, and returns the value to send.
func (s *Store) updateWide(t *tensor, p *packet, gradient *aggregate.Buffer) *aggregate.Buffer {
	p.allocateState(t)
	if t.rule == nil {
		reduce.AddWide(t.dtype, p.master, gradient.Bytes)
	} else {
		wide := s.scratch[:len(p.master)]
		reduce.Widen(t.dtype, wide, gradient.Bytes)
		t.rule.step(wire.Float32, p.master, wide, p.master, p.weights)
	}
	gradient.Release() // it cannot become the value: its memory has the size of a float32 sum
	value := s.pool.Get(len(p.value.Bytes))
	reduce.Narrow(t.dtype, value.Bytes, p.master)
	return value
}

// allocateState allocates the arrays that the first update of a packet needs.
func (p *packet) allocateState(t *tensor) {
	d, weights := t.dtype, p.value.Bytes
	if reduce.Wide(d) {
		if p.master == nil {
			p.master = make([]byte, reduce.AccBytes(d, len(weights)))
			reduce.Widen(d, p.master, weights)
		}
		d, weights = wire.Float32, p.master
	}
	for i := range t.rule.stateCount() {
		if p.state[i] == nil {
			p.state[i] = make([]byte, len(weights))
			t.rule.fill(d, p.state[i])
		}
	}
}

// SetRule sets the rule of a tensor from now on. The optimiser's state is kept if the kind is the same.
func (s *Store) SetRule(id uint32, rule Rule) error {
	t := s.tensors[id]
	switch {
	case t == nil:
		return fault.New(fault.Key, "the tensor is not initialised")
	case !Updatable(t.dtype):
		return fault.New(fault.Type, "no optimiser works on %v", t.dtype)
	case t.rule == nil && t.hasPushes():
		return fault.New(fault.Value, "a worker has pushed it already: set the optimiser before the first push")
	}
	other := t.rule == nil || t.rule.Kind != rule.Kind
	t.rule = &rule
	for _, p := range t.packets {
		s.keep(p)
		p.rate = rule.Rate
		if other {
			p.state, p.steps = [maxStates][]byte{}, 0
		}
	}
	return nil
}

// hasPushes reports whether any round after round 0 has arrived.
func (t *tensor) hasPushes() bool {
	for _, p := range t.packets {
		if p.round > 0 || t.policy != wire.Sync && slices.Max(p.arrived) > 0 {
			return true
		}
	}
	return false
}

// Updatable reports whether optimisers support a type.
func Updatable(d wire.DType) bool {
	return reduce.CanUpdate(d) || d == wire.Float16 || d == wire.BFloat16
}

// Clock returns, for each rank, the number of its rounds that are applied to all packets that about names; nil for an
// unknown tensor.
func (s *Store) Clock(id uint32, about wire.Clock) []uint64 {
	t := s.tensors[id]
	if t == nil {
		return nil
	}
	clock := slices.Repeat([]uint64{1<<64 - 1}, s.ranks)
	lower := func(p *packet) {
		for rank := range clock {
			clock[rank] = min(clock[rank], t.lastApplied(p, rank, about.Complete))
		}
	}
	// The range is what a peer wrote, and may be far larger than the tensor. So it is not counted through.
	known := uint32(0)
	for number, p := range t.packets {
		if about.Names(number) {
			lower(p)
			known++
		}
	}
	if known < about.Count {
		lower(nil)
	}
	for rank, offset := range s.welcomed(t.clockOffset, nil) {
		clock[rank] += offset
	}
	return clock
}

// lastApplied is the last round of a worker that is applied to a packet. complete are all workers' rounds that another
// aggregator of the packet may have applied; p is nil if none was applied here.
func (t *tensor) lastApplied(p *packet, rank int, complete uint64) uint64 {
	switch {
	case t.policy == wire.Sync && p != nil:
		return max(p.round, complete)
	case t.policy == wire.Sync:
		return complete
	case p == nil || rank >= len(p.arrived):
		return 0
	case p.isWaiting(rank):
		return p.arrived[rank] - 1
	}
	return p.arrived[rank]
}

// BufferCount is the number of buffers that the store holds.
func (s *Store) BufferCount() int {
	n := 0
	for _, t := range s.tensors {
		for _, p := range t.packets {
			if p.value != nil {
				n++
			}
			if p.weights == nil {
				continue
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
