package transport

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// sender is the send loop. Again and again it takes a batch from the queue that has
// the most urgent head, under the lock, writes it without, and puts back what the
// kernel did not take. A connection that took less than it was given is left alone
// until epoll says that it is writable again.
type sender struct {
	t      *Transport
	poller *poller
	ended  chan struct{}

	// The batch in hand and how its write went. conn is nil where none is in hand.
	conn   *conn
	batch  batch
	now    time.Duration // when conn was chosen
	due    time.Duration // where conn is nil: when something may be written that waits for its time
	wrote  int           // bytes that the kernel took
	full   bool          // the kernel did not take all
	parted bool          // a Goodbye was written
	broken error         // the write failed
	poll   bool          // connections that are not writable have something waiting

	path   path // of conn, where looked
	looked bool

	orphans []Releaser // whose release a panic in the one before them prevented
}

func newSender(t *Transport, p *poller) *sender {
	return &sender{t: t, poller: p, ended: make(chan struct{})}
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
		s.look()
	}
	return nil
}

// look asks the kernel, now and then, how the connection in hand gets through.
func (s *sender) look() {
	if c := s.conn; c.far && s.now-c.out.path.at >= followEvery {
		s.path, s.looked = pathOf(c.fd)
	}
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
	s.conn, s.poll, s.due = choice.conn, choice.blocked, choice.due
	if c := s.conn; c != nil {
		c.writing = true
		limit := batchBytes
		if c.far {
			limit = min(t.mu.table.link.commit(s.now), c.out.commit(s.now))
		}
		s.batch.fill(&c.queue, limit)
	}
	t.mu.sendSleeps, t.mu.sendWakes = s.conn == nil, s.due
	return true, wake
}

// finish gives back the connection in hand with what was not written. mu is held;
// what it returns is woken afterwards.
func (s *sender) finish() (wake *poller) {
	t, c := s.t, s.conn
	if c == nil {
		return nil
	}
	s.conn = nil
	if c.far && s.wrote > 0 {
		c.out.spend(s.now, s.wrote, s.batch.packets[0].run.urgency)
		t.mu.table.link.spend(s.now, s.wrote)
	}
	c.out.path.filled = c.out.path.filled || s.full
	if s.looked && c.out.path.step(s.now, s.path, c.out.full()) {
		t.count.slowed.Add(1)
	}
	s.wrote, s.looked = 0, false
	s.batch.putBack(&c.queue)
	for _, p := range s.batch.packets[:s.batch.done] {
		if p.last() {
			if p.run.Owner != nil {
				s.orphans = append(s.orphans, p.run.Owner)
			}
			t.recycle(p.run)
		}
	}
	c.writing, c.writable = false, !s.full
	c.parted, c.broken = c.parted || s.parted, s.broken
	if s.parted || s.broken != nil {
		t.mu.inbox = append(t.mu.inbox, c)
		wake = t.wakeReceiver()
	}
	s.full, s.parted, s.broken = false, false, nil
	t.quiet.Broadcast()
	return wake
}

// transmit writes the batch in hand and releases what is through. No lock is held;
// conn.writing keeps the socket open.
func (s *sender) transmit() {
	c := s.conn
	vector, bytes := s.batch.encode()
	n, errno := s.t.write(c, vector)
	s.batch.forget()
	switch errno {
	case 0:
	case unix.EAGAIN:
		n = 0
	default:
		n = 0
		s.fail(fmt.Errorf("write: %w", errno))
	}
	s.wrote = n
	s.batch.settle(n)
	if n < bytes && s.broken == nil {
		s.full = true
		if err := s.rearm(c); err != nil {
			s.fail(err)
		}
	}
	s.release()
}

// write and read move bytes of a connection, by its socket or by shared memory.
func (t *Transport) write(c *conn, vector []unix.Iovec) (int, unix.Errno) {
	if c.near != nil {
		return c.near.write(vector)
	}
	t.count.writes.Add(1)
	return t.sys.write(c.fd, vector)
}

func (t *Transport) read(c *conn, vector []unix.Iovec) (int, unix.Errno) {
	if c.near != nil {
		return c.near.read(vector)
	}
	t.count.reads.Add(1)
	return t.sys.read(c.fd, vector)
}

// rearm asks to be told when c takes more; the peer that empties shared memory tells
// unasked.
func (s *sender) rearm(c *conn) error {
	if c.near != nil {
		return nil
	}
	return s.poller.rearm(c, unix.EPOLLOUT|unix.EPOLLONESHOT)
}

// fail ends a connection that cannot be written to. The receive loop reads what is
// still there, which may be the peer's Goodbye, then meets the end.
func (s *sender) fail(err error) {
	s.broken, s.full = err, true
	unix.Shutdown(s.conn.fd, unix.SHUT_RDWR)
}

// release tells the owners of the runs whose last packet is written. Owner is
// cleared first: whatever Release does, it is called once.
func (s *sender) release() {
	var packets, bytes uint64
	for _, p := range s.batch.packets[:s.batch.done] {
		packets++
		bytes += uint64(len(p.data()))
	}
	s.t.count.packetsSent.Add(packets)
	s.t.count.bytesSent.Add(bytes)
	for _, p := range s.batch.packets[:s.batch.done] {
		if !p.last() {
			continue
		}
		if p.run.Header.Kind == wire.Goodbye {
			s.parted = true
			unix.Shutdown(s.conn.fd, unix.SHUT_WR)
		}
		if o := p.run.Owner; o != nil {
			p.run.Owner = nil
			o.Release()
		}
	}
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
