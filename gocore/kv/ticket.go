package kv

import (
	"slices"
	"sync"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/latch"
)

// Ticket is the promise of one operation. It is finished exactly once.
type Ticket struct {
	ID   int64
	done latch.Latch
	err  error // written before done is opened

	explain func() string
}

// Done tells whether the operation has ended, in success or not.
func (t *Ticket) Done() bool { return t.done.Opened() }

// Tickets hands out tickets and keeps them until somebody has heard how they ended.
type Tickets struct {
	mu struct {
		sync.Mutex
		last   int64
		open   map[int64]*Ticket
		ended  []int64 // not reaped yet, in order
		notify func()
	}
}

// NewTickets makes an empty set.
func NewTickets() *Tickets {
	t := &Tickets{}
	t.mu.open = map[int64]*Ticket{}
	return t
}

// New opens a ticket. explain says in one line what the operation waits for; it
// may be nil.
func (t *Tickets) New(explain func() string) *Ticket {
	ticket := &Ticket{explain: explain}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.last++
	ticket.ID = t.mu.last
	t.mu.open[ticket.ID] = ticket
	return ticket
}

// Finish ends a ticket, with an error or nil.
func (t *Tickets) Finish(ticket *Ticket, err error) {
	ticket.err = err
	ticket.done.Open()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.ended = append(t.mu.ended, ticket.ID)
	if t.mu.notify != nil {
		t.mu.notify()
	}
}

// Wait waits at most timeout for ticket id. Once it has told the end it forgets
// the ticket; asking again is a Value error.
func (t *Tickets) Wait(id int64, timeout time.Duration) (done bool, err error) {
	t.mu.Lock()
	ticket := t.mu.open[id]
	t.mu.Unlock()
	if ticket == nil {
		return false, fault.New(fault.Value, "ticket %d is unknown, or was waited for already", id)
	}
	if !ticket.done.Wait(timeout) {
		return false, nil
	}
	t.mu.Lock()
	delete(t.mu.open, id)
	if len(t.mu.ended) > 2*len(t.mu.open)+16 { // so that it stays short where nobody reaps
		t.mu.ended = slices.DeleteFunc(t.mu.ended, func(id int64) bool { return t.mu.open[id] == nil })
	}
	t.mu.Unlock()
	return true, ticket.err
}

// Reap gives the id of a ticket that has ended, each at most once, and none that
// was waited for in the meantime; 0 when there is no other.
func (t *Tickets) Reap() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.mu.ended) > 0 {
		id := t.mu.ended[0]
		t.mu.ended = t.mu.ended[1:]
		if t.mu.open[id] != nil {
			return id
		}
	}
	return 0
}

// Explain says what ticket id waits for; "" when there is nothing to say.
func (t *Tickets) Explain(id int64) string {
	t.mu.Lock()
	ticket := t.mu.open[id]
	t.mu.Unlock()
	if ticket == nil || ticket.explain == nil || ticket.Done() {
		return ""
	}
	return ticket.explain()
}

// Notify has f called, from any thread, whenever a ticket ends. f must not block. On
// return the function before it is not running, and will not run again.
func (t *Tickets) Notify(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.notify = f
}
