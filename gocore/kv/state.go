package kv

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/store"
	"fptps/gocore/wire"
)

// The methods here read and write a tensor's state in the store, on all its aggregators. None waits for other workers.

// Clock writes to clock, for each worker as a uint64, how many of its rounds are applied to all packets of key. Each aggregator
// is asked about its present packets alone. Its numbers of packets that have moved to another aggregator are old.
func (w *Worker) Clock(key uint64, clock []byte) (*Ticket, error) {
	i := &inquiry{about: fmt.Sprintf("the clock of %s", w.nameOf(key)), memory: clock}
	i.take = func(_ *ask, payload []byte) error {
		known := len(payload) / 8
		if known == 0 || len(payload) > len(clock) {
			return fault.New(fault.Value, "%s: there are %d workers, and room for %d bytes", i.about, known, len(clock))
		}
		for rank := range len(clock) / 8 {
			its := binary.LittleEndian.Uint64(payload[8*min(rank, known-1):]) // a server that has come later does not know of the dead before it
			binary.LittleEndian.PutUint64(clock[8*rank:], min(its, binary.LittleEndian.Uint64(clock[8*rank:])))
		}
		return nil
	}
	return w.ask(key, i, func(t *tensor) ([]*ask, error) {
		for at := 0; at+8 <= len(clock); at += 8 {
			binary.LittleEndian.PutUint64(clock[at:], math.MaxUint64)
		}
		return t.aboutClock(wire.AskClock, nil), nil
	})
}

// Resume sets the clock of key: it continues from the rounds in clock, a uint64 for each worker.
func (w *Worker) Resume(key uint64, clock []byte) (*Ticket, error) {
	i := &inquiry{about: fmt.Sprintf("the clock of %s", w.nameOf(key)), memory: clock}
	return w.ask(key, i, func(t *tensor) ([]*ask, error) {
		err := t.idle()
		if err == nil && !t.ruled() && (t.held || len(t.changes) > 0) {
			err = fault.New(fault.Busy, "%s: a part of it is about to move to other aggregators: try again after the next push", t.name).With(t.about())
		}
		if err == nil {
			t.clockSet = true
			w.stateful(i.about)
		}
		return t.aboutClock(wire.AskResume, clock), err
	})
}

// State copies an array of the store (store.ArrayValue, ...) to memory: that of packets first to first+count-1, one after
// the other.
func (w *Worker) State(key uint64, array int, first, count uint32, memory []byte) (*Ticket, error) {
	return w.parts(wire.AskState, key, array, first, count, memory)
}

// Restore sets the array that State copies.
func (w *Worker) Restore(key uint64, array int, first, count uint32, memory []byte) (*Ticket, error) {
	return w.parts(wire.AskRestore, key, array, first, count, memory)
}

func (w *Worker) parts(op wire.Op, key uint64, array int, first, count uint32, memory []byte) (*Ticket, error) {
	i := &inquiry{about: fmt.Sprintf("the state of %s", w.nameOf(key)), memory: memory}
	return w.ask(key, i, func(t *tensor) ([]*ask, error) {
		all, size, err := t.parts(op, array, first, count, memory)
		switch {
		case err != nil:
			return nil, err
		case size != uint64(len(memory)):
			return nil, fault.New(fault.Value, "%s: array %d of packets %d to %d has %d bytes, the memory has %d",
				t.name, array, first, uint64(first)+uint64(count)-1, size, len(memory))
		}
		return all, t.idle()
	})
}

// parts returns the asks that copy an array of packets to memory, or set it from there, and the bytes that the array takes.
func (t *tensor) parts(op wire.Op, array int, first, count uint32, memory []byte) (all []*ask, size uint64, err error) {
	if array < 0 || array >= store.Arrays || count == 0 || uint64(first)+uint64(count) > uint64(t.packets) {
		return nil, 0, fault.New(fault.Value, "%s: no array %d of %d packets from packet %d: the tensor has %d packets", t.name, array, count, first, t.packets)
	}
	if t.dtype.Bits() > 0 {
		return nil, 0, fault.New(fault.Type, "%s: tensors of %v have no state", t.name, t.dtype)
	}
	for p := first; p < first+count; p++ {
		n := uint64(store.ArrayBytes(t.dtype, array, t.content(p)))
		if size+n <= uint64(len(memory)) {
			all = append(all, t.chunks(op, t.run(p), p, array, memory[size:][:n])...)
		}
		size += n
	}
	return all, size, nil
}

// chunks returns the asks that copy a packet's array to memory, or set it from there, on the aggregator of a run.
func (t *tensor) chunks(op wire.Op, run plan.Run, packet uint32, array int, memory []byte) (all []*ask) {
	for chunk := 0; len(memory) > 0; chunk++ {
		n := min(len(memory), wire.PacketBytes)
		all = append(all, t.part(op, run, packet, store.Part(array, chunk), memory[:n]))
		memory = memory[n:]
	}
	return all
}

// part returns the ask for one part of a packet's state, on the aggregator of a run.
func (t *tensor) part(op wire.Op, run plan.Run, packet uint32, part uint16, memory []byte) *ask {
	a := &ask{node: run.Node, lane: run.Lane, header: wire.Header{
		Op: op, Tensor: t.id, Packet: packet, Part: part, RawLen: uint32(len(memory)), Priority: math.MinInt32,
	}}
	if op == wire.AskState {
		a.into = memory
	} else {
		a.data = memory
	}
	return a
}

// everywhere returns the same ask for each of the tensor's aggregators: every lane of a node is one.
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

// aboutClock returns an ask for each run of packets. The rounds that are complete here are applied to all packets, which a new
// aggregator of them does not know.
func (t *tensor) aboutClock(op wire.Op, data []byte) []*ask {
	complete := t.round
	if t.active != nil && t.active.verb != verbFetch {
		complete = max(complete, 1) - 1
	}
	asks := make([]*ask, len(t.runs))
	for i, run := range t.runs {
		about := wire.Clock{First: run.First, Count: run.Count, Complete: complete}
		asks[i] = &ask{node: run.Node, lane: run.Lane, header: wire.Header{Op: op, Tensor: t.id, Priority: math.MaxInt32}, data: append(about.Text(), data...)}
	}
	return asks
}

// Keep copies memory; Pull then returns the copy, as if it were the sum of the last push.
func (w *Worker) Keep(key uint64, dtype wire.DType, memory []byte) error {
	kept := allocate(uint64(len(memory)))
	copy(kept, memory)
	var err error
	w.step(func() effects {
		var t *tensor
		if t, err = w.find(key); err == nil {
			err = t.fits(dtype, memory)
		}
		if err == nil {
			err = t.idle()
		}
		if err == nil && t.readers > 0 {
			err = fault.New(fault.Busy, "%s: a pull is under way: wait for its ticket first", t.name).With(t.about())
		}
		if err != nil {
			w.mu.freed = append(w.mu.freed, kept)
			return effects{}
		}
		w.dropKept(t)
		t.kept, t.last = kept, &operation{worker: w, tensor: t, verb: verbPush, whole: true}
		return effects{}
	})
	return err
}

// idle returns an error if a round is under way.
func (t *tensor) idle() error {
	if t.active != nil || len(t.queue) > 0 {
		return fault.New(fault.Busy, "%s: round %d is under way: wait for its ticket first", t.name, t.round).With(t.about())
	}
	return nil
}
