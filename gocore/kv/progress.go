package kv

import (
	"encoding/binary"
	"time"

	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// advance starts the tensor's next round if one is queued, the round before is complete,
// no pull is copying its sum and neither a promise nor a freeze forbids it.
func (w *Worker) advance(t *tensor) []sending {
	if t.active != nil || t.readers > 0 || len(t.queue) == 0 || w.waits(t) {
		return nil
	}
	o := t.queue[0]
	t.queue = t.queue[1:]
	t.begun, w.mu.latest = w.mu.now, t
	return w.begin(t, o)
}

// effects is what remains to be done after a change of the worker's state, once its lock is free.
type effects struct {
	sends []sending
	ended []*Ticket
	err   error  // of those that ended
	copy  func() // copies a sum to the arrays of callers; nil: there is none to copy
	also  []effects
}

// step changes the worker's state and then carries out the effects. The lock is
// released even if change panics: later callers then get the error of Fail instead of
// waiting for ever. It is also released before send, since the transport may wake
// its thread by a system call, and may call Release at once.
func (w *Worker) step(change func() effects) {
	e, freed := w.locked(change)
	w.carryOut(e)
	for _, kept := range freed {
		free(kept)
	}
}

func (w *Worker) carryOut(e effects) {
	w.send(e.sends)
	for _, t := range e.ended {
		w.Tickets.Finish(t, e.err)
	}
	if e.copy != nil {
		e.copy()
	}
	for _, other := range e.also {
		w.carryOut(other)
	}
}

func (w *Worker) locked(change func() effects) (e effects, freed [][]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e = change()
	freed, w.mu.freed = w.mu.freed, nil
	return e, freed
}

// send queues runs in the transport.
func (w *Worker) send(out []sending) {
	for _, s := range out {
		w.Lanes[s.lane].Send(s.node, transport.Outgoing{Header: s.header, Data: s.data, Owner: s.owner})
	}
}

// Release is called by the transport when it no longer refers to one of the
// operation's runs.
func (o *operation) Release() {
	if o.queued.Add(-1) > 0 {
		return
	}
	o.worker.step(func() effects { return effects{ended: o.worker.end(o), err: o.err} })
}

// end returns o's tickets, to be finished, once its sum is whole and no queue refers to
// its array: only then may the caller use its memory again.
func (w *Worker) end(o *operation) []*Ticket {
	if !o.whole || o.queued.Load() > 0 || o.ticket == nil {
		return nil
	}
	tickets := []*Ticket{o.ticket}
	o.ticket.epoch = o.epoch
	w.traceDone(o)
	o.ticket = nil
	if w.Observe != nil && o.err == nil && (o.verb == verbPush || o.verb == verbPushPull) {
		w.Observe(o.priority, time.Since(o.called))
	}
	if o.borrowed {
		w.mu.flights.leave(o.source, o)
	}
	for _, p := range o.pulls {
		if p.caller {
			w.mu.flights.leave(p.memory, nil)
		}
		if p.ticket != nil {
			p.ticket.epoch = o.epoch
			tickets = append(tickets, p.ticket)
		}
	}
	o.source, o.pulls, o.parts, o.got = nil, nil, nil, nil
	return tickets
}

// place returns the memory for the payload of a sum or an answer; nil if no operation waits for it.
func (w *Worker) place(node uint32, h *wire.Header) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.Kind == wire.Answer {
		return w.mu.asks.place(node, h)
	}
	t := w.mu.byID[h.Tensor]
	if t == nil || !t.wants(node, h) || len(t.active.pulls) == 0 {
		return nil
	}
	return t.region(t.active.pulls[0].memory, h.Packet)
}

// sum handles a sum whose payload is in the memory that place has returned; payload is
// nil if it has none. A sum that no operation waits for (repeated, or late) is dropped.
func (w *Worker) sum(node uint32, h *wire.Header, payload []byte) {
	w.step(func() effects {
		t := w.mu.byID[h.Tensor]
		if t == nil || !t.wants(node, h) && !t.wantsRows(h) {
			return effects{}
		}
		w.mu.sums++
		t.updated = t.updated || h.Flags&wire.FlagWeights != 0
		if t.table == nil {
			w.mu.stats.BytesPulled += uint64(h.RawLen)
			t.arrived(h, payload)
		} else {
			t.completeRows(node, h)
		}
		return w.endRound(t)
	})
}

// endRound ends the round under way, if all sums are here. The lock is held.
func (w *Worker) endRound(t *tensor) effects {
	o := t.active
	if !o.hasAll() || len(w.mu.frozen) > 0 && o.verb != verbFetch {
		return effects{}
	}
	o.whole, o.epoch = true, t.epoch
	if o.verb != verbFetch {
		w.dropParcel(t.epoch)
	}
	t.active = nil
	w.setMissing(t, nil)
	var sends []sending
	for _, pull := range o.after {
		sends = append(sends, pull.start()...)
	}
	o.after = nil // they hold pointers to callers' memory
	if w.Recovers && len(o.pulls) > 1 {
		return effects{sends: sends, copy: w.copySum(o)}
	}
	ended := w.end(o)
	return effects{sends: append(sends, w.advance(t)...), ended: ended, err: o.err}
}

// noteMissing records an aggregator's report of the workers that a round waits for.
func (w *Worker) noteMissing(h *wire.Header, payload []byte) {
	names := make([]string, 0, len(payload)/4)
	for ; len(payload) >= 4; payload = payload[4:] {
		names = append(names, w.Name(binary.LittleEndian.Uint32(payload)))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.mu.byID[h.Tensor]; t != nil && t.active != nil && t.round == h.Round {
		w.setMissing(t, names)
	}
}

// setMissing records the workers that the round of a tensor waits for; nil: the round is complete. The lock is held.
func (w *Worker) setMissing(t *tensor, names []string) {
	t.missing = names
	switch {
	case names == nil && t.place != nil:
		w.mu.late.Remove(t.place)
		t.place = nil
	case names != nil && t.place == nil:
		t.place = w.mu.late.PushBack(t)
	}
}

// Fail ends every operation with err, and refuses every later one with it. The data plane
// must have ended before, so that it no longer touches the callers' arrays.
func (w *Worker) Fail(err error) {
	w.step(func() effects {
		if w.mu.failed != nil {
			return effects{}
		}
		w.mu.failed = err
		e := effects{ended: w.mu.asks.fail(err), err: err}
		for _, t := range w.mu.byKey {
			pending := t.queue
			if t.active != nil {
				pending = append([]*operation{t.active}, pending...)
			}
			t.active, t.queue = nil, nil
			w.setMissing(t, nil)
			for _, o := range pending {
				o.whole, o.err = true, err
				e.ended = append(e.ended, w.end(o)...)
				for _, pull := range o.after {
					e.ended = append(e.ended, pull.drop(err)...)
				}
				if o.kept != nil {
					w.mu.freed, o.kept = append(w.mu.freed, o.kept), nil
				}
			}
			w.dropKept(t)
		}
		return e
	})
	w.copies.Wait()
}
