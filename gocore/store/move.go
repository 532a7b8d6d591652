package store

import (
	"math"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// Arrival is what an aggregator has to know of a packet of weights that moves to it, beside its arrays (Write). It is sent as JSON.
type Arrival struct {
	DType  wire.DType `json:"dtype"`
	Bytes  uint32     `json:"bytes"` // of the packet's weights
	Plan   uint16     `json:"plan"`  // the new one's number
	Round  uint64     `json:"round"` // the last one that was applied
	Steps  uint64     `json:"steps"`
	Rate   float64    `json:"lr"`
	Rule   Rule       `json:"rule"`
	Offset []uint64   `json:"clock_offset,omitempty"` // for each worker; nil: the clock was not set
}

// ParseArrival decodes and validates an arrival. Its errors are Value errors.
func ParseArrival(text []byte) (Arrival, error) {
	var a Arrival
	if err := decode(text, &a); err != nil {
		return Arrival{}, fault.New(fault.Value, "a moved packet that this node cannot read: %v", err)
	}
	if err := a.Rule.check(); err != nil {
		return Arrival{}, err
	}
	switch {
	case !Updatable(a.DType):
		return Arrival{}, fault.New(fault.Type, "no optimiser works on %v", a.DType)
	case a.Bytes == 0 || a.Bytes > wire.PacketBytes || int(a.Bytes)%a.DType.Size() != 0:
		return Arrival{}, fault.New(fault.Value, "a moved packet of %d bytes of %v", a.Bytes, a.DType)
	case a.Round == 0 || a.Round == math.MaxUint64 || !wire.GoodLearningRate(a.Rate):
		return Arrival{}, fault.New(fault.Value, "a moved packet with round %d and a learning rate of %v", a.Round, a.Rate)
	}
	return a, nil
}

// Text encodes the arrival for ParseArrival.
func (a Arrival) Text() []byte { return encode(a) }

// Arrive makes a packet of weights that another aggregator has kept so far; Write sets its arrays. It replaces what an
// earlier move has left of the packet.
func (s *Store) Arrive(id, number uint32, a Arrival) error {
	if a.Offset != nil && len(a.Offset) != s.workers {
		return fault.New(fault.Value, "the clock is of %d workers, but this cluster has %d", len(a.Offset), s.workers)
	}
	t := s.tensors[id]
	switch {
	case t == nil:
		t = s.newTensor(id, wire.Sync, a.DType, wire.CodecPlain)
	case t.dtype != a.DType || t.policy != wire.Sync || t.codec != wire.CodecPlain:
		return fault.New(fault.Value, "a moved packet of %v, but the tensor here is of %v, codec %d, %v", a.DType, t.dtype, t.codec, t.policy)
	}
	t.rule, t.clockOffset = &a.Rule, a.Offset
	t.packets[number].release()
	p := &packet{zeros: a.Bytes, plan: a.Plan, round: a.Round, weights: &weights{rate: a.Rate, steps: a.Steps}}
	s.keep(p)
	t.packets[number] = p
	return nil
}

// Leave forgets packets that have moved to another aggregator.
func (s *Store) Leave(id uint32, about wire.Clock) error {
	t := s.tensors[id]
	if t == nil {
		return fault.New(fault.Key, "the tensor is not initialised on this aggregator")
	}
	for number, p := range t.packets {
		if about.Names(number) && p.round <= about.Complete {
			p.release()
			delete(t.packets, number)
		}
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
