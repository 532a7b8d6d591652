package store

import (
	"encoding/binary"
	"math"
	"slices"

	"fptps/gocore/aggregate"
	"fptps/gocore/fault"
	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// The state of a packet, apart from its clock, is a few arrays. They are sent in chunks that fit in a packet.
const (
	ArraySteps = iota // updates since the optimiser was set: one uint64
	ArrayRate         // the learning rate: one float64
	ArrayValue        // the weights; for 16-bit floats their float32 master copy
	ArraySent         // the weights as they are sent; read-only
	ArrayState        // the optimiser's first state array; the others follow, up to Arrays
	Arrays     = ArrayState + maxStates
)

// Chunk is a part of an array that fits in a packet.
type Chunk struct {
	Part        uint16 // its number
	Array       int
	From, Bytes int // of the array
}

// Chunks lists those of the arrays of a packet that has the given bytes.
func Chunks(d wire.DType, arrays []int, bytes int) (list []Chunk) {
	for _, array := range arrays {
		size := ArrayBytes(d, array, bytes)
		for from := 0; from < size; from += wire.PacketBytes {
			list = append(list, Chunk{Part(array, from/wire.PacketBytes), array, from, min(size-from, wire.PacketBytes)})
		}
	}
	return list
}

// chunksPerArray is 2 because the float32 master copy of 16-bit floats is twice as large as a packet.
const chunksPerArray = 2

// Arrays lists the arrays that a packet's weights are made of, beside what an Arrival says of them.
func (r *Rule) Arrays() []int {
	arrays := []int{ArrayValue}
	for i := range r.stateCount() {
		arrays = append(arrays, ArrayState+i)
	}
	return arrays
}

// ArrayBytes is the size of an array for a packet of the given bytes; 0 for a type without state.
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

// Part is the number of chunk n of an array; a chunk has at most wire.PacketBytes.
func Part(array, n int) uint16 { return uint16(array*chunksPerArray + n) }

// Read copies a chunk of a packet's state into a buffer that the caller owns.
func (s *Store) Read(tensor, packet uint32, part uint16, bytes int) (*aggregate.Buffer, error) {
	from, err := s.chunk(tensor, packet, part, bytes)
	if err != nil {
		return nil, err
	}
	b := s.pool.Get(bytes)
	copy(b.Bytes, from)
	return b, nil
}

// Write sets a chunk of a packet's state.
func (s *Store) Write(tensor, packet uint32, part uint16, bytes []byte) error {
	to, err := s.chunk(tensor, packet, part, len(bytes))
	if err != nil {
		return err
	}
	t := s.tensors[tensor]
	p := t.packets[packet]
	p.incoming = slices.DeleteFunc(p.incoming, func(other uint16) bool { return other == part })
	switch int(part) / chunksPerArray {
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
		value := s.pool.Get(len(p.value.Bytes)) // the old buffer may still be queued for a worker
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

// chunk returns the memory of a chunk; for steps and rate a copy.
func (s *Store) chunk(id, packet uint32, part uint16, bytes int) ([]byte, error) {
	t := s.tensors[id]
	switch {
	case t == nil || t.packets[packet] == nil:
		return nil, fault.New(fault.Key, "packet %d of the tensor is not on this aggregator", packet)
	case !t.packets[packet].hasValue():
		return nil, fault.New(fault.Key, "the tensor is a plain sum, which no aggregator stores")
	case t.dtype.Bits() > 0:
		return nil, fault.New(fault.Type, "the tensor is quantised: the store keeps no state of it")
	}
	p := t.packets[packet]
	s.keep(p)
	array, n := int(part)/chunksPerArray, int(part)%chunksPerArray*wire.PacketBytes
	if array >= ArrayState+t.rule.stateCount() {
		return nil, fault.New(fault.Value, "the tensor has %d state arrays, so there is no array %d", ArrayState+t.rule.stateCount(), array)
	}
	p.allocateState(t)
	memory := p.stateArray(t, array)
	if bytes == 0 || n+bytes > len(memory) || array < ArrayValue && bytes != len(memory) {
		return nil, fault.New(fault.Value, "%d bytes from %d of an array of %d", bytes, n, len(memory))
	}
	return memory[n : n+bytes], nil
}

func (p *packet) stateArray(t *tensor, array int) []byte {
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

// Resume sets the clock of a tensor to that of a checkpoint, with all ranks; rounds that are applied later are added to it.
func (s *Store) Resume(id uint32, about wire.Clock, clock []uint64) error {
	if len(clock) < s.ranks || len(clock) > wire.MaxWorkers {
		return fault.New(fault.Value, "the clock is of %d workers, but this cluster has %d", len(clock), s.ranks)
	}
	s.grow(len(clock))
	now := s.Clock(id, about)
	if now == nil {
		return fault.New(fault.Key, "the tensor is not initialised on this aggregator")
	}
	t := s.tensors[id]
	if t.clockOffset == nil {
		t.clockOffset = make([]uint64, s.ranks)
	}
	t.clockOffset = s.welcomed(t.clockOffset, nil)
	for rank := range clock {
		t.clockOffset[rank] += clock[rank] - now[rank] // it may wrap around, and wraps back when Clock adds it
	}
	return nil
}
