package transport

import (
	"time"

	"fptps/gocore/trace"
	"fptps/gocore/wire"
)

// What the tracer records of packets. Only contributions and sums are traced.

// traceQueued records that a run was queued for peer. One of several packets is recorded whole: the receivers' sample decides which
// of its packets are seen later. mu is held.
func (t *Transport) traceQueued(peer uint32, r *run) {
	if !t.config.Trace.On() {
		return
	}
	kind, traced := kindOf(&r.Header, trace.Queued, trace.SumQueued)
	switch h := &r.Header; {
	case !traced:
	case r.packets == 1:
		t.config.Trace.Packet(kind, h.Tensor, h.Round, h.Packet, peer, len(r.Data))
	default:
		t.config.Trace.Note(trace.Event{Kind: kind, Tensor: h.Tensor, Round: uint32(h.Round), Packet: h.Packet, Bytes: uint32(len(r.Data)), Peer: peer})
	}
}

// traceWritten records that packets of a batch are completely written.
func (t *Transport) traceWritten(peer uint32, packets []packet) {
	if !t.config.Trace.On() {
		return
	}
	for _, p := range packets {
		if kind, traced := kindOf(&p.run.Header, trace.Written, trace.SumWritten); traced {
			h := &p.run.Header
			t.config.Trace.Packet(kind, h.Tensor, h.Round, h.Packet+uint32(p.index), peer, len(p.data()))
		}
	}
}

// traceRead records that a packet has arrived.
func (t *Transport) traceRead(peer uint32, h *wire.Header) {
	if !t.config.Trace.On() {
		return
	}
	if kind, traced := kindOf(h, trace.Read, trace.SumRead); traced {
		t.config.Trace.Packet(kind, h.Tensor, h.Round, h.Packet, peer, int(h.WireLen))
	}
}

// kindOf returns the kind of event for a contribution or a sum.
func kindOf(h *wire.Header, contribution, sum trace.Kind) (kind trace.Kind, traced bool) {
	switch h.Kind {
	case wire.Contrib, wire.Empty:
		return contribution, true
	case wire.Sum:
		return sum, true
	}
	return 0, false
}

// Busy returns for how long each loop has had work so far: its thread has run, or waited for a processor.
func (t *Transport) Busy() ([]time.Duration, error) {
	var busy []time.Duration
	for _, l := range t.lanes() {
		for _, thread := range []*thread{&l.receiver.thread, &l.sender.thread} {
			spent, err := thread.busy()
			if err != nil {
				return nil, err
			}
			busy = append(busy, spent)
		}
	}
	return busy, nil
}

// lanes lists all lanes.
func (t *Transport) lanes() []*Transport { return append([]*Transport{t}, t.others()...) }
