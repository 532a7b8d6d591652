package transport

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"fptps/gocore/wire"
)

// stop begins the end: with err the data plane has failed, without it was closed.
// The first call counts; it is told so, and whether there are loops to end.
func (t *Transport) stop(err error) (first, started bool) {
	t.mu.Lock()
	first, started = !t.mu.stopped, t.mu.started
	if !first {
		t.mu.Unlock()
		return first, started
	}
	t.mu.stopped = true
	t.mu.failure = err
	wakeSender, wakeReceiver := t.wakeSender(), t.wakeReceiver()
	close(t.stopping)
	t.mu.Unlock()
	t.wake(wakeSender)
	t.wake(wakeReceiver)
	t.closeListeners()
	t.accepting.close()
	t.dialing.close()
	return first, started
}

// Close ends the data plane at once; what is queued is dropped. When it returns,
// both loops have ended, everything is closed, every Owner is released, and the
// handler is not called any more. It may be called again and from several threads,
// but not from the handler, nor holding a lock that the handler takes.
func (t *Transport) Close() {
	for _, l := range t.others() {
		l.Close()
	}
	if first, started := t.stop(nil); first && !started {
		t.tearDown()
		close(t.ended)
	}
	<-t.ended
	t.handshakes.Wait()
}

// Goodbye ends the data plane in good order: what is queued is written, then a
// Goodbye on each connection; when the peers have closed their ends, or ctx is
// over, it closes everything. Sends after it are dropped.
func (t *Transport) Goodbye(ctx context.Context) {
	var lanes sync.WaitGroup
	for _, l := range t.others() {
		lanes.Go(func() { l.Goodbye(ctx) })
	}
	t.mu.Lock()
	var wake *poller
	if t.mu.started && !t.mu.stopped && !t.mu.leaving {
		t.mu.leaving = true
		for _, c := range t.mu.table.order {
			c.queue.push(t.newRun(&Outgoing{Header: wire.Header{Kind: wire.Goodbye}}))
		}
		wake = t.wakeSender()
	}
	t.mu.Unlock()
	t.wake(wake)
	t.until(ctx, func() bool { return len(t.mu.table.order) == 0 && t.mu.local.empty() }) // all is closed next, whatever it says
	lanes.Wait()
	t.Close()
}

// tearDown closes and releases everything. No loop runs any more.
func (t *Transport) tearDown() {
	t.mu.Lock()
	for t.mu.shortcut { // it uses a socket
		t.quiet.Wait()
	}
	conns, local := t.mu.table.order, t.mu.local
	t.mu.table, t.mu.local = table{}, queue{}
	t.mu.inbox, t.mu.free = nil, nil
	t.mu.Unlock()
	for _, c := range conns {
		t.receiver.close(c)
		t.drop(&c.queue)
		c.parser.abandon(t.release)
	}
	t.drop(&local)
	for _, o := range slices.Concat(t.sender.orphans, t.shortcut.orphans, t.receiver.out.orphans) {
		t.release(o)
	}
	t.closePollers()
}

// drop releases the runs of a queue that will not be sent. mu is not held.
func (t *Transport) drop(q *queue) {
	q.drain(func(r *run) {
		t.count.dropped.Add(1)
		t.release(r.Owner)
	})
}

// release releases what was dropped. A panic in it fails the data plane, but does
// not keep the others from their release.
func (t *Transport) release(o Releaser) {
	defer func() {
		if p := recover(); p != nil {
			t.stop(fmt.Errorf("panic in a release: %v\n%s", p, debug.Stack()))
		}
	}()
	if o != nil {
		o.Release()
	}
}
