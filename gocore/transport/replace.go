package transport

import "context"

// A node that has died may be replaced by another of its id, which has another incarnation.

// Expect lets a node connect to this one, besides those that Start has named.
func (t *Transport) Expect(peer uint32, incarnation uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.expect == nil {
		t.mu.expect = map[uint32]uint64{}
	}
	t.mu.expect[peer] = incarnation
}

// Drop ends the connection with a peer at once, if there is one, and expects the peer no longer. On return the handler
// has been told; the error is that of ctx, or says that the data plane has ended. It is not for the handler to call.
func (t *Transport) Drop(ctx context.Context, peer uint32) error {
	t.mu.Lock()
	delete(t.mu.expect, peer)
	var wake *poller
	if c := t.mu.table.conns[peer]; c != nil {
		c.dropped = true
		t.mu.inbox = append(t.mu.inbox, c)
		wake = t.wakeReceiver()
	}
	t.mu.Unlock()
	t.wake(wake)
	return t.until(ctx, func() bool { return t.mu.table.conns[peer] == nil && !t.mu.ending[peer] })
}
