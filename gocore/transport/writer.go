package transport

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// writer owns a connection for the write of one batch. It takes the batch and gives it back
// under the transport's lock, and writes without the lock.
type writer struct {
	t           *Transport
	conn        *conn // nil without a batch
	batch       batch
	now         time.Duration // time at which conn was taken
	wrote       int           // bytes that the kernel took
	full        bool          // the kernel did not take all
	goodbyeSent bool          // a Goodbye was written
	broken      error         // the write failed
	path        path          // of conn, if measured
	measured    bool
	info        unix.TCPInfo // room for what path is read from

	unreleased []Releaser // owners whose Release did not run because another one panicked
}

// take fills the batch from c's queue. mu is held.
func (w *writer) take(c *conn) {
	limit, train := batchBytes, wire.MaxAhead+1
	if c.remote {
		n := w.t.mu.conns.commitPackets()
		limit = (n-1)*(wire.HeaderBytes+wire.PacketBytes) + 1
		train = min(train, n)
	}
	if c.session != nil && c.session.kept.len() >= keptPackets { // what may be written all the same; see full
		limit = 0
	}
	w.conn = c
	c.writing = true
	w.batch.fill(&c.queue, limit, train)
}

// finish gives back the connection, with the packets that were not written. mu is held; the
// caller wakes the returned poller afterwards.
func (w *writer) finish() (wake *poller) {
	t, c := w.t, w.conn
	if c == nil {
		return nil
	}
	w.conn = nil
	if !w.batch.probes() { // its bytes are not part of what the plan gives to a peer
		t.mu.conns.charge(w.now, c, w.wrote)
	}
	w.batch.putBack(&c.queue)
	if c.remote {
		t.mu.conns.link.spend(w.now, w.wrote)
		if w.measured {
			t.mu.conns.learn(w.now, c, w.path, !c.queue.empty() || w.full)
			t.uplink.set(w.now, t.mu.conns.uplink.shortest())
		}
		c.window.refused = c.window.refused || w.full
	}
	w.wrote, w.measured = 0, false
	if c.session != nil && c.session.noteWritten(&w.batch) { // acknowledged already
		t.mu.inbox = append(t.mu.inbox, c)
		wake = t.wakeReceiver()
	}
	for _, p := range w.batch.packets[:w.batch.done] {
		if p.last() && !c.keeps(p) {
			if p.run.Owner != nil {
				w.unreleased = append(w.unreleased, p.run.Owner)
			}
			t.recycle(p.run)
		}
	}
	c.writing, c.writable = false, !w.full
	c.goodbyeSent, c.broken = c.goodbyeSent || w.goodbyeSent, w.broken
	if w.goodbyeSent || w.broken != nil {
		t.mu.inbox = append(t.mu.inbox, c)
		if p := t.wakeReceiver(); p != nil {
			wake = p
		}
	}
	w.full, w.goodbyeSent, w.broken = false, false, nil
	t.writeEnded.Broadcast()
	return wake
}

// transmit writes the batch and releases the runs that are completely written. No lock is
// held; conn.writing keeps the socket open.
func (w *writer) transmit() {
	c := w.conn
	if w.adapt(); w.broken != nil {
		return
	}
	var s stamps
	if c.remote {
		queue, _ := w.t.queue.get(w.now, freshTime)
		uplink, _ := w.t.uplink.get(w.now, freshTime)
		s = c.stamps(w.now, queue, uplink)
	}
	if c.session != nil {
		s.received = c.session.received.Load()
	}
	vector, bytes := w.batch.encode(s)
	n, errno := w.t.write(c, vector)
	w.batch.clearVector()
	switch errno {
	case 0:
	case unix.EAGAIN:
		n = 0
	default:
		n = 0
		w.fail(fmt.Errorf("write: %w", errno))
	}
	w.wrote = n
	w.batch.recordWritten(n)
	w.full = w.full || n < bytes
	w.release()
}

// adapt, before a write, applies the window of the connection and reads the path for its
// next step. No lock is held.
func (w *writer) adapt() {
	c := w.conn
	if !c.remote || w.t.config.SendBuffer > 0 || w.broken != nil {
		return
	}
	if err := c.window.apply(c.fd); err != nil {
		w.fail(fmt.Errorf("size of the send buffer: %w", err))
		return
	}
	if c.window.due(w.now) {
		w.path, w.measured = readPath(c.fd, &w.info)
		w.path.wait, w.path.waitKnown = c.waited.get(w.now, freshTime)
		w.path.there, _ = c.queued.get(w.now, freshTime)
	}
}

// fail shuts down a connection after a failed write. The receive loop reads the remaining
// bytes, which may include the peer's Goodbye, and then the end.
func (w *writer) fail(err error) {
	w.broken, w.full = err, true
	unix.Shutdown(w.conn.fd, unix.SHUT_RDWR)
}

// release releases the runs whose last packet is written, unless the peer has to acknowledge it. Owner is cleared first, so that
// Release is called once even if it panics.
func (w *writer) release() {
	var packets, bytes, probes, acks uint64
	for _, p := range w.batch.packets[:w.batch.done] {
		switch p.run.Header.Kind {
		case wire.Probe:
			probes += uint64(len(p.data()))
			continue
		case wire.Ack:
			acks++
			continue
		}
		packets++
		bytes += uint64(len(p.data()))
	}
	w.t.count.packetsSent.Add(packets)
	w.conn.tally.sent.Add(bytes)
	w.t.count.probeBytes.Add(probes)
	w.t.count.acks.Add(acks)
	w.t.traceWritten(w.conn.peer, w.batch.packets[:w.batch.done])
	for _, p := range w.batch.packets[:w.batch.done] {
		if !p.last() {
			continue
		}
		if p.run.Header.Kind == wire.Goodbye {
			w.goodbyeSent = true
			unix.Shutdown(w.conn.fd, unix.SHUT_WR)
		}
		if o := p.run.Owner; o != nil && !w.conn.keeps(p) {
			p.run.Owner = nil
			o.Release()
		}
	}
}

// write and read transfer bytes of a connection, through its socket or shared memory.
func (t *Transport) write(c *conn, vector []unix.Iovec) (int, unix.Errno) {
	if c.shm != nil {
		return c.shm.write(vector)
	}
	t.count.writes.Add(1)
	return t.sys.write(c.fd, vector)
}

func (t *Transport) read(c *conn, vector []unix.Iovec) (int, unix.Errno) {
	if c.shm != nil {
		return c.shm.read(vector)
	}
	t.count.reads.Add(1)
	return t.sys.read(c.fd, vector)
}
