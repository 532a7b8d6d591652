package transport

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

const (
	// bytesPerPass and localPerPass bound what one pass of the loop handles of one peer,
	// and of this node's own packets, so that none starves the others.
	bytesPerPass = 256 << 10
	localPerPass = 8

	tickEvery = time.Second
)

// receiver is the receive loop. It takes over the sockets of connections after the
// handshake, and closes them. It makes all calls to the Handler.
type receiver struct {
	t        *Transport
	poller   *poller
	thread   thread
	conns    map[uint32]*conn // adopted connections
	vector   [vectorLen]unix.Iovec
	nextTick time.Time
	shmConns []*conn // those of conns that use shared memory

	reading         *conn                  // whose bytes are parsed
	readAt          time.Duration          // time of the last read from another host
	compared        time.Duration          // time of the last comparison of all hosts
	senders         int                    // hosts that sent then
	waiting         *conn                  // the only one whose packets waited then, after the link of their host
	rate            float64                // bytes per second that came from other hosts lately; 0: not known
	linked          uint64                 // bytes that have come from other hosts
	out             writer                 // the writer of flush
	probes          [wire.PacketBytes]byte // receives the payloads of probes, which nobody reads
	acked           []Releaser             // of packets that a peer has acknowledged; see releaseAcked
	nextAck         time.Time              // when peers get acknowledgements while the loop does not sleep
	receivedPackets bool                   // packets have arrived since the last sleep
	ownHeader       wire.Header            // header for Handler.Local; a field, to avoid an allocation
}

func newReceiver(t *Transport, p *poller) *receiver {
	return &receiver{t: t, poller: p, out: writer{t: t}, conns: make(map[uint32]*conn)}
}

// run is the thread of the receive loop. It also ends the data plane: after any failure, in
// any thread, everything is closed and released here.
func (r *receiver) run() {
	r.thread.begin()
	defer close(r.t.ended)
	r.t.stop(named("receive loop", fault.Catch(r.loop)))
	<-r.t.sender.ended
	r.t.tearDown()
	r.t.mu.Lock()
	failure := r.t.mu.failure
	r.t.mu.Unlock()
	if failure != nil {
		r.t.config.Log.Error("data plane failed", "error", failure)
		fault.Catch(func() error { r.t.handler.Failed(failure); return nil })
	}
	r.t.handler = nil // it may refer to callers' arrays, which they may free now
}

func (r *receiver) loop() error {
	r.nextTick = time.Now().Add(tickEvery)
	for {
		events, err := r.poller.poll()
		if err == nil && len(events) == 0 && r.trySleep() && r.announceSleep() {
			events, err = r.sleep()
		}
		if err != nil {
			return err
		}
		inbox, stop := r.beginPass()
		if stop {
			return nil
		}
		for _, c := range inbox {
			r.handleInbox(c)
		}
		for _, e := range r.poller.drainWake(events) {
			switch c := r.conns[uint32(e.Fd)]; {
			case c == nil || c.fd < 0: // it has ended or broken in this pass
			case c.shm != nil:
				r.handleShmSocket(c)
			default:
				r.read(c)
				r.acknowledgeMany(c)
			}
			r.flush()
		}
		r.readShm()
		if err := r.local(); err != nil {
			return err
		}
		now := time.Now()
		if now.After(r.nextAck) {
			r.nextAck = now.Add(ackTime)
			r.acknowledgeAll()
		}
		r.flush()
		if !now.Before(r.nextTick) {
			r.nextTick = now.Add(tickEvery)
			r.t.handler.Tick(now)
		}
	}
}

// sleep waits for events. If packets have just arrived, more are likely to follow soon, so it
// first waits without giving up its place in Go's scheduler. If none do, it acknowledges what has arrived, in another pass.
func (r *receiver) sleep() ([]unix.EpollEvent, error) {
	if r.receivedPackets {
		r.receivedPackets = false
		if events, err := r.poller.wait(napTime); err != nil || len(events) > 0 || r.acknowledgeAll() {
			return events, err
		}
	}
	return r.poller.wait(time.Until(r.nextTick))
}

// beginPass begins a pass: it takes the inbox, and reports whether the transport stops.
func (r *receiver) beginPass() (inbox []*conn, stop bool) {
	t := r.t
	t.mu.Lock()
	defer t.mu.Unlock()
	inbox, t.mu.inbox = t.mu.inbox, nil
	t.mu.receiveSleeps, t.mu.receiverFlushes = false, true
	return inbox, t.mu.stopped
}

// trySleep reports whether the loop may sleep. If so, other threads wake the loop when they
// give it work.
func (r *receiver) trySleep() bool {
	t := r.t
	t.mu.Lock()
	t.mu.receiveSleeps = len(t.mu.inbox) == 0 && t.mu.local.empty() && !t.mu.stopped
	sleeps := t.mu.receiveSleeps
	t.mu.receiverFlushes = !sleeps
	t.mu.Unlock()
	if sleeps {
		_, wake := r.takeBatch(true) // write packets sent since the last flush
		t.wake(wake)
	}
	return sleeps
}

// announceSleep tells the peers on shared memory that this loop sleeps. It returns false if
// there is something to read after all.
func (r *receiver) announceSleep() bool {
	for _, c := range r.shmConns {
		c.shm.in.readerSleeps.Store(1)
	}
	for _, c := range r.shmConns {
		if n, sane := c.shm.in.available(); n > 0 || !sane {
			return false
		}
	}
	return true
}

// readShm reads the bytes in shared memory. It clears readerSleeps: a peer that writes
// meanwhile need not wake this loop.
func (r *receiver) readShm() {
	for i := len(r.shmConns) - 1; i >= 0; i-- { // backwards: a connection that ends is removed from the list
		c := r.shmConns[i]
		c.shm.in.readerSleeps.Store(0)
		r.read(c)
		r.flush()
	}
}

// handleShmSocket handles an event of the socket beside shared memory: the peer is gone. It
// first reads the bytes that the peer has written.
func (r *receiver) handleShmSocket(c *conn) {
	var b [1]byte
	n, err := unix.Read(c.fd, b[:])
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return
	case n > 0:
		r.t.count.malformed.Add(1)
		r.endConn(c, errors.New("bytes beside the shared memory"))
		return
	}
	for range 2 * ringBytes / wire.HeaderBytes { // a bound: each read but the last takes at least a header
		if m, _ := c.shm.in.available(); m == 0 || r.conns[c.peer] != c {
			break
		}
		r.read(c)
	}
	if r.conns[c.peer] == c {
		r.handleEOF(c)
	}
}

// handleInbox handles a connection from the inbox. It adopts a new connection and ends a
// dropped one. If the peer has left, it ends the connection once this node's Goodbye is
// written or can no longer be written.
func (r *receiver) handleInbox(c *conn) {
	switch {
	case !c.met:
		c.met = true
		r.adopt(c)
		return
	case r.conns[c.peer] != c: // it has ended
		return
	case c.dropped:
		r.endConn(c, errors.New("dropped by this node"))
		return
	case c.session != nil:
		r.handleSession(c)
	}
	r.t.mu.Lock()
	finished := c.readDone && (c.goodbyeSent || c.broken != nil)
	r.t.mu.Unlock()
	if finished && r.conns[c.peer] == c {
		r.endConn(c, io.EOF)
	}
}

// adopt makes c usable by both loops.
func (r *receiver) adopt(c *conn) {
	r.conns[c.peer] = c
	err := r.poller.watch(c, unix.EPOLLIN)
	if c.shm != nil {
		r.shmConns = append(r.shmConns, c)
	} else if err == nil {
		err = r.t.sender.poller.watch(c, unix.EPOLLONESHOT)
	}
	if err != nil {
		r.endConn(c, err)
		return
	}
	r.t.mu.Lock()
	c.writable = true
	wake := r.t.wakeSender()
	r.t.mu.Unlock()
	r.t.wake(wake)
}

// read reads the available bytes of c, up to a limit; the rest causes another event.
func (r *receiver) read(c *conn) {
	for left := bytesPerPass; left > 0; {
		vector, bytes := c.parser.target(&r.vector)
		n, errno := r.t.read(c, vector)
		if r.reading = c; c.remote {
			r.readAt = r.t.now()
		}
		clear(vector) // as batch.clearVector
		switch {
		case errno == unix.EAGAIN:
			return
		case errno != 0:
			r.endConn(c, fmt.Errorf("read: %w", errno))
			return
		case n == 0:
			r.handleEOF(c)
			return
		}
		left -= n
		if err := c.parser.advance(n, r); err != nil {
			r.t.count.malformed.Add(1)
			r.t.config.Log.Warn("data connection closed: malformed packet",
				"peer", name(c.peer), "address", c.addr, "error", err)
			r.endConn(c, err)
			return
		}
		if n < bytes {
			return
		}
	}
}

// Began, Place and Arrived implement sink. They count packets.
func (r *receiver) Began(h *wire.Header) error {
	if r.reading.remote && h.Sent != 0 {
		r.observe(r.reading, r.readAt, h)
	}
	return r.takeCount(r.reading, h)
}

func (r *receiver) Place(peer uint32, h *wire.Header) (Destination, error) {
	if h.Kind == wire.Probe {
		if !r.reading.remote {
			return Destination{}, errors.New("a probe of a link from a node of this host")
		}
		return Destination{Bytes: r.probes[:h.WireLen]}, nil
	}
	return r.t.handler.Place(peer, h)
}

func (r *receiver) Arrived(peer uint32, h *wire.Header, l Destination) error {
	if h.Kind == wire.Ack {
		return nil
	}
	r.receivedPackets = true
	if h.Kind == wire.Probe {
		return nil
	}
	if s := r.reading.session; s != nil { // before the handler answers: its answer acknowledges the packet
		s.received.Add(1)
	}
	r.t.count.packetsReceived.Add(1)
	r.reading.tally.received.Add(uint64(h.WireLen))
	r.t.traceRead(peer, h)
	return r.t.handler.Arrived(peer, h, l)
}

// handleEOF handles the end of the peer's stream. After the peer's Goodbye, a node that is
// leaving too continues to write its queue, with its own Goodbye at the end.
func (r *receiver) handleEOF(c *conn) {
	t := r.t
	t.mu.Lock()
	c.readDone = c.parser.goodbye && t.mu.leaving && !c.goodbyeSent && c.broken == nil
	stay := c.readDone
	t.mu.Unlock()
	if stay {
		r.poller.unwatch(c.fd)
		return
	}
	r.endConn(c, io.EOF)
}

// endConn closes c, drops its queue and calls Handler.Lost, unless c can be made again. cause is io.EOF if the peer
// closed; remove decides whether that was orderly.
func (r *receiver) endConn(c *conn, cause error) {
	if cause = r.suspend(c, cause); cause == nil {
		return
	}
	t := r.t
	dropped, cause := t.remove(c, cause)
	delete(r.conns, c.peer)
	r.shmConns = slices.DeleteFunc(r.shmConns, func(s *conn) bool { return s == c })
	r.close(c)
	t.drop(&dropped)
	c.session.releaseKept(t.release)
	c.parser.abandon(t.release)
	if cause != nil {
		cause = fmt.Errorf("data connection with %s at %s: %w", name(c.peer), c.addr, cause)
	}
	t.handler.Lost(c.peer, cause)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.ending, c.peer)
	t.notifyChanged()
}

// remove removes c from conns and waits until no thread writes it. It returns the queue, and
// why c has ended: nil for an orderly end.
func (t *Transport) remove(c *conn, cause error) (queue, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.conns.remove(c)
	t.mu.ending[c.peer] = true
	for c.writing {
		t.writeEnded.Wait()
	}
	t.notifyChanged()
	q := c.queue
	c.queue = queue{}
	switch {
	case !errors.Is(cause, io.EOF):
		return q, cause
	case c.parser.goodbye || c.goodbyeSent:
		return q, nil
	case c.broken != nil:
		return q, c.broken
	}
	return q, errClosed
}

var errClosed = errors.New("closed by the peer without a goodbye")

// close closes what c has. No other thread uses it any more.
func (r *receiver) close(c *conn) {
	if c.shm != nil {
		c.shm.close()
	}
	for _, fd := range c.appendFds(nil) {
		r.closeSocket(fd)
	}
}

// closeSocket closes a socket, watched or not. The shutdown reaches the peer even if a forked child holds a copy of it.
func (r *receiver) closeSocket(fd int) {
	r.poller.unwatch(fd)
	r.t.sender.poller.unwatch(fd)
	unix.Shutdown(fd, unix.SHUT_RDWR)
	unix.Close(fd)
}
