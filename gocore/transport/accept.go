package transport

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// serve takes connections from a listener and gives each handshake its goroutine,
// a bounded number of them.
func (t *Transport) serve(next func() (stream, error)) {
	defer t.handshakes.Done()
	if err := fault.Catch(func() error { return t.acceptAll(next) }); err != nil {
		t.stop(named("accepting", err))
	}
}

// acceptAll is serve, until the listener is closed.
func (t *Transport) acceptAll(next func() (stream, error)) error {
	for {
		c, err := next()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil { // out of file descriptors, for example: wait until some are closed
			t.config.Log.Warn("data plane cannot accept a connection", "error", err)
			if !t.pause(time.Second, nil) {
				return nil
			}
			continue
		}
		for wait := t.accepting.waitForPlace(time.Now()); wait > 0; wait = t.accepting.waitForPlace(time.Now()) {
			if !t.pause(wait, t.accepting.freed) {
				break
			}
		}
		if t.accepting.add(c, time.Now()) {
			t.handshakes.Add(1)
			go t.answerHandshake(c)
		}
	}
}

// pause waits for d or early; false if the transport stops.
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

// answerHandshake is the accepting side of a handshake.
func (t *Transport) answerHandshake(c stream) {
	defer t.handshakes.Done()
	defer t.accepting.remove(c)
	defer c.Close()
	if err := fault.Catch(func() error { t.shakeHands(c); return nil }); err != nil {
		t.config.Log.Error("panic in a handshake", "error", err)
	}
}

// shakeHands reads a Hello, welcomes or refuses.
func (t *Transport) shakeHands(c stream) {
	if u, local := c.(*net.UnixConn); local {
		r := &rights{UnixConn: u}
		defer r.drop()
		c = r
		if err := r.checkUser(); err != nil {
			t.reject(c, err)
			return
		}
	}
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
	reason := t.checkHello(&hello)
	var err error
	switch {
	case reason != "":
	case lane == nil:
		reason = fmt.Sprintf("%s has no lane %d: the nodes know different link rates", name(t.self.ID), hello.Lane)
	case hello.Purpose == wire.Resume:
		reason, err = lane.resume(c, &hello)
	case hello.Purpose == wire.Wake:
		if reason = lane.sever(&hello); reason == "" {
			_, err = c.Write(wire.PutAnswer(""))
		}
	default:
		reason, err = lane.welcome(c, &hello)
	}
	if reason != "" {
		err = errors.New(reason)
	}
	if err != nil {
		t.reject(c, err)
	}
	if reason != "" {
		c.Write(wire.PutAnswer(reason)) // if it is lost, the peer sees only the end of the connection
	}
}

// welcome makes a connection with the sender of h. It returns the reason of a refusal, "" on success.
func (t *Transport) welcome(c stream, h *wire.Hello) (reason string, err error) {
	if _, local := c.(*rights); !local {
		if h.Purpose != t.purpose() {
			return "the nodes disagree on whether the cluster recovers (FPTPS_RECOVERY)", nil
		}
		if s := t.newSession(h); s != nil {
			return t.welcomeSession(c, h, s)
		}
	}
	if reason := t.reserve(h.ID); reason != "" {
		return reason, nil
	}
	defer t.unreserve(h.ID)
	memory, err := t.sendWelcome(c)
	if err != nil {
		return "", err
	}
	return "", t.establish(h.ID, c, memory, nil)
}

// newSession makes the session of a connection that the sender of h has dialed; nil if connections have none.
func (t *Transport) newSession(h *wire.Hello) *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.addresses == nil {
		return nil
	}
	return newSession(false, t.mu.addresses[h.ID], h.Incarnation)
}

// sendWelcome accepts the handshake, and maps the shared memory that came with it.
func (t *Transport) sendWelcome(c stream) (*shm, error) {
	r, local := c.(*rights)
	if !local {
		_, err := c.Write(wire.PutAnswer(""))
		return nil, err
	}
	s, err := r.accept()
	if err != nil {
		return nil, err
	}
	if err := r.send(wire.PutAnswer(""), t.wakeFds()...); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// checkHello returns the reason to refuse h, "" to accept it. A peer without the token
// learns nothing about this node.
func (t *Transport) checkHello(h *wire.Hello) string {
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
	if h.Purpose == wire.Wake { // this node has dialed the peer, and does not expect it
		return ""
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

// reject counts a failed handshake and logs the first of each host.
func (t *Transport) reject(c stream, err error) {
	select {
	case <-t.stopping: // caused by this node
		return
	default:
	}
	t.count.rejected.Add(1)
	if t.strangers.isFirst(c.RemoteAddr()) {
		t.config.Log.Warn("data plane refused a connection; others from this host will only be counted",
			"address", c.RemoteAddr().String(), "error", err)
	}
}

// reserve reserves peer's connection for a handshake, so that a second connection of the
// same peer is refused. It returns the reason for a failure, "" on success.
func (t *Transport) reserve(peer uint32) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	reason := t.whyNoFirst(peer)
	if reason == "" && t.mu.reserved[peer] {
		reason = t.connectedAlready(peer)
	}
	if reason == "" {
		t.mu.reserved[peer] = true
	}
	return reason
}

// whyNoFirst returns why peer can have no connection beside what there is, "" if it can. mu is held.
func (t *Transport) whyNoFirst(peer uint32) string {
	switch {
	case !t.mu.started:
		return "this node's data plane is not started"
	case t.mu.stopped || t.mu.leaving:
		return name(t.self.ID) + " is closing"
	case t.mu.conns.byPeer[peer] != nil || t.mu.ending[peer]:
		return t.connectedAlready(peer)
	}
	return ""
}

func (t *Transport) connectedAlready(peer uint32) string {
	return fmt.Sprintf("%s and %s have a connection already", name(t.self.ID), name(peer))
}

func (t *Transport) unreserve(peer uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.reserved, peer)
	t.notifyChanged()
}

// establish hands c, whose handshake is done, to the loops, with memory if that replaces
// the socket as the carrier of the bytes, and with s if it is made again when it breaks. They use a copy of the descriptor that Go's
// poller does not watch; the caller closes c.
func (t *Transport) establish(peer uint32, c stream, memory *shm, s *session) (err error) {
	fd, remote := -1, false
	defer func() {
		if err == nil {
			return
		}
		if fd >= 0 {
			unix.Close(fd)
		}
		if memory != nil {
			memory.close()
		}
	}()
	if memory != nil {
		fd, err = duplicate(c)
	} else {
		fd, remote, err = t.openSocket(c)
	}
	if err != nil {
		return err
	}
	addr := c.RemoteAddr().String()
	if memory != nil {
		addr = "shared memory"
	}
	n := &conn{peer: peer, fd: fd, shm: memory, remote: remote, addr: addr, session: s, tally: t.count.peers.of(peer, remote), parser: parser{peer: peer}, path: capacity{late: true}}
	t.mu.Lock()
	if t.mu.stopped || t.mu.leaving {
		t.mu.Unlock()
		return errStopped
	}
	t.mu.conns.add(n)
	t.mu.inbox = append(t.mu.inbox, n)
	wake := t.wakeReceiver()
	t.notifyChanged()
	t.mu.Unlock()
	t.wake(wake)
	return nil
}

// openSocket copies the descriptor of c, and sets its options for the loops.
func (t *Transport) openSocket(c stream) (fd int, remote bool, err error) {
	if fd, err = duplicate(c); err != nil {
		return -1, false, err
	}
	remote = t.sys.isRemote(c)
	if err = limitUnsent(fd, remote); err != nil {
		err = fmt.Errorf("bound of unsent bytes: %w", err)
	} else if remote {
		if err = noticeVanishing(fd); err != nil {
			err = fmt.Errorf("bound of silence: %w", err)
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, false, err
	}
	return fd, remote, nil
}

// leavesHost reports whether the peer of c is on another host.
func leavesHost(c stream) bool {
	local, remote := c.LocalAddr().(*net.TCPAddr), c.RemoteAddr().(*net.TCPAddr)
	return !local.IP.Equal(remote.IP) && !remote.IP.IsLoopback()
}

// duplicate copies the descriptor of c; c cannot be closed meanwhile.
func duplicate(c stream) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	e := raw.Control(func(p uintptr) { fd, err = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(e, err); err != nil {
		return -1, fmt.Errorf("duplicate of the socket: %w", err)
	}
	return fd, nil
}
