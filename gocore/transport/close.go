package transport

import (
	"context"
	"slices"
	"sync"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// stop begins to stop the data plane. With a non-nil err the data plane has failed. Only the first
// call has an effect. first reports whether it is the first call, started whether the loops run.
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
	t.endLife()
	t.mu.Unlock()
	t.wake(wakeSender)
	t.wake(wakeReceiver)
	t.closeListeners()
	t.accepting.close()
	t.dialing.close()
	return first, started
}

// Close ends the data plane at once and drops all queues. When it returns, both loops have
// ended, everything is closed, every Owner is released, and the handler is not called any
// more. It may be called again and from several threads, but not from the handler, nor
// with a lock held that the handler takes.
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

// Goodbye ends the data plane in order: it writes all queues, then a Goodbye on each
// connection. When the peers have closed their ends, or ctx ends, it closes everything.
// Later Sends are dropped.
func (t *Transport) Goodbye(ctx context.Context) {
	var lanes sync.WaitGroup
	for _, l := range t.others() {
		lanes.Go(func() {
			if err := fault.Catch(func() error { l.Goodbye(ctx); return nil }); err != nil {
				t.stop(named("goodbye", err))
			}
		})
	}
	t.mu.Lock()
	var wake *poller
	if t.mu.started && !t.mu.stopped && !t.mu.leaving {
		t.mu.leaving = true
		for _, c := range t.mu.conns.order {
			c.queue.push(t.newRun(&Outgoing{Header: wire.Header{Kind: wire.Goodbye}}))
		}
		wake = t.wakeSender()
	}
	t.mu.Unlock()
	t.wake(wake)
	t.waitUntil(ctx, func() bool { return len(t.mu.conns.order) == 0 && t.mu.local.empty() }) // the result does not matter: everything is closed next
	lanes.Wait()
	t.Close()
}

// tearDown closes and releases everything. Both loops have ended.
func (t *Transport) tearDown() {
	t.mu.Lock()
	for t.mu.shortcut { // a caller of Send uses a socket
		t.writeEnded.Wait()
	}
	conns, local := t.mu.conns.order, t.mu.local
	t.mu.conns, t.mu.local = connSet{}, queue{}
	t.mu.inbox, t.mu.free = nil, nil
	t.mu.Unlock()
	for _, c := range conns {
		t.receiver.close(c)
		t.drop(&c.queue)
		c.session.releaseKept(t.release)
		c.parser.abandon(t.release)
	}
	t.drop(&local)
	for _, o := range slices.Concat(t.sender.unreleased, t.shortcut.unreleased, t.receiver.out.unreleased, t.receiver.acked) {
		t.release(o)
	}
	t.closePollers()
}

// drop releases the runs of a queue. mu is not held.
func (t *Transport) drop(q *queue) {
	q.drain(func(r *run) {
		if r.Header.Kind != wire.Ack {
			t.count.dropped.Add(1)
		}
		t.release(r.Owner)
	})
}

// release calls a dropped run's Owner. A panic in it fails the data plane, but does not
// prevent the release of other runs.
func (t *Transport) release(o Releaser) {
	if o == nil {
		return
	}
	if err := fault.Catch(func() error { o.Release(); return nil }); err != nil {
		t.stop(named("release of a packet", err))
	}
}
