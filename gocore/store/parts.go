package store

import (
	"encoding/binary"
	"math"

	"fptps/gocore/aggregate"
	"fptps/gocore/fault"
	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// All that a packet's future depends on, but its clock, is a few arrays. They travel in parts that fit in a packet.
const (
	ArraySteps = iota // updates since the optimiser was set: one uint64
	ArrayRate         // the learning rate: one float64
	ArrayValue        // the weights; of 16-bit floats those in float32, from which updates go on
	ArraySent         // the weights as they are sent; only to be read
	ArrayState        // the optimiser's first array of state; Arrays is the end of them
	Arrays     = ArrayState + maxStates
)

// partsPerArray is 2 because an array in float32 is twice a packet of 16-bit floats.
const partsPerArray = 2

// ArrayBytes is the size of an array of a packet of so many bytes; 0 for a type of which none is kept.
func ArrayBytes(d wire.DType, array, bytes int) int {
	switch {
	case d.Bits() > 0:
		return 0
	case array < ArrayValue:
		return 8
	case array != ArraySent && reduce.Wide(d):
		return reduce.AccBytes(d, bytes)
	}
	return bytes
}

// Part is the name of the n-th packet's worth of an array.
func Part(array, n int) uint16 { return uint16(array*partsPerArray + n) }

// Read copies bytes of a part of a packet's state into a buffer, which is the caller's.
func (s *Store) Read(tensor, packet uint32, part uint16, bytes int) (*aggregate.Buffer, error) {
	from, err := s.part(tensor, packet, part, bytes)
	if err != nil {
		return nil, err
	}
	b := s.pool.Get(bytes)
	copy(b.Bytes, from)
	return b, nil
}

// Write sets a part of a packet's state.
func (s *Store) Write(tensor, packet uint32, part uint16, bytes []byte) error {
	to, err := s.part(tensor, packet, part, len(bytes))
	if err != nil {
		return err
	}
	t := s.tensors[tensor]
	p := t.pieces[packet]
	switch int(part) / partsPerArray {
	case ArraySteps:
		p.steps = binary.LittleEndian.Uint64(bytes)
	case ArrayRate:
		rate := math.Float64frombits(binary.LittleEndian.Uint64(bytes))
		if !wire.GoodLearningRate(rate) {
			return fault.New(fault.Value, "a learning rate of %v", rate)
		}
		p.rate = rate
	case ArraySent:
		return fault.New(fault.Value, "the weights as they are sent can only be read")
	case ArrayValue:
		value := s.pool.Get(len(p.value.Bytes)) // the old one may be on its way to a worker
		if reduce.Wide(t.dtype) {
			copy(to, bytes)
			reduce.Narrow(t.dtype, value.Bytes, p.master)
		} else {
			copy(value.Bytes, p.value.Bytes)
			copy(value.Bytes, bytes)
		}
		p.value.Release()
		p.value = value
	default:
		copy(to, bytes)
	}
	return nil
}

// part gives the memory of bytes of a part; of a single number a copy.
func (s *Store) part(id, packet uint32, part uint16, bytes int) ([]byte, error) {
	t := s.tensors[id]
	switch {
	case t == nil || t.pieces[packet] == nil:
		return nil, fault.New(fault.Key, "packet %d of the tensor is not here", packet)
	case t.pieces[packet].value == nil:
		return nil, fault.New(fault.Key, "the tensor is a plain sum, which no aggregator keeps")
	case t.dtype.Bits() > 0:
		return nil, fault.New(fault.Type, "the tensor is quantised, and has no state that could be kept")
	}
	p := t.pieces[packet]
	array, n := int(part)/partsPerArray, int(part)%partsPerArray*wire.PacketBytes
	if array >= ArrayState+t.rule.states() {
		return nil, fault.New(fault.Value, "the tensor has %d arrays, array %d is not among them", ArrayState+t.rule.states(), array)
	}
	p.ready(t)
	memory := p.array(t, array)
	if bytes == 0 || n+bytes > len(memory) || array < ArrayValue && bytes != len(memory) {
		return nil, fault.New(fault.Value, "%d bytes from %d of an array of %d", bytes, n, len(memory))
	}
	return memory[n : n+bytes], nil
}

func (p *piece) array(t *tensor, array int) []byte {
	switch {
	case array == ArraySteps:
		return binary.LittleEndian.AppendUint64(nil, p.steps)
	case array == ArrayRate:
		return binary.LittleEndian.AppendUint64(nil, math.Float64bits(p.rate))
	case array == ArrayValue && reduce.Wide(t.dtype):
		return p.master
	case array < ArrayState:
		return p.value.Bytes
	}
	return p.state[array-ArrayState]
}

// Resume has the clock of a tensor go on from one of another cluster's: what is applied from now on is added to it.
func (s *Store) Resume(id uint32, clock []uint64) error {
	now := s.Clock(id)
	switch {
	case now == nil:
		return fault.New(fault.Key, "the tensor is not initialised here")
	case len(clock) != s.workers:
		return fault.New(fault.Value, "a clock of %d workers for %d", len(clock), s.workers)
	}
	t := s.tensors[id]
	if t.before == nil {
		t.before = make([]uint64, s.workers)
	}
	for rank := range clock {
		t.before[rank] += clock[rank] - now[rank] // which may wrap, and wraps back
	}
	return nil
}
