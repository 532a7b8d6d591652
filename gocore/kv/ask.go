package kv

import (
	"container/list"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// ask is one request to one aggregator, beside the rounds. It gets exactly one answer.
type ask struct {
	of     *inquiry
	node   uint32
	lane   int
	header wire.Header // put sets its number
	data   []byte
	into   []byte // memory for the whole payload of the answer; nil: the answer gets memory of its own
	rows   []int  // of AskRows: indices of the caller's rows

	mayLack bool // the aggregator may not have the packet: then it gets no answer that counts
}

// inquiry is an operation that consists of asks, to one aggregator or to many: its ticket ends with the last answer.
type inquiry struct {
	about  string // its subject in texts: "the optimiser of key 5"
	take   func(a *ask, payload []byte) error
	more   func(a *ask) []*ask // further asks that an answer leads to; nil: none
	then   func() effects      // called at the end, with the worker's lock held; nil: none
	vital  bool                // after a refusal nothing can go on
	memory []byte              // of the caller, recorded in flights; nil: none

	worker *Worker
	ticket *Ticket
	after  *operation // the asks are sent when this one has ended; nil: at once
	asks   int
	left   int            // asks without an answer
	silent map[uint32]int // unanswered asks of each node that has some
	place  *list.Element  // in asks.waiting; nil while it is not in there
	queued atomic.Int32   // asks that the transport still refers to
	latest time.Time      // when the last answer came, to the second
	err    error          // the first refusal
}

// asks holds a worker's unanswered asks.
type asks struct {
	last    uint64
	open    map[uint64]*ask
	again   []*ask    // of open, whose nodes are dead: they will be sent to the heirs
	waiting list.List // the inquiries of open, in the order of their latest answers
	logged  time.Time // when the log last named one
}

// ask sends the asks that build returns for the tensor of key, and returns the inquiry's ticket.
func (w *Worker) ask(key uint64, i *inquiry, build func(t *tensor) ([]*ask, error)) (ticket *Ticket, err error) {
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
		if all, err = build(t); err != nil {
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

// inquire opens an inquiry and sends its asks, at least one. The lock is held.
func (w *Worker) inquire(i *inquiry, all []*ask) effects {
	w.open(i, all)
	return effects{sends: w.put(i, all)}
}

// open makes the ticket of an inquiry whose asks will be sent.
func (w *Worker) open(i *inquiry, all []*ask) {
	i.worker, i.asks, i.left = w, len(all), len(all)
	i.queued.Store(int32(len(all)))
	i.ticket = w.Tickets.New(func() Waiting { return w.explainInquiry(i) })
}

// put sends the asks of an inquiry.
func (w *Worker) put(i *inquiry, all []*ask) []sending {
	i.latest, i.silent, i.place = w.mu.now, map[uint32]int{}, w.mu.asks.waiting.PushBack(i)
	return w.number(i, all)
}

// number gives asks their numbers, after which their answers may come.
func (w *Worker) number(i *inquiry, all []*ask) []sending {
	sends := make([]sending, len(all))
	for n, a := range all {
		a.of = i
		i.silent[a.node]++
		w.mu.asks.last++
		a.header.Kind, a.header.Number, a.header.Run = wire.Ask, w.mu.asks.last, 1
		w.mu.asks.open[a.header.Number] = a
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
	var e effects
	if i.memory != nil {
		i.worker.mu.flights.leave(i.memory, nil)
	}
	if i.then != nil {
		e.also = []effects{i.then()}
	}
	e.ended, e.err = []*Ticket{i.ticket}, i.err
	i.ticket = nil
	i.memory, i.take, i.more, i.then = nil, nil, nil, nil // the ticket, which refers to i, may be kept for long
	return e
}

// find returns the unanswered ask that the answer h of node belongs to; nil if there is none.
func (s *asks) find(node uint32, h *wire.Header) *ask {
	if a := s.open[h.Number]; a != nil && a.node == node && a.header.Op == h.Op {
		return a
	}
	return nil
}

// place returns the memory for an answer's payload; nil if no ask waits for the answer.
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

// answered handles an answer whose payload is in the memory that place has returned. An answer without an ask is dropped. It
// returns an error if a vital ask is refused.
func (w *Worker) answered(node uint32, h *wire.Header, payload []byte) (broken error) {
	w.step(func() effects {
		a := w.mu.asks.find(node, h)
		if a == nil {
			return effects{}
		}
		delete(w.mu.asks.open, h.Number)
		i := a.of
		err := a.accept(h, payload)
		if err != nil && i.err == nil {
			i.err = err
		}
		var sends []sending
		if i.more != nil && err == nil {
			sends = w.extend(i, i.more(a))
		}
		w.mu.asks.record(a, w.mu.now)
		if i.vital {
			broken = i.err
		}
		e := i.end()
		e.sends = append(sends, e.sends...)
		return e
	})
	return broken
}

// extend adds asks to an inquiry that has an ask without an answer.
func (w *Worker) extend(i *inquiry, all []*ask) []sending {
	i.asks, i.left = i.asks+len(all), i.left+len(all)
	i.queued.Add(int32(len(all)))
	return w.number(i, all)
}

// record records that an ask has its answer.
func (s *asks) record(a *ask, now time.Time) {
	i := a.of
	i.left--
	i.latest = now
	if i.silent[a.node]--; i.silent[a.node] == 0 {
		delete(i.silent, a.node)
	}
	if i.left > 0 {
		s.waiting.MoveToBack(i.place)
		return
	}
	s.waiting.Remove(i.place)
	i.place = nil
}

// accept passes an answer to the inquiry.
func (a *ask) accept(h *wire.Header, payload []byte) error {
	i := a.of
	switch {
	case h.Flags&wire.FlagRefused != 0:
		err := refusal(i.about, i.worker.Name(a.node), wire.GetReason(payload))
		if a.mayLack && lacks(err) {
			return nil
		}
		return err
	case a.into != nil && len(payload) != len(a.into):
		return fault.New(fault.Internal, "%s: %s answers with %d bytes, %d were expected", i.about, i.worker.Name(a.node), len(payload), len(a.into))
	case i.take != nil:
		return i.take(a, payload)
	}
	return nil
}

// refusal parses the error that an aggregator sent as a text, which begins with the code.
func refusal(about, name, text string) error {
	code, rest, found := strings.Cut(text, ": ")
	if !found || !slices.Contains(fault.Codes(), fault.Code(code)) {
		code, rest = string(fault.Remote), text
	}
	return fault.New(fault.Code(code), "%s: %s: %s", about, name, rest)
}

// explainInquiry describes why an inquiry has not ended.
func (w *Worker) explainInquiry(i *inquiry) Waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case i.after != nil && !i.after.whole:
		first := w.waitsFor(i.after)
		first.Text = i.about + ": first the push before it: " + first.Text
		return first
	case i.left == 0:
		return Waiting{Text: i.about + ": all answers are here, the last bytes are being sent"}
	}
	missing := w.missing(i)
	return Waiting{
		Text:  fmt.Sprintf("%s: %d of %d answers are here; missing: %s", i.about, i.asks-i.left, i.asks, strings.Join(missing, ", ")),
		About: fault.About{Missing: missing},
	}
}

// missing names the nodes with unanswered asks.
func (w *Worker) missing(i *inquiry) (names []string) {
	for _, node := range slices.Sorted(maps.Keys(i.silent)) {
		names = append(names, w.Name(node))
	}
	return names
}

// tickAsks logs the inquiry that has been without an answer for longest, from LogAfter on. It inspects no other.
func (w *Worker) tickAsks(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.mu.asks
	if s.waiting.Len() == 0 || now.Sub(s.logged) < LogAfter {
		return
	}
	i := s.waiting.Front().Value.(*inquiry)
	if now.Sub(i.latest) < LogAfter {
		return
	}
	s.logged = now
	w.Log.Warn(fmt.Sprintf("no answer for %.0f s", now.Sub(i.latest).Seconds()), "about", i.about, "missing", strings.Join(w.missing(i), ", "), "other_questions", s.waiting.Len()-1)
}

// bury redirects the asks that a dead node has not answered to its heir, to be sent by resend. Without an heir, and where only
// the dead one knew the answer, it ends their inquiries. The lock is held.
func (s *asks) bury(dead Death, err error) (ended []*Ticket) {
	for number, a := range s.open {
		switch {
		case a.node != dead.Node:
		case dead.Heir != none && a.header.Op != wire.AskInventory:
			a.of.silent[dead.Heir]++
			if a.of.silent[dead.Node]--; a.of.silent[dead.Node] == 0 {
				delete(a.of.silent, dead.Node)
			}
			a.node = dead.Heir
			s.again = append(s.again, a)
		default:
			delete(s.open, number)
			s.record(a, a.of.latest)
			a.of.err = err
			ended = append(ended, a.of.end().ended...)
		}
	}
	return ended
}

// resend returns the asks that bury has redirected and that have no answer.
func (s *asks) resend() (sends []sending) {
	for _, a := range s.again {
		if s.open[a.header.Number] == a {
			a.of.queued.Add(1)
			sends = append(sends, sending{a.node, a.lane, a.header, a.data, a.of})
		}
	}
	s.again = nil
	return sends
}

// fail ends every inquiry; the lock is held.
func (s *asks) fail(err error) (ended []*Ticket) {
	for _, a := range s.open {
		i := a.of
		i.err, i.left, i.then = err, 0, nil
		ended = append(ended, i.end().ended...)
	}
	clear(s.open)
	s.waiting.Init()
	return ended
}
