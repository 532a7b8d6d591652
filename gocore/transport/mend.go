package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// In a cluster that goes on after a death, a TCP connection between two living nodes is made again when it breaks. Nobody above
// the transport notices: what the peer has not received (session.go) returns to the queue, and is sent over the next socket.
//
//	            the socket ends without a goodbye            a socket for the
//	+---------+ receiver.suspend                +--------+   receive loop: attach   +------+
//	| carried | ------------------------------> | broken | -----------------------> | next |
//	| fd >= 0 |                                 | fd -1  |                          | fd -1|
//	+---------+ <-----------------------------  +--------+ <-- (a later socket) --  +------+
//	     ^                                          | failed, Drop, Close               |
//	     |                                          v                                   |
//	     |                                    ended: endConn                            |
//	     +-------------------- receiver.takeOver ---------------------------------------+
//
// Whether the peer lives is what its listener says. Both sides connect to it at once: where the process has ended, the kernel refuses, and the
// connection is lost, as without all this. The side that dialed at first dials again (wire.Resume). The other
// side only asks to be dialed (wire.Wake), also because the peer may not know of the break. So there is never a choice between two sockets.
//
// Both sides stop reading before they exchange how many packets they have received, so that the numbers are final.
const (
	// brokenTime bounds how long a connection may be broken.
	brokenTime = 3 * time.Second
	// connectTime bounds the connecting of one attempt: if its first packet is lost, TCP sends it again only after a second.
	// attemptTime bounds all of an attempt.
	connectTime = 400 * time.Millisecond
	attemptTime = time.Second
	// Waits between attempts. The first is short: while a process that was killed ends, its listener may still take a connection.
	firstWait = time.Millisecond
	lastWait  = 50 * time.Millisecond
	// futileTime bounds how long a connection may break again and again while none of its packets arrive.
	futileTime = 10 * time.Second
)

// Endure makes TCP connections that break be made again; it is called on all nodes of a cluster or on none. addresses are those of the
// listeners of the nodes that dial this one. It is called before Start, and later for further nodes.
func (t *Transport) Endure(addresses map[uint32]string) {
	for _, l := range slices.Concat(t.others(), []*Transport{t}) {
		l.mu.Lock()
		all := maps.Clone(addresses)
		maps.Copy(all, l.mu.addresses)
		l.mu.addresses = all
		l.mu.Unlock()
	}
}

// purpose is that of a Hello for a connection over TCP.
func (t *Transport) purpose() wire.Purpose {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.addresses == nil {
		return wire.Connect
	}
	return wire.Endure
}

// errSevered says that the peer has noticed a break first.
var errSevered = errors.New("broken on the peer's side")

// Errors of connections that could not be made again, whose peer may live nevertheless.
var (
	errMute   = errors.New("no answer")
	errFutile = errors.New("it broke again and again")
)

// MayLive reports whether the peer of a connection that was lost with this error may live: it was silent, and its host has not said that the
// process has ended.
func MayLive(err error) bool {
	return errors.Is(err, errMute) || errors.Is(err, errFutile) || errors.Is(err, unix.ETIMEDOUT) || errors.Is(err, unix.EHOSTUNREACH)
}

// isBreak reports whether a connection that ended so may be made again. After a timeout the peer's host was silent for long enough.
func isBreak(cause error) bool {
	for _, e := range []error{io.EOF, errSevered, unix.ECONNRESET, unix.EPIPE, unix.ECONNABORTED} {
		if errors.Is(cause, e) {
			return true
		}
	}
	return false
}

// suspend gives up the socket of c, and has the connection made again; it returns nil then. If c ends instead, it returns why.
func (r *receiver) suspend(c *conn, cause error) error {
	if c.session == nil || !isBreak(cause) {
		return cause
	}
	fd, number, err := r.breakOff(c, cause)
	if err != nil {
		return err
	}
	r.closeSocket(fd)
	c.parser.abandon(r.t.release)
	c.parser = parser{peer: c.peer, goodbye: c.parser.goodbye}
	r.t.handshakes.Add(1)
	go r.t.mend(c, number)
	return nil
}

// breakOff takes the socket from c, and returns its number too. The error is why c ends instead.
func (r *receiver) breakOff(c *conn, cause error) (fd int, number uint16, err error) {
	t, s := r.t, c.session
	t.mu.Lock()
	defer t.mu.Unlock()
	for c.writing {
		t.writeEnded.Wait()
	}
	ended := cause
	if errors.Is(cause, io.EOF) && c.broken != nil {
		cause = c.broken
	}
	// After the peer's goodbye there may be nothing left to say to it; to this node's a peer that does not leave answers with its end.
	finished := c.parser.goodbye && (c.goodbyeSent || !t.mu.leaving) || c.goodbyeSent && errors.Is(cause, io.EOF)
	if t.mu.stopped || c.dropped || finished || c.fd < 0 || !isBreak(cause) {
		return -1, 0, ended
	}
	if r.futile(c) {
		return -1, 0, fmt.Errorf("%w for %v, and nothing arrived: %v", errFutile, t.futileTime, cause)
	}
	if errors.Is(cause, io.EOF) {
		cause = errClosed
	}
	fd, c.fd = c.fd, -1
	c.writable, c.readDone, c.broken, s.severed = false, false, cause, false
	t.notifyChanged()
	return fd, s.number, nil
}

// futile reports whether c has been broken again and again for long, and none of its packets have arrived meanwhile. mu is held.
func (r *receiver) futile(c *conn) bool {
	s, now := c.session, r.t.now()
	moved := s.kept.seen + s.received.Load()
	if moved != s.moved || s.kept.len() == 0 && c.queue.empty() || s.series == 0 || now-s.mended > brokenTime {
		s.moved, s.series = moved, now
	}
	return now-s.series > r.t.futileTime
}

// mend makes c, whose socket with this number is broken, again, or has the receive loop end it.
func (t *Transport) mend(c *conn, number uint16) {
	defer t.handshakes.Done()
	err := fault.Catch(func() error { return t.makeAgain(c, number) })
	if err == nil {
		return
	}
	t.mu.Lock()
	var wake *poller
	if t.waits(c, number) {
		c.session.failed = err
		t.mu.inbox = append(t.mu.inbox, c)
		wake = t.wakeReceiver()
	}
	t.mu.Unlock()
	t.wake(wake)
}

// makeAgain returns nil when c is not broken any more, or has ended.
func (t *Transport) makeAgain(c *conn, number uint16) error {
	ctx, cancel := context.WithTimeout(t.life, t.brokenTime)
	defer cancel()
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		err := t.attemptAgain(ctx, c, number)
		if err == nil && c.session.dials || !t.stillWaits(c, number) {
			return nil
		}
		var refusal *refusal
		if errors.As(err, &refusal) || errors.Is(err, unix.ECONNREFUSED) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w within %v (last: %v)", errMute, t.brokenTime, err)
		case <-time.After(wait):
		}
	}
}

// waits reports whether c has no socket since the one with this number broke. mu is held.
func (t *Transport) waits(c *conn, number uint16) bool {
	return t.isBroken(c) && (c.session.dials || c.session.number == number) // the side that dials has one mend at a time
}

func (t *Transport) stillWaits(c *conn, number uint16) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.mu.stopped && t.waits(c, number)
}

// isBroken reports whether c needs a socket. mu is held.
func (t *Transport) isBroken(c *conn) bool {
	return t.mu.conns.byPeer[c.peer] == c && c.fd < 0 && c.session.next < 0
}

// attemptAgain connects to the listener of c's peer, to make c again or to be dialed. number is that of the socket that broke.
func (t *Transport) attemptAgain(ctx context.Context, c *conn, number uint16) error {
	s := c.session
	if s.address == "" {
		return &refusal{"its address is not known"}
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	d := net.Dialer{Control: t.config.control, Timeout: connectTime}
	socket, err := d.DialContext(ctx, "tcp", s.address)
	if err != nil {
		return err
	}
	hello := t.newHello(c.peer, s.incarnation)
	hello.Purpose, hello.Socket, hello.Received = wire.Wake, number, s.received.Load()
	if s.dials {
		hello.Purpose, hello.Socket = wire.Resume, t.nextNumber(s)
	}
	sendHello := func(b []byte) error { _, err := socket.Write(b); return err }
	return t.dialHandshake(ctx, socket.(stream), hello, sendHello, func(received uint32) error {
		if !s.dials {
			return nil
		}
		return t.attach(c, socket.(stream), hello.Socket, received)
	})
}

// nextNumber numbers another socket.
func (t *Transport) nextNumber(s *session) uint16 {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.number++
	return s.number
}

// attach gives c, which is broken, its next socket. received is what the peer says has arrived there. The caller closes socket.
func (t *Transport) attach(c *conn, socket stream, number uint16, received uint32) error {
	fd, _, err := t.openSocket(socket)
	if err != nil {
		return err
	}
	wake, err := t.setNext(c, fd, number, received)
	t.wake(wake)
	if err != nil {
		unix.Close(fd)
	}
	return err
}

func (t *Transport) setNext(c *conn, fd int, number uint16, received uint32) (*poller, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := c.session
	if t.mu.stopped || !t.isBroken(c) {
		return nil, errStopped
	}
	if err := s.kept.acknowledge(received, 0); err != nil {
		return nil, &refusal{err.Error()}
	}
	s.number, s.next, s.failed = number, fd, nil
	t.mu.inbox = append(t.mu.inbox, c)
	t.notifyChanged()
	return t.wakeReceiver(), nil
}

// takeOver makes the next socket of c the one that carries it. What the peer has not received is sent again.
func (r *receiver) takeOver(c *conn) {
	t, s := r.t, c.session
	t.mu.Lock()
	cause := c.broken
	c.fd, s.next, c.broken = s.next, -1, nil
	s.told, s.acked = s.received.Load(), s.kept.seen
	r.popAcked(c)
	lost := s.kept.len()
	c.restore()
	c.window.applied, c.flow.acked = 0, 0 // they are the socket's
	finished := c.goodbyeSent
	t.count.resumed.Add(1)
	t.notifyChanged()
	t.mu.Unlock()
	r.releaseAcked()
	s.mended = t.now()
	if !s.logged {
		s.logged = true
		t.config.Log.Warn("data connection broke, and was made again; further times of this connection will only be counted",
			"peer", name(c.peer), "address", c.addr, "reason", cause, "packets sent again", lost)
	}
	if finished {
		unix.Shutdown(c.fd, unix.SHUT_WR)
	}
	r.adopt(c)
}

// handleSession handles what other threads have noted of c: a next socket, a break, that c could not be made again, or
// acknowledgements.
func (r *receiver) handleSession(c *conn) {
	t, s := r.t, c.session
	t.mu.Lock()
	fresh, severed, failed := s.next >= 0, s.severed, s.failed
	if failed != nil && !fresh && c.fd < 0 {
		c.broken = fmt.Errorf("%w; it could not be made again: %w", c.broken, failed)
	}
	if !fresh && c.fd >= 0 {
		r.popAcked(c)
	}
	t.mu.Unlock()
	r.releaseAcked()
	switch {
	case fresh:
		r.takeOver(c)
	case failed != nil && c.fd < 0:
		r.endConn(c, io.EOF)
	}
	if severed && c.fd >= 0 && r.conns[c.peer] == c {
		r.endConn(c, errSevered)
	}
}

// appendFds appends the descriptors of c. mu is held.
func (c *conn) appendFds(fds []int) []int {
	if c.fd >= 0 {
		fds = append(fds, c.fd)
	}
	if c.session != nil && c.session.next >= 0 {
		fds = append(fds, c.session.next)
	}
	return fds
}
