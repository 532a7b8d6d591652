package transport

import "context"

// A dead node may be replaced by a successor with the same id and another incarnation.

// Expect permits a node to connect to this one, in addition to those of Start.
func (t *Transport) Expect(peer uint32, incarnation uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.expect == nil {
		t.mu.expect = map[uint32]uint64{}
	}
	t.mu.expect[peer] = incarnation
}

// Drop ends the connection with a peer at once, if there is one, and expects the peer no longer. When it returns nil, the
// handler's Lost has returned. It fails if ctx ends or the data plane stops. The handler must not call it.
func (t *Transport) Drop(ctx context.Context, peer uint32) error {
	t.mu.Lock()
	delete(t.mu.expect, peer)
	var wake *poller
	if c := t.mu.conns.byPeer[peer]; c != nil {
		c.dropped = true
		t.mu.inbox = append(t.mu.inbox, c)
		wake = t.wakeReceiver()
	}
	t.mu.Unlock()
	t.wake(wake)
	return t.waitUntil(ctx, func() bool { return t.mu.conns.byPeer[peer] == nil && !t.mu.ending[peer] })
}
