package transport

import (
	"fmt"
	"runtime/debug"
)

// A small packet with nothing queued before it does not wait until the send loop wakes: the
// caller of Send writes it.

// shortcutBytes is the largest payload that the caller writes. Larger payloads usually come
// in large numbers; then it is better to write them in another thread, many with one system
// call.
const shortcutBytes = 8 << 10

// tryShortcut takes r, which was just queued for c, for writing by the caller, and reports
// whether it has. mu is held.
func (t *Transport) tryShortcut(c *conn, r *run) bool {
	if !t.mu.sendSleeps || t.mu.shortcut || !c.writable || c.writing || c.full() || len(c.queue.heap) != 1 || len(c.queue.bound) > 0 ||
		r.packets != 1 || len(r.Data) > shortcutBytes {
		return false
	}
	t.shortcut.now = t.now()
	if t.mu.conns.due(c) > t.shortcut.now {
		return false
	}
	t.mu.shortcut = true
	t.shortcut.take(c)
	return true
}

// writeShortcut writes the packet that tryShortcut took.
func (t *Transport) writeShortcut() {
	defer func() {
		p := recover() // a panic in Release fails the data plane, not the caller of Send
		receive, send := t.endShortcut()
		t.wake(receive)
		t.wake(send)
		if p != nil {
			t.stop(fmt.Errorf("panic in a release: %v\n%s", p, debug.Stack()))
		}
	}()
	t.shortcut.transmit()
}

// endShortcut gives the connection back, and wakes the send loop for packets queued
// meanwhile.
func (t *Transport) endShortcut() (receive, send *poller) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.shortcut.conn
	receive = t.shortcut.finish()
	c.writable = c.broken == nil // if the kernel did not take all, the send loop will find out and rearm epoll
	if !c.queue.empty() {
		send = t.wakeSender()
	}
	t.mu.shortcut = false
	t.writeEnded.Broadcast()
	return receive, send
}
