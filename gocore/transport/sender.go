package transport

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// sender is the send loop. Again and again it takes a batch from the queue that has
// the most urgent head, under the lock, writes it without, and puts back what the
// kernel did not take. A connection that took less than it was given is left alone
// until epoll says that it is writable again.
type sender struct {
	poller *poller
	ended  chan struct{}

	writer
	due  time.Duration // where no batch is in hand: when something may be written that waits for its time
	poll bool          // connections that are not writable have something waiting
}

func newSender(t *Transport, p *poller) *sender {
	return &sender{writer: writer{t: t}, poller: p, ended: make(chan struct{})}
}

// run is the thread of the send loop. However it ends, the batch in hand is given
// back and the receive loop told.
func (s *sender) run() {
	runtime.LockOSThread()
	prompt()
	defer close(s.ended)
	err := s.guard()
	s.t.stop(err)
	_, wake := s.turn()
	s.t.wake(wake)
}

func (s *sender) guard() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in the send loop: %v\n%s", p, debug.Stack())
		}
	}()
	return s.loop()
}

func (s *sender) loop() error {
	for s.next() {
		if s.conn == nil {
			if err := s.sleep(); err != nil {
				return err
			}
			continue
		}
		if s.poll { // now: after transmit an event of conn itself would be undone by finish
			events, err := s.poller.poll()
			if err != nil {
				return err
			}
			s.writable(events)
		}
		s.transmit()
		if s.full && s.broken == nil {
			if err := s.poller.rearm(s.conn); err != nil {
				s.fail(err)
			}
		}
		s.look()
	}
	return nil
}

// next ends the batch in hand and takes the next; conn stays nil where there is
// nothing to write. It is false when the transport stops.
func (s *sender) next() bool {
	more, wake := s.turn()
	s.t.wake(wake)
	return more
}

func (s *sender) turn() (more bool, wake *poller) {
	t := s.t
	t.mu.Lock()
	defer t.mu.Unlock()
	wake = s.finish()
	if t.mu.stopped {
		return false, wake
	}
	s.now = t.now()
	choice := t.mu.table.choose(s.now)
	s.poll, s.due = choice.blocked, choice.due
	if choice.conn != nil {
		s.take(choice.conn)
	}
	t.mu.sendSleeps, t.mu.sendWakes = s.conn == nil, s.due
	return true, wake
}

// sleep waits until a queue fills, a connection becomes writable, or what waits for
// its time is due.
func (s *sender) sleep() error {
	wait := forever
	if s.due != never {
		wait = s.due - s.t.now()
	}
	events, err := s.poller.wait(wait)
	s.writable(events)
	return err
}

// writable notes what epoll told. An event of a connection that has ended since
// finds none, or at worst a new one of the same peer, which costs a vain write.
func (s *sender) writable(events []unix.EpollEvent) {
	events = s.poller.drain(events)
	if len(events) == 0 {
		return
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	for i := range events {
		if c := s.t.mu.table.conns[uint32(events[i].Fd)]; c != nil && c.broken == nil {
			c.writable = true
		}
	}
}
