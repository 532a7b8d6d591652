package kv

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"fptps/gocore/fault"
	"fptps/gocore/store"
	"fptps/gocore/wire"
)

// What a worker reads and writes of a tensor's store, on all its aggregators. None of it waits for other workers.

// Clock brings the rounds of each worker that are applied to all packets of key to clock, uint64 each.
func (w *Worker) Clock(key uint64, clock []byte) (*Ticket, error) {
	i := &inquiry{about: fmt.Sprintf("the clock of key %d", key), memory: clock}
	i.take = func(_ *ask, payload []byte) error {
		if len(payload) != len(clock) {
			return fault.New(fault.Value, "%s: there are %d workers, and room for %d bytes", i.about, len(payload)/8, len(clock))
		}
		for at := 0; at < len(clock); at += 8 {
			now := min(binary.LittleEndian.Uint64(clock[at:]), binary.LittleEndian.Uint64(payload[at:]))
			binary.LittleEndian.PutUint64(clock[at:], now)
		}
		return nil
	}
	return w.ask(key, i, func(t *tensor) ([]*ask, error) {
		for at := 0; at+8 <= len(clock); at += 8 {
			binary.LittleEndian.PutUint64(clock[at:], math.MaxUint64)
		}
		return t.everywhere(wire.AskClock, nil), nil
	})
}

// Resume has the clock of key go on from the rounds in clock, uint64 for each worker.
func (w *Worker) Resume(key uint64, clock []byte) (*Ticket, error) {
	i := &inquiry{about: fmt.Sprintf("the clock of key %d", key), memory: clock}
	return w.ask(key, i, func(t *tensor) ([]*ask, error) { return t.everywhere(wire.AskResume, clock), t.idle() })
}

// State brings an array of gocore/store to memory, of packets first to first+count-1, one after the other.
func (w *Worker) State(key uint64, array int, first, count uint32, memory []byte) (*Ticket, error) {
	return w.parts(wire.AskState, key, array, first, count, memory)
}

// Restore sets what State gives.
func (w *Worker) Restore(key uint64, array int, first, count uint32, memory []byte) (*Ticket, error) {
	return w.parts(wire.AskRestore, key, array, first, count, memory)
}

func (w *Worker) parts(op wire.Op, key uint64, array int, first, count uint32, memory []byte) (*Ticket, error) {
	i := &inquiry{about: fmt.Sprintf("the state of key %d", key), memory: memory}
	return w.ask(key, i, func(t *tensor) ([]*ask, error) {
		all, size, err := t.parts(op, array, first, count, memory)
		switch {
		case err != nil:
			return nil, err
		case size != uint64(len(memory)):
			return nil, fault.New(fault.Value, "key %d: array %d of packets %d to %d has %d bytes, the memory has %d",
				key, array, first, uint64(first)+uint64(count)-1, size, len(memory))
		}
		return all, t.idle()
	})
}

// parts gives the asks for an array of packets, whose bytes are to be, or are, in memory, and how many bytes it takes.
func (t *tensor) parts(op wire.Op, array int, first, count uint32, memory []byte) (all []*ask, size uint64, err error) {
	if array < 0 || array >= store.Arrays || count == 0 || uint64(first)+uint64(count) > uint64(t.packets) {
		return nil, 0, fault.New(fault.Value, "key %d: no array %d of %d packets from %d: it has %d packets", t.key, array, count, first, t.packets)
	}
	if t.dtype.Bits() > 0 {
		return nil, 0, fault.New(fault.Type, "key %d: %v has no state that could be kept", t.key, t.dtype)
	}
	for p := first; p < first+count; p++ {
		left := store.ArrayBytes(t.dtype, array, t.content(p))
		for chunk := 0; left > 0; chunk++ {
			n := min(left, wire.PacketBytes)
			if size+uint64(n) <= uint64(len(memory)) {
				all = append(all, t.part(op, p, store.Part(array, chunk), memory[size:][:n]))
			}
			size += uint64(n)
			left -= n
		}
	}
	return all, size, nil
}

// part is the ask for one part of a packet's state.
func (t *tensor) part(op wire.Op, packet uint32, part uint16, memory []byte) *ask {
	run := t.run(packet)
	a := &ask{node: run.Node, lane: run.Lane, header: wire.Header{
		Op: op, Tensor: t.id, Packet: packet, Contributors: part, RawLen: uint32(len(memory)), Priority: math.MinInt32,
	}}
	if op == wire.AskState {
		a.into = memory
	} else {
		a.data = memory
	}
	return a
}

// everywhere is the same ask of each of the tensor's aggregators: every lane of a node is one.
func (t *tensor) everywhere(op wire.Op, data []byte) (all []*ask) {
	h := wire.Header{Op: op, Tensor: t.id, Priority: math.MaxInt32}
	for _, run := range t.runs {
		asked := func(a *ask) bool { return a.node == run.Node && a.lane == run.Lane }
		if !slices.ContainsFunc(all, asked) {
			all = append(all, &ask{node: run.Node, lane: run.Lane, header: h, data: data})
		}
	}
	return all
}

// Keep makes memory what Pull gives, as if it were the sum of the last push. It copies it.
func (w *Worker) Keep(key uint64, dtype wire.DType, memory []byte) error {
	kept := bytes.Clone(memory)
	w.mu.Lock()
	defer w.mu.Unlock()
	t, err := w.find(key)
	if err == nil {
		err = t.fits(dtype, memory)
	}
	if err == nil {
		err = t.idle()
	}
	if err != nil {
		return err
	}
	t.kept, t.last = kept, &operation{worker: w, tensor: t, verb: verbInit, whole: true}
	return nil
}

// idle refuses where a round is under way.
func (t *tensor) idle() error {
	if t.active != nil || len(t.queue) > 0 {
		return fault.New(fault.Busy, "key %d: round %d is under way: wait for its ticket first", t.key, t.round)
	}
	return nil
}
