package transport

import (
	"fmt"
	"runtime/debug"
)

// A small packet that finds nothing before it need not wait until the send loop's
// thread wakes: whoever sends it writes it, there and then.

// shortBytes is the largest payload that is written so. Larger ones are many, as a
// rule, and then one thread that writes while another reads is better, and one system
// call for many of them.
const shortBytes = 8 << 10

// short takes r, which was just queued for c, for writing at once, if that may be. mu
// is held.
func (t *Transport) short(c *conn, r *run) bool {
	if !t.mu.sendSleeps || t.mu.shortcut || !c.writable || c.writing || len(c.queue.heap) != 1 || len(c.queue.bound) > 0 ||
		r.packets != 1 || len(r.Data) > shortBytes {
		return false
	}
	t.shortcut.now = t.now()
	if t.mu.table.due(c, r.urgency) > t.shortcut.now {
		return false
	}
	t.mu.shortcut = true
	t.shortcut.take(c)
	return true
}

// writeShort writes what short took.
func (t *Transport) writeShort() {
	defer func() {
		p := recover() // from the Release: that is the data plane's failure, not its caller's
		receive, send := t.endShort()
		t.wake(receive)
		t.wake(send)
		if p != nil {
			t.stop(fmt.Errorf("panic in a release: %v\n%s", p, debug.Stack()))
		}
	}()
	t.shortcut.transmit()
}

// endShort gives the connection back; the send loop goes on with what has come
// meanwhile.
func (t *Transport) endShort() (receive, send *poller) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.shortcut.conn
	receive = t.shortcut.finish()
	c.writable = c.broken == nil // where the kernel did not take all, the send loop finds out and asks epoll
	if !c.queue.empty() {
		send = t.wakeSender()
	}
	t.mu.shortcut = false
	t.quiet.Broadcast()
	return receive, send
}
