package kv

import (
	"encoding/binary"
	"fmt"
	"math"

	"fptps/gocore/plan"
	"fptps/gocore/store"
	"fptps/gocore/wire"
)

// Where aggregators keep weights, a packet that gets another aggregator takes its weights and the optimiser's state along. Rank
// 0 reads them from the aggregator before and writes them to the one after. It does so as it begins the first round of the new plan,
// when the round before is complete, and sends no contribution to that round until all is written. So the first sum of the new plan
// completes, and is applied, when the weights are there; the other workers need not know.

// batchPackets bounds what rank 0 holds at a time: 64 packets of Adam's weights in float32 are 3 MB.
const batchPackets = 64

// handOver is the move of one tensor's weights.
type handOver struct {
	worker *Worker
	tensor *tensor
	left   []*movedPacket
	round  []sending // the contributions of the round
}

// movedPacket is a packet whose aggregator changes.
type movedPacket struct {
	number      uint32
	from, to    plan.Run
	steps, rate [8]byte
	arrays      [][]byte // in the order of store.Rule.Weights
}

// handOver returns what is to be sent first: the contributions themselves if no packet of the tensor moves.
func (w *Worker) handOver(t *tensor, before []plan.Run, round []sending) []sending {
	h := &handOver{worker: w, tensor: t, round: round}
	for _, from := range before {
		for p := from.First; p < from.First+from.Count; p++ {
			if to := t.run(p); to.Node != from.Node || to.Lane != from.Lane {
				h.left = append(h.left, &movedPacket{number: p, from: from, to: to})
			}
		}
	}
	return h.read()
}

// read asks for the state of the next packets. Without any it returns the round's contributions.
func (h *handOver) read() []sending {
	t := h.tensor
	t.moving = len(h.left)
	if len(h.left) == 0 {
		return t.active.leave(h.round)
	}
	batch := h.left[:min(len(h.left), batchPackets)]
	h.left = h.left[len(batch):]
	var asks []*ask
	for _, p := range batch {
		asks = append(asks,
			t.part(wire.AskState, p.from, p.number, store.Chunk(store.ArraySteps, 0), p.steps[:]),
			t.part(wire.AskState, p.from, p.number, store.Chunk(store.ArrayRate, 0), p.rate[:]))
		for _, array := range t.rule.Weights() {
			memory := make([]byte, store.ArrayBytes(t.dtype, array, t.content(p.number)))
			p.arrays = append(p.arrays, memory)
			asks = append(asks, t.chunks(wire.AskState, p.from, p.number, array, memory)...)
		}
	}
	return h.inquire(asks, func() []sending { return h.arrive(batch) })
}

// arrive makes the packets on their new aggregators.
func (h *handOver) arrive(batch []*movedPacket) []sending {
	t := h.tensor
	var asks []*ask
	for _, p := range batch {
		arrival := store.Arrival{
			DType: t.dtype, Bytes: uint32(t.content(p.number)), Plan: t.plan, Round: t.round - 1, Rule: *t.rule, Offset: t.offset,
			Steps: binary.LittleEndian.Uint64(p.steps[:]), Rate: math.Float64frombits(binary.LittleEndian.Uint64(p.rate[:])),
		}
		asks = append(asks, t.beside(wire.AskArrive, p.to, p.number, arrival.Text()))
	}
	return h.inquire(asks, func() []sending { return h.write(batch) })
}

// write sets the packets' arrays on their new aggregators, and has the old ones forget them.
func (h *handOver) write(batch []*movedPacket) []sending {
	t := h.tensor
	var asks []*ask
	for _, p := range batch {
		for i, array := range t.rule.Weights() {
			asks = append(asks, t.chunks(wire.AskRestore, p.to, p.number, array, p.arrays[i])...)
		}
		gone := wire.Clock{First: p.number, Count: 1, Complete: t.round - 1}
		asks = append(asks, t.beside(wire.AskLeave, p.from, p.number, gone.Text()))
	}
	return h.inquire(asks, h.read)
}

// inquire sends asks, and then what next returns. A refusal shows a fault of this program, and ends the cluster.
func (h *handOver) inquire(asks []*ask, next func() []sending) []sending {
	for _, a := range asks {
		a.header.Priority = h.round[0].header.Priority
	}
	i := &inquiry{about: fmt.Sprintf("the weights of %s, which move to other aggregators", h.tensor.name), vital: true}
	i.then = func() (e effects) {
		if i.err == nil {
			e.sends = next()
		}
		return e
	}
	return h.worker.inquire(i, asks).sends
}

// beside returns an ask about a packet, with a payload that is not an array.
func (t *tensor) beside(op wire.Op, run plan.Run, packet uint32, data []byte) *ask {
	return &ask{node: run.Node, lane: run.Lane, data: data, header: wire.Header{Op: op, Tensor: t.id, Packet: packet, RawLen: uint32(len(data))}}
}
