package transport

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// accept takes connections from a listener and gives each handshake its goroutine,
// a bounded number of them.
func (t *Transport) accept(next func() (stream, error)) {
	defer t.handshakes.Done()
	defer func() {
		if p := recover(); p != nil {
			t.stop(fmt.Errorf("panic while accepting: %v\n%s", p, debug.Stack()))
		}
	}()
	for {
		c, err := next()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no file descriptors left, say: others may close some
			t.config.Log.Warn("data plane cannot accept a connection", "error", err)
			if !t.pause(time.Second, nil) {
				return
			}
			continue
		}
		for wait := t.accepting.crowded(time.Now()); wait > 0; wait = t.accepting.crowded(time.Now()) {
			if !t.pause(wait, t.accepting.left) {
				break
			}
		}
		if t.accepting.add(c, time.Now()) {
			t.handshakes.Add(1)
			go t.answer(c)
		}
	}
}

// pause waits for d, until early, or the end; false at the end.
func (t *Transport) pause(d time.Duration, early <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-early:
	case <-t.stopping:
		return false
	}
	return true
}

// answer is the accepting side of a handshake: read a Hello, welcome or refuse.
func (t *Transport) answer(c stream) {
	defer t.handshakes.Done()
	defer t.accepting.remove(c)
	defer c.Close()
	if u, near := c.(*net.UnixConn); near {
		r := &rights{UnixConn: u}
		defer r.drop()
		c = r
	}
	defer func() {
		if p := recover(); p != nil {
			t.config.Log.Error("panic in a handshake", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	c.SetDeadline(time.Now().Add(t.handshakeTimeout))
	var b [wire.HelloBytes]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		t.reject(c, fmt.Errorf("no whole handshake: %w", err))
		return
	}
	var hello wire.Hello
	if err := hello.Get(b[:]); err != nil {
		t.reject(c, err)
		return
	}
	lane := t.Lane(int(hello.Lane))
	reason := t.judge(&hello)
	switch {
	case reason != "":
	case lane == nil:
		reason = fmt.Sprintf("%s has no lane %d: the nodes know different link rates", name(t.self.ID), hello.Lane)
	default:
		reason = lane.reserve(hello.ID)
	}
	if reason != "" {
		t.reject(c, errors.New(reason))
		c.Write(wire.PutAnswer(reason)) // if it does not get there, the peer sees the end alone
		return
	}
	defer lane.unreserve(hello.ID)
	near, err := lane.welcome(c)
	if err == nil {
		err = lane.establish(hello.ID, c, near)
	}
	if err != nil {
		t.reject(c, err)
	}
}

// welcome says that the handshake is done, and takes the memory that came with it.
func (t *Transport) welcome(c stream) (*share, error) {
	r, near := c.(*rights)
	if !near {
		_, err := c.Write(wire.PutAnswer(""))
		return nil, err
	}
	s, err := r.accept()
	if err != nil {
		return nil, err
	}
	if err := r.send(wire.PutAnswer(""), t.bells()...); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// judge tells why h is refused; "" where it is welcome. Whoever lacks the token
// learns nothing of who is here.
func (t *Transport) judge(h *wire.Hello) string {
	if reason := h.Compatible(); reason != "" {
		return reason
	}
	if subtle.ConstantTimeCompare(h.Token[:], t.self.Token[:]) != 1 {
		return "wrong cluster token: this node belongs to another cluster"
	}
	if h.To != t.self.ID || h.ToIncarnation != t.self.Incarnation {
		return fmt.Sprintf("this is %s (incarnation %x), not %s (incarnation %x)",
			name(t.self.ID), t.self.Incarnation, name(h.To), h.ToIncarnation)
	}
	t.mu.Lock()
	incarnation, ok := t.mu.expect[h.ID]
	t.mu.Unlock()
	switch {
	case !ok:
		return fmt.Sprintf("%s expects no connection from %s", name(t.self.ID), name(h.ID))
	case incarnation != h.Incarnation:
		return fmt.Sprintf("%s has incarnation %x here, not %x: it was restarted", name(h.ID), incarnation, h.Incarnation)
	}
	return ""
}

// reject counts a bad handshake and logs the first of each host.
func (t *Transport) reject(c stream, err error) {
	select {
	case <-t.stopping: // our own doing
		return
	default:
	}
	t.count.rejected.Add(1)
	if t.strangers.first(c.RemoteAddr()) {
		t.config.Log.Warn("data plane refused a connection; others from this host will only be counted",
			"address", c.RemoteAddr().String(), "error", err)
	}
}

// reserve takes peer's place for a handshake, so that of two connections of one
// peer the second is refused. It tells why it could not.
func (t *Transport) reserve(peer uint32) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !t.mu.started:
		return "this node's data plane is not started"
	case t.mu.stopped || t.mu.leaving:
		return name(t.self.ID) + " is closing"
	case t.mu.table.conns[peer] != nil || t.mu.reserved[peer] || t.mu.ending[peer]:
		return fmt.Sprintf("%s and %s have a connection already", name(t.self.ID), name(peer))
	}
	t.mu.reserved[peer] = true
	return ""
}

func (t *Transport) unreserve(peer uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.reserved, peer)
}

// establish hands c, whose handshake is done, to the loops, and near, if that is to
// take the place of its bytes. They use a copy of the descriptor, of which Go's poller
// knows nothing; the caller closes c.
func (t *Transport) establish(peer uint32, c stream, near *share) (err error) {
	fd := -1
	defer func() {
		if err == nil {
			return
		}
		if fd >= 0 {
			unix.Close(fd)
		}
		if near != nil {
			near.close()
		}
	}()
	if fd, err = duplicate(c); err != nil {
		return fmt.Errorf("duplicate of the socket: %w", err)
	}
	far := false
	if near == nil {
		far = t.sys.far(c)
		if err := limitUnsent(fd, far); err != nil {
			return fmt.Errorf("bound of unsent bytes: %w", err)
		}
	}
	addr := c.RemoteAddr().String()
	if near != nil {
		addr = "shared memory"
	}
	n := &conn{peer: peer, fd: fd, near: near, far: far, addr: addr, parser: parser{peer: peer},
		in: inflow{weight: 1}, out: outflow{fair: t.rates.To[peer]}, weight: 1}
	t.mu.Lock()
	if t.mu.stopped || t.mu.leaving {
		t.mu.Unlock()
		return errStopped
	}
	t.mu.table.add(n)
	t.mu.inbox = append(t.mu.inbox, n)
	wake := t.wakeReceiver()
	t.announce()
	t.mu.Unlock()
	t.wake(wake)
	return nil
}

// overLink tells whether c leaves this host.
func overLink(c stream) bool {
	local, remote := c.LocalAddr().(*net.TCPAddr), c.RemoteAddr().(*net.TCPAddr)
	return !local.IP.Equal(remote.IP) && !remote.IP.IsLoopback()
}

// duplicate copies the descriptor of c while c cannot be closed.
func duplicate(c stream) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	e := raw.Control(func(p uintptr) { fd, err = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(e, err)
}
