package store

import (
	"maps"
	"math"
	"slices"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// Arrival is what an aggregator has to know of a packet of weights that moves to it, or is copied there, beside its arrays (Write).
// It is sent as JSON.
type Arrival struct {
	DType   wire.DType  `json:"dtype"`
	Policy  wire.Policy `json:"policy"`
	Codec   wire.Codec  `json:"codec"`
	Bytes   uint32      `json:"bytes"` // of the packet's weights
	Plan    uint16      `json:"plan"`
	Round   uint64      `json:"round"` // the last one that was applied
	Steps   uint64      `json:"steps"`
	Rate    float64     `json:"lr"`
	Rule    *Rule       `json:"rule,omitempty"`
	Offset  []uint64    `json:"clock_offset,omitempty"` // for each worker; nil: the clock was not set
	Arrived []uint64    `json:"arrived,omitempty"`      // Bounded and Async: the last round of each worker that was applied
	Dead    []int       `json:"dead,omitempty"`         // ranks that the aggregator takes for dead, some of which may yet be admitted
	Arrays  []int       `json:"arrays,omitempty"`       // that follow, in chunks; others are as at the start
}

// Chunks lists the chunks that follow.
func (a *Arrival) Chunks() []Chunk { return Chunks(a.DType, a.Arrays, int(a.Bytes)) }

// ParseArrival decodes and validates an arrival. Its errors are Value errors.
func ParseArrival(text []byte) (Arrival, error) {
	var a Arrival
	if err := decode(text, &a); err != nil {
		return Arrival{}, fault.New(fault.Value, "a moved packet that this node cannot read: %v", err)
	}
	if a.Rule != nil {
		if err := a.Rule.check(); err != nil {
			return Arrival{}, err
		}
	}
	switch {
	case !a.DType.Valid() || a.Rule != nil && !Updatable(a.DType) || !a.Policy.Valid() || a.Codec > wire.CodecRows:
		return Arrival{}, fault.New(fault.Type, "a moved packet of %v, codec %d, %v: there are no such weights", a.DType, a.Codec, a.Policy)
	case a.Bytes == 0 || a.Bytes > wire.PacketBytes || int(a.Bytes)%a.DType.Size() != 0:
		return Arrival{}, fault.New(fault.Value, "a moved packet of %d bytes of %v", a.Bytes, a.DType)
	case !a.hasArrays():
		return Arrival{}, fault.New(fault.Value, "a moved packet with the arrays %v", a.Arrays)
	case !goodClock(a.Offset) || !goodClock(a.Arrived):
		return Arrival{}, fault.New(fault.Value, "a moved packet with the clock of %d workers and the rounds of %d", len(a.Offset), len(a.Arrived))
	case len(a.Dead) > wire.MaxWorkers || slices.ContainsFunc(a.Dead, func(rank int) bool { return rank < 0 || rank >= wire.MaxWorkers }):
		return Arrival{}, fault.New(fault.Value, "a moved packet with the dead ranks %v", a.Dead)
	case a.Round == math.MaxUint64 || !wire.GoodLearningRate(a.Rate):
		return Arrival{}, fault.New(fault.Value, "a moved packet with round %d and a learning rate of %v", a.Round, a.Rate)
	}
	return a, nil
}

// goodClock reports whether a list, if there is one, may have something of each worker.
func goodClock(list []uint64) bool {
	return list == nil || len(list) > 0 && len(list) <= wire.MaxWorkers
}

// hasArrays reports whether all arrays are ones that such weights may have.
func (a *Arrival) hasArrays() bool {
	for i, array := range a.Arrays {
		if array < ArrayValue || array == ArraySent || array >= ArrayState+a.Rule.stateCount() || i > 0 && array <= a.Arrays[i-1] {
			return false
		}
	}
	return true
}

// Text encodes the arrival for ParseArrival.
func (a Arrival) Text() []byte { return encode(a) }

// Depart describes a packet of weights that moves to another aggregator.
func (s *Store) Depart(id, number uint32) (Arrival, error) {
	t := s.tensors[id]
	if t == nil || !t.packets[number].hasValue() || t.packets[number].weights != nil && len(t.packets[number].incoming) > 0 {
		return Arrival{}, fault.New(fault.Key, "packet %d of the tensor is not on this aggregator, or not whole", number)
	}
	return s.describe(id, number), nil
}

// Copy describes a packet of weights for a replica of this store. chunks are those that are here: of a packet that is on its way here, some may be missing.
func (s *Store) Copy(id, number uint32) (a Arrival, chunks []Chunk) {
	a = s.describe(id, number)
	incoming := s.tensors[id].packets[number].incoming
	return a, slices.DeleteFunc(a.Chunks(), func(c Chunk) bool { return slices.Contains(incoming, c.Part) })
}

func (s *Store) describe(id, number uint32) Arrival {
	t := s.tensors[id]
	p := t.packets[number]
	s.keep(p)
	a := Arrival{
		DType: t.dtype, Policy: t.policy, Codec: t.codec, Bytes: uint32(p.bytes()), Plan: p.plan, Round: p.round, Steps: p.steps, Rate: p.rate,
		Rule: t.rule, Offset: t.clockOffset, Dead: slices.Sorted(maps.Keys(s.dead)), Arrays: t.rule.Arrays(),
	}
	for rank := range p.arrived {
		a.Arrived = append(a.Arrived, t.lastApplied(p, rank, 0))
	}
	return a
}

// Arrive makes a packet of weights that another aggregator has kept so far, or still keeps; Write sets its arrays. It replaces what an
// earlier move has left of the packet. A packet that is here already with the round keeps its arrays: they are the same.
func (s *Store) Arrive(id, number uint32, a Arrival) error {
	if (a.Arrived == nil) != (a.Policy == wire.Sync) {
		return fault.New(fault.Value, "a moved packet of %v with the rounds of %d workers", a.Policy, len(a.Arrived))
	}
	t := s.tensors[id]
	switch {
	case t == nil:
		t = s.newTensor(id, a.Policy, a.DType, a.Codec)
	case t.dtype != a.DType || t.policy != a.Policy || t.codec != a.Codec:
		return fault.New(fault.Value, "a moved packet of %v, codec %d, %v, but the tensor here is of %v, codec %d, %v", a.DType, a.Codec, a.Policy, t.dtype, t.codec, t.policy)
	}
	t.rule, t.clockOffset = a.Rule, s.welcomed(a.Offset, a.Dead)
	if old := t.packets[number]; old.whole() && old.round == a.Round && a.Policy == wire.Sync {
		old.plan = a.Plan
		return nil
	}
	s.forget(t, number)
	p := &packet{zeros: a.Bytes, plan: a.Plan, round: a.Round, weights: &weights{rate: a.Rate, steps: a.Steps, arrived: s.welcomed(a.Arrived, a.Dead)}}
	for _, chunk := range a.Chunks() {
		p.incoming = append(p.incoming, chunk.Part)
	}
	s.keep(p)
	t.packets[number] = p
	return nil
}

// whole reports whether a packet has weights, all of which have arrived.
func (p *packet) whole() bool {
	return p != nil && p.weights != nil && p.value != nil && len(p.incoming) == 0
}

// forget drops a packet, if it is here.
func (s *Store) forget(t *tensor, number uint32) {
	p := t.packets[number]
	if p == nil {
		return
	}
	p.release()
	if p.weights != nil {
		for i := range p.waiting {
			p.waiting[i].drop()
		}
		delete(s.waiting, p)
	}
	delete(t.packets, number)
}

// Leave forgets packets that have moved to another aggregator under a plan, unless they have come back under that plan.
func (s *Store) Leave(id uint32, about wire.Clock, plan uint16) error {
	t := s.tensors[id]
	if t == nil {
		return fault.New(fault.Key, "the tensor is not initialised on this aggregator")
	}
	for number, p := range t.packets {
		if about.Names(number) && p.round <= about.Complete && p.plan != plan {
			s.forget(t, number)
		}
	}
	if len(t.packets) == 0 { // what it knows of the tensor grows old
		delete(s.tensors, id)
	}
	return nil
}

// release gives the memory of a packet back; p may be nil.
func (p *packet) release() {
	if p != nil && p.value != nil {
		p.value.Release()
		p.value = nil
	}
}
