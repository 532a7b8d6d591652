package kv

import (
	"encoding/binary"
	"fmt"
	"slices"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/store"
	"fptps/gocore/wire"
)

// Where aggregators keep weights, a packet that gets another aggregator takes its weights and the optimiser's state along. The leader
// reads them from the aggregator before and writes them to the one after. It does so as it begins the first round of the new plan,
// when the round before is complete, and sends no contribution to that round until all is written. So the first sum of the new plan
// completes, and is applied, when the weights are there; the other workers need not know. The aggregator before forgets a packet only when the one
// after has all of it: if the leader dies, the next one begins again, and leaves out what is not there any more.

// batchPackets bounds what the leader holds at a time: 64 packets of Adam's weights in float32 are 3 MB.
const batchPackets = 64

// handOver is the move of one tensor's weights.
type handOver struct {
	worker *Worker
	tensor *tensor
	batch  []*movedPacket // that are moving
	left   []*movedPacket // that will
}

// movedPacket is a packet whose aggregator changes.
type movedPacket struct {
	number   uint32
	from, to plan.Run
	is       store.Arrival
	chunks   [][]byte // of is.Chunks
}

// handOver moves the packets of a tensor that the last change of its plan gives other aggregators, and then sends the contributions to the round under way: at
// once, if there are none.
func (w *Worker) handOver(t *tensor) []sending {
	h := &handOver{worker: w, tensor: t}
	for _, from := range t.before {
		for p := from.First; p < from.First+from.Count; p++ {
			if to := t.run(p); !samePlace(to, from) {
				h.left = append(h.left, &movedPacket{number: p, from: from, to: to})
			}
		}
	}
	t.handing = h
	return h.describe()
}

// hasMoved reports whether a packet has had another aggregator in the round before.
func (t *tensor) hasMoved() bool {
	return slices.ContainsFunc(t.before, func(from plan.Run) bool {
		for p := from.First; p < from.First+from.Count; p++ {
			if !samePlace(t.run(p), from) {
				return true
			}
		}
		return false
	})
}

func samePlace(a, b plan.Run) bool { return a.Node == b.Node && a.Lane == b.Lane }

// moving is the number of packets that have not moved yet.
func (h *handOver) moving() int { return len(h.batch) + len(h.left) }

// bury gives the packets of a dead aggregator to its heir.
func (h *handOver) bury(dead, heir uint32) {
	for _, list := range [][]*movedPacket{h.batch, h.left} {
		for _, p := range list {
			if p.from.Node == dead {
				p.from.Node = heir
			}
			if p.to.Node == dead {
				p.to.Node = heir
			}
		}
	}
}

// describe asks for the descriptions of the next packets. Without any it returns the round's contributions.
func (h *handOver) describe() []sending {
	t := h.tensor
	if len(h.left) == 0 {
		t.handing = nil
		return t.contributions()
	}
	h.batch = h.left[:min(len(h.left), batchPackets)]
	h.left = h.left[len(h.batch):]
	asks, of := make([]*ask, len(h.batch)), map[*ask]*movedPacket{}
	for i, p := range h.batch {
		asks[i] = t.beside(wire.AskDepart, p.from, p.number, nil)
		asks[i].mayLack = true
		of[asks[i]] = p
	}
	i := h.inquiry(h.read)
	i.take = func(a *ask, payload []byte) (err error) {
		of[a].is, err = store.ParseArrival(payload)
		return err
	}
	return h.inquire(i, asks)
}

// read asks for the arrays of the packets. Those that are not there have moved already.
func (h *handOver) read() []sending {
	t := h.tensor
	var here []*movedPacket
	var asks []*ask
	for _, p := range h.batch {
		if p.is.Bytes == 0 {
			continue
		}
		here = append(here, p)
		for _, chunk := range p.is.Chunks() {
			memory := make([]byte, chunk.Bytes)
			p.chunks = append(p.chunks, memory)
			asks = append(asks, t.part(wire.AskState, p.from, p.number, chunk.Part, memory))
		}
	}
	h.batch = here
	if len(asks) == 0 {
		return h.describe()
	}
	return h.inquire(h.inquiry(h.arrive), asks)
}

// arrive makes the packets on their new aggregators.
func (h *handOver) arrive() []sending {
	t := h.tensor
	var asks []*ask
	for _, p := range h.batch {
		p.is.Plan = t.plan
		asks = append(asks, t.beside(wire.AskArrive, p.to, p.number, p.is.Text()))
	}
	return h.inquire(h.inquiry(h.write), asks)
}

// write sets the packets' arrays on their new aggregators.
func (h *handOver) write() []sending {
	t := h.tensor
	var asks []*ask
	for _, p := range h.batch {
		for i, chunk := range p.is.Chunks() {
			asks = append(asks, t.part(wire.AskRestore, p.to, p.number, chunk.Part, p.chunks[i]))
		}
	}
	return h.inquire(h.inquiry(h.leave), asks)
}

// leave has the old aggregators forget the packets.
func (h *handOver) leave() []sending {
	t := h.tensor
	var asks []*ask
	for _, p := range h.batch {
		if !samePlace(p.from, p.to) { // else the heir of one of them is the other one
			gone := wire.Clock{First: p.number, Count: 1, Complete: t.round - 1}
			a := t.beside(wire.AskLeave, p.from, p.number, binary.LittleEndian.AppendUint16(gone.Text(), t.plan))
			a.mayLack = true // the heir of an aggregator that had left it
			asks = append(asks, a)
		}
	}
	h.batch = nil
	if len(asks) == 0 {
		return h.describe()
	}
	return h.inquire(h.inquiry(h.describe), asks)
}

// inquiry makes the inquiry of a step, after which next follows. A refusal shows a fault of this program, and ends the cluster.
func (h *handOver) inquiry(next func() []sending) *inquiry {
	i := &inquiry{about: fmt.Sprintf("the weights of %s, which move to other aggregators", h.tensor.name), vital: true}
	i.then = func() (e effects) {
		if i.err == nil && h.tensor.handing == h {
			e.sends = next()
		}
		return e
	}
	return i
}

func (h *handOver) inquire(i *inquiry, asks []*ask) []sending {
	for _, a := range asks {
		a.header.Priority = h.tensor.active.priority
	}
	return h.worker.inquire(i, asks).sends
}

// beside returns an ask about a packet, with a payload that is not an array.
func (t *tensor) beside(op wire.Op, run plan.Run, packet uint32, data []byte) *ask {
	return &ask{node: run.Node, lane: run.Lane, data: data, header: wire.Header{Op: op, Tensor: t.id, Packet: packet, RawLen: uint32(len(data))}}
}

// lacks reports whether an aggregator has refused an ask because it has no such packet.
func lacks(err error) bool { return fault.CodeOf(err) == fault.Key }
