package kv

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// ask is one question to one aggregator. It has exactly one answer.
type ask struct {
	of     *inquiry
	node   uint32
	lane   int
	header wire.Header // what is asked; the number is filled in
	data   []byte
	into   []byte // where the answer's payload goes, all of it; nil: into memory of its own
	rows   []int  // AskRows: which of the caller's rows it is for
}

// inquiry is what one operation asks, of one aggregator or of many: its ticket ends with the last answer.
type inquiry struct {
	about  string // what is asked, for texts: "the optimiser of key 5"
	take   func(a *ask, payload []byte) error
	ended  func() []sending // what follows, with the worker's lock held; nil: nothing
	memory []byte           // of the caller, noted in flights; nil: none

	worker *Worker
	ticket *Ticket
	after  *operation // the asks are sent when this one has ended; nil: at once
	asks   int
	left   int          // asks without an answer
	queued atomic.Int32 // asks that the transport still refers to
	heard  time.Time    // when the last answer came, to the second
	told   time.Time    // when the log last said that none comes
	err    error        // the first refusal
}

// asks is what a worker has asked and not yet heard. It is empty but for the time between inquire and the last answer.
type asks struct {
	last uint64
	open map[uint64]*ask
}

// ask asks about a key what question makes of its tensor, and gives the ticket of it all.
func (w *Worker) ask(key uint64, i *inquiry, question func(t *tensor) ([]*ask, error)) (ticket *Ticket, err error) {
	w.step(func() (e effects) {
		var t *tensor
		var all []*ask
		if t, err = w.find(key); err != nil {
			return e
		}
		if i.memory != nil {
			if err = w.mu.flights.take(key, i.memory, nil, nil); err != nil {
				return e
			}
		}
		if all, err = question(t); err != nil {
			if i.memory != nil {
				w.mu.flights.leave(i.memory, nil)
			}
			return e
		}
		e = w.inquire(i, all)
		ticket = i.ticket
		return e
	})
	return ticket, err
}

// inquire sends asks, at least one; their inquiry gets its ticket. The lock is held.
func (w *Worker) inquire(i *inquiry, all []*ask) effects {
	w.open(i, all)
	return effects{sends: w.put(i, all)}
}

// open gives the inquiry that is going to be made of asks its ticket.
func (w *Worker) open(i *inquiry, all []*ask) {
	i.worker, i.asks, i.left = w, len(all), len(all)
	i.queued.Store(int32(len(all)))
	i.ticket = w.Tickets.New(func() string { return w.explainInquiry(i) })
}

// put sends the asks of an inquiry.
func (w *Worker) put(i *inquiry, all []*ask) []sending {
	i.heard, i.told = w.mu.now, w.mu.now
	sends := make([]sending, len(all))
	for n, a := range all {
		a.of = i
		w.mu.asks.last++
		a.header.Kind, a.header.Round, a.header.Run = wire.Ask, w.mu.asks.last, 1
		w.mu.asks.open[a.header.Round] = a
		sends[n] = sending{a.node, a.lane, a.header, a.data, i}
	}
	return sends
}

// Release is called by the transport when it no longer refers to one of the asks.
func (i *inquiry) Release() {
	if i.queued.Add(-1) == 0 {
		i.worker.step(i.end)
	}
}

// end ends the inquiry once every answer is here and no queue refers to the caller's memory. The lock is held.
func (i *inquiry) end() effects {
	if i.left > 0 || i.queued.Load() > 0 || i.ticket == nil {
		return effects{}
	}
	e := effects{ended: []*Ticket{i.ticket}, err: i.err}
	i.ticket = nil
	if i.memory != nil {
		i.worker.mu.flights.leave(i.memory, nil)
	}
	if i.ended != nil {
		e.sends = i.ended()
	}
	return e
}

// find gives the ask that h of node answers; nil where there is none, or not any more.
func (s *asks) find(node uint32, h *wire.Header) *ask {
	if a := s.open[h.Round]; a != nil && a.node == node && a.header.Op == h.Op {
		return a
	}
	return nil
}

// place says where an answer is read to; nil where nobody wants it.
func (s *asks) place(node uint32, h *wire.Header) []byte {
	a := s.find(node, h)
	switch {
	case a == nil:
		return nil
	case h.Flags&wire.FlagRefused == 0 && len(a.into) == int(h.WireLen):
		return a.into
	}
	return make([]byte, h.WireLen)
}

// answered takes an answer that landed where place said. What nobody has asked is dropped.
func (w *Worker) answered(node uint32, h *wire.Header, payload []byte) {
	w.step(func() effects {
		a := w.mu.asks.find(node, h)
		if a == nil {
			return effects{}
		}
		delete(w.mu.asks.open, h.Round)
		i := a.of
		i.left--
		i.heard = w.mu.now
		if err := a.hear(h, payload); err != nil && i.err == nil {
			i.err = err
		}
		return i.end()
	})
}

// hear hands the answer to the inquiry.
func (a *ask) hear(h *wire.Header, payload []byte) error {
	i := a.of
	switch {
	case h.Flags&wire.FlagRefused != 0:
		return refusal(i.about, i.worker.Name(a.node), wire.GetReason(payload))
	case a.into != nil && len(payload) != len(a.into):
		return fault.New(fault.Internal, "%s: %s answers with %d bytes, %d were expected", i.about, i.worker.Name(a.node), len(payload), len(a.into))
	case i.take != nil:
		return i.take(a, payload)
	}
	return nil
}

// refusal is the error that an aggregator sent as text; its code is in front.
func refusal(about, name, text string) error {
	code, rest, found := strings.Cut(text, ": ")
	if !found || !slices.Contains(fault.Codes(), fault.Code(code)) {
		code, rest = string(fault.Remote), text
	}
	return fault.New(fault.Code(code), "%s: %s: %s", about, name, rest)
}

// explainInquiry says in one line what an inquiry waits for.
func (w *Worker) explainInquiry(i *inquiry) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case i.after != nil && !i.after.whole:
		return i.about + ": first the push before it: " + w.waitsFor(i.after)
	case i.left == 0:
		return i.about + ": all answers are here, the last bytes are being sent"
	}
	return fmt.Sprintf("%s: %d of %d answers are here; missing: %s", i.about, i.asks-i.left, i.asks, strings.Join(w.silent(i), ", "))
}

// silent is who has yet to answer.
func (w *Worker) silent(i *inquiry) []string {
	var nodes []uint32
	for _, a := range w.mu.asks.open {
		if a.of == i && !slices.Contains(nodes, a.node) {
			nodes = append(nodes, a.node)
		}
	}
	slices.Sort(nodes)
	names := make([]string, len(nodes))
	for n, node := range nodes {
		names[n] = w.Name(node)
	}
	return names
}

// tickAsks logs inquiries of which nothing is heard any more.
func (w *Worker) tickAsks(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.mu.asks.open {
		i := a.of
		if now.Sub(i.heard) >= LogAfter && now.Sub(i.told) >= LogAfter {
			i.told = now
			w.Log.Warn(fmt.Sprintf("no answer for %.0f s", now.Sub(i.heard).Seconds()), "about", i.about, "missing", strings.Join(w.silent(i), ", "))
		}
	}
}

// fail ends every inquiry; the lock is held.
func (s *asks) fail(err error) (ended []*Ticket) {
	for _, a := range s.open {
		i := a.of
		i.err, i.left, i.ended = err, 0, nil
		ended = append(ended, i.end().ended...)
	}
	clear(s.open)
	return ended
}
