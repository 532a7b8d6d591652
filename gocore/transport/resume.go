package transport

import (
	"errors"
	"fmt"
	"time"

	"fptps/gocore/wire"
)

// The accepting side of a connection that is made again; see mend.go.

// resume gives the connection with the sender of h the socket of this handshake. It returns the reason of a refusal, "" on success.
func (t *Transport) resume(socket stream, h *wire.Hello) (reason string, err error) {
	c, reason, err := t.awaitBroken(h)
	if reason != "" || err != nil {
		return reason, err
	}
	defer t.unreserve(h.ID)
	if reason := t.checkReceived(c, h.Received); reason != "" {
		return reason, nil
	}
	if _, err := socket.Write(wire.PutResumed(c.session.received.Load())); err != nil {
		return "", err
	}
	return "", t.attach(c, socket, h.Socket, h.Received)
}

// welcomeSession is welcome over TCP, where connections are made again. A socket may break before the peer has the answer to its first Hello:
// then this node has a connection over which nothing has arrived, the peer dials again as if there was none, and the connection
// gets the new socket.
func (t *Transport) welcomeSession(socket stream, h *wire.Hello, s *session) (reason string, err error) {
	c, reason, err := t.awaitBroken(h)
	if reason != "" || err != nil {
		return reason, err
	}
	defer t.unreserve(h.ID)
	if _, err := socket.Write(wire.PutAnswer("")); err != nil {
		return "", err
	}
	if c == nil {
		return "", t.establish(h.ID, socket, nil, s)
	}
	return "", t.attach(c, socket, h.Socket, 0)
}

// checkReceived refuses a number of packets that cannot have arrived at the peer.
func (t *Transport) checkReceived(c *conn, received uint32) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := c.session.kept.acknowledge(received, 0); err != nil {
		return err.Error()
	}
	return ""
}

// awaitBroken waits until the receive loop has given up the socket before that of h, and reserves the connection. It returns a nil c
// where h is the first of its sender.
func (t *Transport) awaitBroken(h *wire.Hello) (c *conn, reason string, err error) {
	timeout := time.NewTimer(t.handshakeTimeout)
	defer timeout.Stop()
	for {
		c, reason, changed, wake := t.claim(h)
		t.wake(wake)
		if changed == nil {
			return c, reason, nil
		}
		select {
		case <-changed:
		case <-timeout.C:
			return nil, "", errors.New("the receive loop did not give up a broken connection in time")
		case <-t.stopping:
			return nil, "", errStopped
		}
	}
}

// claim is one attempt of awaitBroken: it has reserved the connection or returns the reason of a refusal, or it has told the receive loop to give up
// the socket, and is to be called again after a change.
func (t *Transport) claim(h *wire.Hello) (c *conn, reason string, changed chan struct{}, wake *poller) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, reason = t.toResume(h)
	switch {
	case reason != "":
		return nil, reason, nil, nil
	case t.mu.reserved[h.ID]:
	case c == nil || t.isBroken(c):
		t.mu.reserved[h.ID] = true
		return c, "", nil, nil
	default:
		wake = t.severLocked(c)
	}
	return nil, "", t.mu.changed, wake
}

// toResume returns the connection that h is about, nil if h asks for a first one; or why that is impossible. mu is held.
func (t *Transport) toResume(h *wire.Hello) (c *conn, reason string) {
	c = t.mu.conns.byPeer[h.ID]
	unheard := c != nil && c.session != nil && !c.session.dials && c.session.incarnation == h.Incarnation && c.session.received.Load() == 0
	switch {
	case h.Purpose == wire.Endure && !unheard:
		return nil, t.whyNoFirst(h.ID)
	case h.Purpose == wire.Endure:
	case c == nil || c.session == nil || c.session.incarnation != h.Incarnation || c.session.dials == (h.Purpose == wire.Resume):
		return nil, fmt.Sprintf("%s has no connection with %s that could be made again", name(t.self.ID), name(h.ID))
	case h.Purpose == wire.Resume && int16(h.Socket-c.session.number) <= 0:
		return nil, fmt.Sprintf("%s has a newer connection with %s", name(t.self.ID), name(h.ID))
	}
	return c, ""
}

// sever has the receive loop give up the socket that h, a Wake, says is broken. It returns the reason of a refusal, "" on success.
func (t *Transport) sever(h *wire.Hello) (reason string) {
	t.mu.Lock()
	if t.mu.conns.met[h.ID] != h.Incarnation { // the answer to this node's first Hello was lost: it dials again
		t.mu.Unlock()
		return ""
	}
	c, reason := t.toResume(h)
	var wake *poller
	if reason == "" && !t.isBroken(c) && h.Socket == c.session.number {
		wake = t.severLocked(c)
	}
	t.mu.Unlock()
	t.wake(wake)
	return reason
}

// severLocked has the receive loop give up the socket of c. It returns the loop to wake, if any. mu is held.
func (t *Transport) severLocked(c *conn) *poller {
	c.session.severed = true
	t.mu.inbox = append(t.mu.inbox, c)
	return t.wakeReceiver()
}
