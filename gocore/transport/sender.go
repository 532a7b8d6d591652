package transport

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/fault"
)

// sender is the send loop. It repeatedly takes a batch from the queue with the most urgent
// head, under the lock, writes it without the lock, and puts back what the kernel did not
// take. A connection that took less than its batch is skipped until epoll reports it
// writable.
type sender struct {
	poller *poller
	thread thread
	ended  chan struct{}

	writer
	due  time.Duration // without a batch: the time at which pacing allows the next write
	poll bool          // packets wait on connections that are not writable
}

func newSender(t *Transport, p *poller) *sender {
	return &sender{writer: writer{t: t}, poller: p, ended: make(chan struct{})}
}

// run is the thread of the send loop. However it ends, it gives back its batch and wakes the
// receive loop.
func (s *sender) run() {
	s.thread.begin()
	defer close(s.ended)
	s.t.stop(named("send loop", fault.Catch(s.loop)))
	_, wake := s.exchangeBatch()
	s.t.wake(wake)
}

// named says in which part of the data plane an error occurred; nil stays nil.
func named(part string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", part, err)
}

func (s *sender) loop() error {
	for s.next() {
		if s.conn == nil {
			if err := s.sleep(); err != nil {
				return err
			}
			continue
		}
		if s.poll { // before transmit: finish would overwrite an event of conn itself
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
	}
	return nil
}

// next finishes the current batch and takes the next one; conn is nil if there is nothing
// to write. It returns false when the transport stops.
func (s *sender) next() bool {
	more, wake := s.exchangeBatch()
	s.t.wake(wake)
	return more
}

func (s *sender) exchangeBatch() (more bool, wake *poller) {
	t := s.t
	t.mu.Lock()
	defer t.mu.Unlock()
	wake = s.finish()
	if t.mu.stopped {
		return false, wake
	}
	s.now = t.now()
	choice := t.mu.conns.choose(s.now)
	s.poll, s.due = choice.blocked, choice.due
	if choice.conn != nil {
		s.take(choice.conn)
	}
	t.mu.sendSleeps, t.mu.sendWakes = s.conn == nil, s.due
	return true, wake
}

// sleep waits until a packet is queued, a connection becomes writable, or pacing allows the
// next write.
func (s *sender) sleep() error {
	wait := forever
	if s.due != never {
		wait = s.due - s.t.now()
	}
	events, err := s.poller.wait(wait)
	s.writable(events)
	return err
}

// writable marks connections that epoll has reported. If one has ended or broken since, the event
// finds none, or at worst the peer's new connection or socket, which costs a useless write.
func (s *sender) writable(events []unix.EpollEvent) {
	events = s.poller.drainWake(events)
	if len(events) == 0 {
		return
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	for i := range events {
		if c := s.t.mu.conns.byPeer[uint32(events[i].Fd)]; c != nil && c.broken == nil {
			c.writable = true
		}
	}
}
