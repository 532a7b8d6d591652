package transport

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// writer is one batch in hand and how its write went. It takes packets and gives them
// back under the transport's lock, and writes without.
type writer struct {
	t      *Transport
	conn   *conn // nil where no batch is in hand
	batch  batch
	now    time.Duration // when conn was taken
	wrote  int           // bytes that the kernel took
	full   bool          // it did not take all
	parted bool          // a Goodbye was written
	broken error         // the write failed

	path   path // of conn, where looked
	looked bool

	orphans []Releaser // whose release a panic in the one before them prevented
}

// take fills the batch from c's queue. mu is held.
func (w *writer) take(c *conn) {
	limit, train := batchBytes, wire.MaxAhead+1
	if c.far {
		limit = min(w.t.mu.table.link.commit(w.now), c.out.commit(w.now))
		train = min(train, c.out.train())
		n := c.out.together(&w.t.mu.table.link)
		limit = max(limit, (n-1)*(wire.HeaderBytes+wire.PacketBytes)+1)
		train = max(train, n)
	}
	w.conn = c
	c.writing = true
	w.batch.fill(&c.queue, limit, train)
}

// finish gives back the connection in hand with what was not written. mu is held;
// what it returns is woken afterwards.
func (w *writer) finish() (wake *poller) {
	t, c := w.t, w.conn
	if c == nil {
		return nil
	}
	w.conn = nil
	t.mu.table.charge(c, w.wrote)
	if c.far && w.wrote > 0 {
		c.out.spend(w.now, w.wrote, w.batch.packets[0].run.urgency)
		t.mu.table.link.spend(w.now, w.wrote)
	}
	c.out.path.filled = c.out.path.filled || w.full
	if w.looked && c.out.path.step(w.now, w.path, c.out.full()) {
		t.count.slowed.Add(1)
	}
	w.wrote, w.looked = 0, false
	w.batch.putBack(&c.queue)
	for _, p := range w.batch.packets[:w.batch.done] {
		if p.last() {
			if p.run.Owner != nil {
				w.orphans = append(w.orphans, p.run.Owner)
			}
			t.recycle(p.run)
		}
	}
	c.writing, c.writable = false, !w.full
	c.parted, c.broken = c.parted || w.parted, w.broken
	if w.parted || w.broken != nil {
		t.mu.inbox = append(t.mu.inbox, c)
		wake = t.wakeReceiver()
	}
	w.full, w.parted, w.broken = false, false, nil
	t.quiet.Broadcast()
	return wake
}

// transmit writes the batch in hand and releases what is through. No lock is held;
// conn.writing keeps the socket open.
func (w *writer) transmit() {
	c := w.conn
	vector, bytes := w.batch.encode()
	n, errno := w.t.write(c, vector)
	w.batch.forget()
	switch errno {
	case 0:
	case unix.EAGAIN:
		n = 0
	default:
		n = 0
		w.fail(fmt.Errorf("write: %w", errno))
	}
	w.wrote = n
	w.batch.settle(n)
	w.full = w.full || n < bytes
	w.release()
}

// look asks the kernel, now and then, how the connection in hand gets through.
func (w *writer) look() {
	if c := w.conn; c.far && w.now-c.out.path.at >= followEvery {
		w.path, w.looked = pathOf(c.fd)
	}
}

// fail ends a connection that cannot be written to. The receive loop reads what is
// still there, which may be the peer's Goodbye, then meets the end.
func (w *writer) fail(err error) {
	w.broken, w.full = err, true
	unix.Shutdown(w.conn.fd, unix.SHUT_RDWR)
}

// release tells the owners of the runs whose last packet is written. Owner is
// cleared first: whatever Release does, it is called once.
func (w *writer) release() {
	var packets, bytes uint64
	for _, p := range w.batch.packets[:w.batch.done] {
		packets++
		bytes += uint64(len(p.data()))
	}
	w.t.count.packetsSent.Add(packets)
	w.t.count.bytesSent.Add(bytes)
	for _, p := range w.batch.packets[:w.batch.done] {
		if !p.last() {
			continue
		}
		if p.run.Header.Kind == wire.Goodbye {
			w.parted = true
			unix.Shutdown(w.conn.fd, unix.SHUT_WR)
		}
		if o := p.run.Owner; o != nil {
			p.run.Owner = nil
			o.Release()
		}
	}
}

// write and read move bytes of a connection, by its socket or by shared memory.
func (t *Transport) write(c *conn, vector []unix.Iovec) (int, unix.Errno) {
	if c.near != nil {
		return c.near.write(vector)
	}
	t.count.writes.Add(1)
	return t.sys.write(c.fd, vector)
}

func (t *Transport) read(c *conn, vector []unix.Iovec) (int, unix.Errno) {
	if c.near != nil {
		return c.near.read(vector)
	}
	t.count.reads.Add(1)
	return t.sys.read(c.fd, vector)
}
