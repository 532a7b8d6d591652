package kv

import (
	"fptps/gocore/trace"
	"fptps/gocore/wire"
)

// traceCalled records that the newest operation of a tensor was called. The lock is held.
func (w *Worker) traceCalled(o *operation) {
	t := o.tensor
	o.ticket.tensor = t.id
	w.Trace.Note(trace.Event{
		Kind: trace.Called, Tensor: t.id, Round: uint32(t.newest()), Packet: uint32(o.priority), Bytes: uint32(t.size),
	})
}

// traceDone records that an operation has ended. The lock is held.
func (w *Worker) traceDone(o *operation) {
	if o.verb != verbFetch {
		w.Trace.Note(trace.Event{Kind: trace.Done, Tensor: o.tensor.id, Round: uint32(o.round)})
	}
}

// traceSummed records that a worker's contribution h is in the sum of its packet, and which sums are complete with it.
func (a *Aggregator) traceSummed(rank int, h *wire.Header, err error) {
	if !a.Trace.On() || err != nil {
		return
	}
	a.Trace.Packet(trace.Summed, h.Tensor, h.Round, h.Packet, workerNode(rank), int(h.WireLen))
	for i := range a.sums {
		a.Trace.Packet(trace.Complete, h.Tensor, h.Round, a.sums[i].Header.Packet, workerNode(rank), int(a.sums[i].Header.WireLen))
	}
}

// Tensors lists the declared tensors, for a tracer.
func (w *Worker) Tensors() []trace.Tensor {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []trace.Tensor
	for id, t := range w.mu.byID {
		all = append(all, trace.Tensor{ID: id, Name: t.name, Bytes: t.size})
	}
	return all
}

// PerStep is the number of pushes in a step of the training, 0 until it is set.
func (w *Worker) PerStep() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.perStep
}
