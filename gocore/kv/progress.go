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

// effects is what a change of the worker's state asks for once its lock is free.
type effects struct {
	sends []sending
	ended []*Ticket
	err   error // of those that ended
}

// step changes the worker's state and then does what the change asks for. The lock
// is free again even where change panics: who comes next gets an error from Fail,
// and does not wait for ever. It is free before send, too: the transport may wake
// its thread by a system call, and may call Release at once.
func (w *Worker) step(change func() effects) {
	e := w.locked(change)
	w.send(e.sends)
	for _, t := range e.ended {
		w.Tickets.Finish(t, e.err)
	}
}

func (w *Worker) locked(change func() effects) effects {
	w.mu.Lock()
	defer w.mu.Unlock()
	return change()
}

// send hands runs to the transport.
func (w *Worker) send(out []sending) {
	for _, s := range out {
		s.header.Plan = w.Plan.Version
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

// end takes o's tickets once its sum is whole and no queue refers to its array:
// only then is the caller's memory the caller's again.
func (w *Worker) end(o *operation) []*Ticket {
	if !o.whole || o.queued.Load() > 0 || o.ticket == nil {
		return nil
	}
	tickets := []*Ticket{o.ticket}
	o.ticket = nil
	if o.borrowed {
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
	o.source, o.pulls, o.parts, o.got = nil, nil, nil, nil
	return tickets
}

// place says where the payload of a sum or an answer is read to; nil where nobody wants it.
func (w *Worker) place(node uint32, h *wire.Header) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.Kind == wire.Answer {
		return w.mu.asks.place(node, h)
	}
	t := w.mu.byID[h.Tensor]
	if t == nil || !t.wants(node, h) {
		return nil
	}
	return t.region(t.active.pulls[0].memory, h.Packet)
}

// sum takes a sum that landed where place said; landed is nil where it has no
// payload. What nobody waits for (sent again, or late) is dropped.
func (w *Worker) sum(node uint32, h *wire.Header, landed []byte) {
	w.step(func() effects {
		t := w.mu.byID[h.Tensor]
		if t == nil || !t.wants(node, h) && !t.wantsRows(h) {
			return effects{}
		}
		o := t.active
		if t.table == nil {
			w.mu.stats.BytesPulled += uint64(h.RawLen)
			t.arrived(h, landed)
		} else {
			t.through(node, h)
		}
		if !o.whole {
			return effects{}
		}
		t.active = nil
		var sends []sending
		for _, pull := range o.after {
			sends = append(sends, pull.start()...)
		}
		ended := w.end(o)
		return effects{sends: append(sends, w.advance(t)...), ended: ended, err: o.err}
	})
}

// told takes an aggregator's word on whom a round waits for.
func (w *Worker) told(h *wire.Header, payload []byte) {
	names := make([]string, 0, len(payload)/4)
	for ; len(payload) >= 4; payload = payload[4:] {
		names = append(names, w.Name(binary.LittleEndian.Uint32(payload)))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.mu.byID[h.Tensor]; t != nil && t.active != nil && t.round == h.Round {
		t.missing = names
	}
}

// LogAfter is how long a round may stall before the log says so, and again.
const LogAfter = 5 * time.Second

// stall is the round that has waited longest for other workers.
type stall struct {
	key, round uint64
	begun      time.Time
	missing    []string
	others     int // keys that wait too
}

// tick logs the stall, once it is too long, and questions without an answer.
func (w *Worker) tick(now time.Time) {
	w.tickAsks(now)
	if s, found := w.stalled(now); found {
		w.Log.Warn(fmt.Sprintf("no progress for %.0f s", now.Sub(s.begun).Seconds()),
			"key", s.key, "round", s.round, "missing", strings.Join(s.missing, ", "), "other_keys", s.others)
	}
}

func (w *Worker) stalled(now time.Time) (s stall, found bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.now = now
	if now.Sub(w.mu.told) < LogAfter {
		return s, false
	}
	for _, t := range w.mu.byID {
		if t.active == nil || t.missing == nil || now.Sub(t.begun) < LogAfter {
			continue
		}
		if found {
			s.others++
		}
		if !found || t.begun.Before(s.begun) || t.begun.Equal(s.begun) && t.key < s.key {
			s.key, s.round, s.begun, s.missing = t.key, t.round, t.begun, t.missing
		}
		found = true
	}
	if found {
		w.mu.told = now
	}
	return s, found
}

// Fail ends every operation with err, and every later one. The data plane must
// have ended before: nothing may touch the callers' arrays any more.
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
			for _, o := range pending {
				o.whole, o.err = true, err
				e.ended = append(e.ended, w.end(o)...)
				for _, pull := range o.after {
					e.ended = append(e.ended, pull.drop(err)...)
				}
			}
		}
		return e
	})
}
