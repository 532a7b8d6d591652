package kv

import (
	"slices"
	"sync"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/latch"
	"fptps/gocore/trace"
)

// Ticket is the promise of one operation. It is finished exactly once.
type Ticket struct {
	done  latch.Latch
	err   error  // written before done is opened
	epoch uint16 // likewise; see Epoch

	explain func() Waiting
	tensor  uint32 // that the operation is about; trace.NoTensor: none, or not known

	// Under Tickets.mu.
	number int64 // set by Number; 0: it has none yet
	ended  bool
}

// Done reports whether the operation has ended, in success or not.
func (t *Ticket) Done() bool { return t.done.Opened() }

// Wait waits for the end, at most for timeout. done reports whether it came; err is then the operation's error.
func (t *Ticket) Wait(timeout time.Duration) (done bool, err error) {
	if !t.done.Wait(timeout) {
		return false, nil
	}
	return true, t.err
}

// Epoch is that of the round of an operation that has ended, in aggregate.Members: all workers of the epoch have contributed to the sum.
func (t *Ticket) Epoch() int { return int(t.epoch) }

// Tensor is the id of the tensor that the operation is about; trace.NoTensor: none, or it is not known.
func (t *Ticket) Tensor() uint32 { return t.tensor }

// Waiting describes why an operation has not ended: a text of one line, the key, and the nodes that are missing.
type Waiting struct {
	Text string
	fault.About
}

// Explain describes why the operation has not ended; nothing if it has, or nothing is known.
func (t *Ticket) Explain() Waiting {
	if t.explain == nil || t.Done() {
		return Waiting{}
	}
	return t.explain()
}

// Tickets makes the tickets of a node, and keeps each that has a number until the caller has passed the number to Ended.
// The caller chooses the numbers, so that it knows a ticket's number before the operation begins.
type Tickets struct {
	waits waits
	mu    struct {
		sync.Mutex
		open     int // tickets that have not ended
		numbered map[int64]*Ticket
		ended    []int64 // in order; Ended skips those that are no longer in numbered
		notify   func()
	}
}

// NewTickets makes an empty set.
func NewTickets() *Tickets {
	t := &Tickets{}
	t.mu.numbered = map[int64]*Ticket{}
	return t
}

// New opens a ticket. explain describes why the operation has not ended; it may be nil.
func (t *Tickets) New(explain func() Waiting) *Ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.open++
	return &Ticket{explain: explain, tensor: trace.NoTensor}
}

// Number gives a ticket a number, for Find and Ended.
func (t *Tickets) Number(ticket *Ticket, number int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if number <= 0 || t.mu.numbered[number] != nil {
		return fault.New(fault.Internal, "%d is not a new ticket number", number)
	}
	ticket.number = number
	t.mu.numbered[number] = ticket
	if ticket.ended {
		t.announce(ticket)
	}
	return nil
}

// Finish ends a ticket, with an error or nil.
func (t *Tickets) Finish(ticket *Ticket, err error) {
	ticket.err = err
	ticket.done.Open()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.open--
	ticket.ended = true
	if ticket.number != 0 {
		t.announce(ticket)
	}
}

// announce adds a numbered ticket to those that have ended; the lock is held.
func (t *Tickets) announce(ticket *Ticket) {
	t.mu.ended = append(t.mu.ended, ticket.number)
	if t.mu.notify != nil {
		t.mu.notify()
	}
}

// Find returns the ticket with a number; nil if there is none, or Ended has forgotten it.
func (t *Tickets) Find(number int64) *Ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.numbered[number]
}

// Ended forgets the ended ticket with the number noted (0: none), and returns the number of the first other ended ticket,
// 0 if there is none. It returns the same number again until the caller passes it as noted.
func (t *Tickets) Ended(noted int64) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ticket := t.mu.numbered[noted]; ticket != nil && ticket.ended {
		delete(t.mu.numbered, noted)
	}
	first := slices.IndexFunc(t.mu.ended, func(number int64) bool { return t.mu.numbered[number] != nil })
	if first < 0 {
		t.mu.ended = t.mu.ended[:0]
		return 0
	}
	t.mu.ended = t.mu.ended[first:]
	return t.mu.ended[0]
}

// Wake calls the function that Notify has set: the workers of the cluster have changed.
func (t *Tickets) Wake() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.notify != nil {
		t.mu.notify()
	}
}

// Notify sets the function that is called, from any thread, whenever a ticket that has a number ends. f must not block.
// When Notify returns, the function set before is not running, and will not run again.
func (t *Tickets) Notify(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.notify = f
}
