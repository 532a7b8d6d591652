package kv

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// advance starts the tensor's next round if it may: the one before is complete
// and nobody copies its sum.
func (w *Worker) advance(t *tensor) []sending {
	if t.active != nil || t.readers > 0 || len(t.queue) == 0 {
		return nil
	}
	o := t.queue[0]
	t.queue = t.queue[1:]
	w.mu.stats.Rounds++
	t.begun = w.mu.now
	return t.begin(o)
}

// send hands runs to the transport. The worker's lock is free here: the transport
// may wake its thread by a system call, and may call Release at once.
func (w *Worker) send(out []sending) {
	for _, s := range out {
		s.header.Plan = w.Plan.Version
		w.Plane.Send(s.node, transport.Outgoing{Header: s.header, Data: s.data, Owner: s.owner})
	}
}

// Release is called by the transport when it no longer refers to one of the
// operation's runs.
func (o *operation) Release() {
	if o.queued.Add(-1) > 0 {
		return
	}
	w := o.worker
	w.mu.Lock()
	ended, err := w.end(o), o.err
	w.mu.Unlock()
	w.finish(ended, err)
}

// end takes o's tickets once its sum is whole and no queue refers to its array:
// only then is the caller's memory the caller's again.
func (w *Worker) end(o *operation) []*Ticket {
	if !o.whole || o.queued.Load() > 0 || o.ticket == nil {
		return nil
	}
	tickets := []*Ticket{o.ticket}
	o.ticket = nil
	if o.source != nil && o.verb != verbInit {
		w.mu.flights.leave(o.source, o)
	}
	for _, p := range o.pulls {
		if p.caller {
			w.mu.flights.leave(p.memory, nil)
		}
		if p.ticket != nil {
			tickets = append(tickets, p.ticket)
		}
	}
	o.source, o.pulls, o.got = nil, nil, nil
	return tickets
}

func (w *Worker) finish(tickets []*Ticket, err error) {
	for _, t := range tickets {
		w.Tickets.Finish(t, err)
	}
}

// place says where the payload of a sum is read to; nil where nobody wants it.
func (w *Worker) place(node uint32, h *wire.Header) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.mu.byID[h.Tensor]
	if t == nil || !t.wants(node, h) {
		return nil
	}
	return t.region(t.active.pulls[0].memory, h.Packet)
}

// sum takes a sum that landed where place said; landed is nil where it has no
// payload. What nobody waits for (sent again, or late) is dropped.
func (w *Worker) sum(node uint32, h *wire.Header, landed []byte) {
	w.mu.Lock()
	t := w.mu.byID[h.Tensor]
	if t == nil || !t.wants(node, h) {
		w.mu.Unlock()
		return
	}
	w.mu.stats.BytesPulled += uint64(h.RawLen)
	o := t.active
	if !t.arrived(h, landed) {
		w.mu.Unlock()
		return
	}
	t.active = nil
	ended, err := w.end(o), o.err
	out := w.advance(t)
	w.mu.Unlock()
	w.send(out)
	w.finish(ended, err)
}

// told takes an aggregator's word on whom a round waits for.
func (w *Worker) told(h *wire.Header, payload []byte) {
	names := make([]string, 0, len(payload)/4)
	for ; len(payload) >= 4; payload = payload[4:] {
		names = append(names, w.Name(binary.LittleEndian.Uint32(payload)))
	}
	w.mu.Lock()
	t := w.mu.byID[h.Tensor]
	if t == nil || t.active == nil || t.round != h.Round {
		w.mu.Unlock()
		return
	}
	t.missing = names
	w.mu.Unlock()
}

// LogAfter is how long a round may stall before the log says so, and again.
const LogAfter = 5 * time.Second

// tick logs the round that has waited longest for other workers, once it is too long.
func (w *Worker) tick(now time.Time) {
	w.mu.Lock()
	w.mu.now = now
	if now.Sub(w.mu.told) < LogAfter {
		w.mu.Unlock()
		return
	}
	var oldest *tensor
	stalled := 0
	for _, t := range w.mu.byID {
		if t.active == nil || t.missing == nil || now.Sub(t.begun) < LogAfter {
			continue
		}
		stalled++
		if oldest == nil || t.begun.Before(oldest.begun) || t.begun.Equal(oldest.begun) && t.key < oldest.key {
			oldest = t
		}
	}
	if oldest == nil {
		w.mu.Unlock()
		return
	}
	w.mu.told = now
	key, round, missing, waited := oldest.key, oldest.round, strings.Join(oldest.missing, ", "), now.Sub(oldest.begun)
	w.mu.Unlock()
	w.Log.Warn(fmt.Sprintf("no progress for %.0f s", waited.Seconds()), "key", key, "round", round, "missing", missing, "other_keys", stalled-1)
}

// Fail ends every operation with err, and every later one. The data plane must
// have ended before: nothing may touch the callers' arrays any more.
func (w *Worker) Fail(err error) {
	w.mu.Lock()
	if w.mu.failed != nil {
		w.mu.Unlock()
		return
	}
	w.mu.failed = err
	var ended []*Ticket
	for _, t := range w.mu.byKey {
		pending := t.queue
		if t.active != nil {
			pending = append([]*operation{t.active}, pending...)
		}
		t.active, t.queue = nil, nil
		for _, o := range pending {
			o.whole = true
			o.err = err
			ended = append(ended, w.end(o)...)
		}
	}
	w.mu.Unlock()
	w.finish(ended, err)
}
