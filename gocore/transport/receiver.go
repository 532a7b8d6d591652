package transport

import (
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

const (
	// bytesPerTurn and localPerTurn keep one busy peer, or this node's own packets,
	// from holding up the others.
	bytesPerTurn = 256 << 10
	localPerTurn = 8

	tickEvery = time.Second
)

// receiver is the receive loop. It owns the sockets of connections: it takes them
// over from the handshake and closes them. It makes every call of the Handler.
type receiver struct {
	t        *Transport
	poller   *poller
	conns    map[uint32]*conn // adopted ones
	vector   [vectorLen]unix.Iovec
	nextTick time.Time

	// Of the flows that share this node's link, by budget.go.
	now        time.Duration
	nextBudget time.Duration
	shares     []*conn // of conns, those that share memory
	senders    []*conn
	told       []*conn // of senders, those that are to be told a new rate
	flows      []*inflow

	out       writer      // what flush writes
	flowing   bool        // packets came since the last sleep
	ownHeader wire.Header // of the packet in Handler.Local; a field, so that it is not allocated
}

func newReceiver(t *Transport, p *poller) *receiver {
	return &receiver{t: t, poller: p, out: writer{t: t}, conns: make(map[uint32]*conn)}
}

// run is the thread of the receive loop, and of the end of the data plane: whatever
// broke and wherever, everything is closed and released here.
func (r *receiver) run() {
	runtime.LockOSThread()
	prompt()
	defer close(r.t.ended)
	r.t.stop(r.guard(r.loop))
	<-r.t.sender.ended
	r.t.tearDown()
	r.t.mu.Lock()
	failure := r.t.mu.failure
	r.t.mu.Unlock()
	if failure != nil {
		r.t.config.Log.Error("data plane failed", "error", failure)
		r.guard(func() error { r.t.handler.Failed(failure); return nil })
	}
}

func (r *receiver) guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in the receive loop: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

func (r *receiver) loop() error {
	r.nextTick = time.Now().Add(tickEvery)
	for {
		events, err := r.poller.poll()
		if err == nil && len(events) == 0 && r.idle() && r.doze() {
			events, err = r.sleep()
		}
		if err != nil {
			return err
		}
		inbox, stop := r.intake()
		if stop {
			return nil
		}
		for _, c := range inbox {
			r.attend(c)
		}
		r.now = r.t.now()
		for _, e := range r.poller.drain(events) {
			if c := r.conns[uint32(e.Fd)]; c != nil && c.near == nil {
				r.read(c)
			} else if c != nil {
				r.left(c)
			}
			r.flush()
		}
		r.readShares()
		if err := r.local(); err != nil {
			return err
		}
		r.flush()
		r.budget()
		if now := time.Now(); !now.Before(r.nextTick) {
			r.nextTick = now.Add(tickEvery)
			r.t.handler.Tick(now)
		}
	}
}

// sleep waits for events. Where packets come all the time, they come soon.
func (r *receiver) sleep() ([]unix.EpollEvent, error) {
	if r.flowing {
		r.flowing = false
		if events, err := r.poller.wait(napTime); err != nil || len(events) > 0 {
			return events, err
		}
	}
	return r.poller.wait(time.Until(r.nextTick))
}

// intake begins a turn: it takes the inbox, and tells whether the transport stops.
func (r *receiver) intake() (inbox []*conn, stop bool) {
	t := r.t
	t.mu.Lock()
	defer t.mu.Unlock()
	inbox, t.mu.inbox = t.mu.inbox, nil
	t.mu.receiveSleeps, t.mu.turning = false, true
	return inbox, t.mu.stopped
}

// idle tells whether the loop may sleep; from then on who gives it work, or the send
// loop, wakes them.
func (r *receiver) idle() bool {
	t := r.t
	t.mu.Lock()
	t.mu.receiveSleeps = len(t.mu.inbox) == 0 && t.mu.local.empty() && !t.mu.stopped
	sleeps := t.mu.receiveSleeps
	t.mu.turning = !sleeps
	t.mu.Unlock()
	if sleeps {
		_, wake := r.pick(true) // what came since the last flush
		t.wake(wake)
	}
	return sleeps
}

// doze tells the peers that share memory with this node that it sleeps; false where
// there is something to read after all.
func (r *receiver) doze() bool {
	for _, c := range r.shares {
		c.near.in.sleeps.Store(1)
	}
	for _, c := range r.shares {
		if n, sane := c.near.in.there(); n > 0 || !sane {
			return false
		}
	}
	return true
}

// readShares reads what has come by shared memory. Who writes there need not wake
// this loop meanwhile.
func (r *receiver) readShares() {
	for i := len(r.shares) - 1; i >= 0; i-- { // a connection that ends is taken out
		c := r.shares[i]
		c.near.in.sleeps.Store(0)
		r.read(c)
		r.flush()
	}
}

// left is what the socket beside shared memory has to tell: the peer is gone. What it
// wrote before is read first.
func (r *receiver) left(c *conn) {
	var b [1]byte
	n, err := unix.Read(c.fd, b[:])
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return
	case n > 0:
		r.t.count.malformed.Add(1)
		r.end(c, errors.New("bytes beside the shared memory"))
		return
	}
	for range 2 * ringBytes / wire.HeaderBytes { // each read takes a header, or is the last
		if m, _ := c.near.in.there(); m == 0 || r.conns[c.peer] != c {
			break
		}
		r.read(c)
	}
	if r.conns[c.peer] == c {
		r.hangup(c)
	}
}

// attend does what the inbox asks for c: a new connection is adopted; one that the
// peer has left already ends when our Goodbye is written or cannot be.
func (r *receiver) attend(c *conn) {
	if !c.adopted {
		r.adopt(c)
		return
	}
	if c.dropped && r.conns[c.peer] == c {
		r.end(c, errors.New("given up by this node"))
		return
	}
	r.t.mu.Lock()
	through := c.readDone && (c.parted || c.broken != nil)
	r.t.mu.Unlock()
	if through && r.conns[c.peer] == c {
		r.end(c, io.EOF)
	}
}

// adopt lets both loops use c.
func (r *receiver) adopt(c *conn) {
	c.adopted = true
	r.conns[c.peer] = c
	err := r.poller.watch(c, unix.EPOLLIN)
	if c.near != nil {
		r.shares = append(r.shares, c)
	} else if err == nil {
		err = r.t.sender.poller.watch(c, unix.EPOLLONESHOT)
	}
	if err != nil {
		r.end(c, err)
		return
	}
	r.t.mu.Lock()
	c.writable = true
	wake := r.t.wakeSender()
	r.t.mu.Unlock()
	r.t.wake(wake)
}

// read takes what c has, up to a limit; what is left brings another event.
func (r *receiver) read(c *conn) {
	for left := bytesPerTurn; left > 0; {
		vector, bytes := c.parser.target(&r.vector)
		n, errno := r.t.read(c, vector)
		clear(vector) // as batch.forget
		switch {
		case errno == unix.EAGAIN:
			return
		case errno != 0:
			r.end(c, fmt.Errorf("read: %w", errno))
			return
		case n == 0:
			r.hangup(c)
			return
		}
		left -= n
		c.in.took(r.now, n)
		if err := c.parser.took(n, r); err != nil {
			r.t.count.malformed.Add(1)
			r.t.config.Log.Warn("data connection closed for what came on it",
				"peer", name(c.peer), "address", c.addr, "error", err)
			r.end(c, err)
			return
		}
		if n < bytes {
			return
		}
	}
}

// Place and Arrived make the receiver the sink of its parsers: it counts.
func (r *receiver) Place(peer uint32, h *wire.Header) (Landing, error) {
	return r.t.handler.Place(peer, h)
}

func (r *receiver) Arrived(peer uint32, h *wire.Header, l Landing) error {
	if h.Kind == wire.Rate {
		r.t.told(peer, float64(h.Round))
		return nil
	}
	r.flowing = true
	r.t.count.packetsReceived.Add(1)
	r.t.count.bytesReceived.Add(uint64(h.WireLen))
	return r.t.handler.Arrived(peer, h, l)
}

// budget divides this node's link among those who send to it.
func (r *receiver) budget() {
	if r.t.rates.In == 0 || r.now < r.nextBudget {
		return
	}
	r.nextBudget = r.now + budgetEvery
	r.told = r.told[:0]
	r.divide()
	for _, c := range r.told {
		h := wire.Header{Kind: wire.Rate, Run: 1, Round: uint64(c.in.told), Priority: math.MaxInt32}
		r.t.Send(c.peer, Outgoing{Header: h})
	}
}

// divide notes who has to be told a new rate.
func (r *receiver) divide() {
	r.senders, r.flows = r.senders[:0], r.flows[:0]
	for _, c := range r.conns {
		if c.far {
			r.senders, r.flows = append(r.senders, c), append(r.flows, &c.in)
		}
	}
	r.t.mu.Lock() // of the weights
	defer r.t.mu.Unlock()
	divide(r.now, r.t.rates.In, r.flows, func(i int) { r.told = append(r.told, r.senders[i]) })
}

// told takes a peer's word on how fast it may be sent to.
func (t *Transport) told(peer uint32, rate float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.mu.table.conns[peer]; c != nil {
		c.out.told = max(rate, leastRate)
	}
}

// hangup is the end of what c's peer sends. After the peer's Goodbye, a node that
// is itself leaving goes on writing what it has queued, its own Goodbye last.
func (r *receiver) hangup(c *conn) {
	t := r.t
	t.mu.Lock()
	c.readDone = c.parser.goodbye && t.mu.leaving && !c.parted && c.broken == nil
	stay := c.readDone
	t.mu.Unlock()
	if stay {
		r.poller.unwatch(c)
		return
	}
	r.end(c, io.EOF)
}

// end closes c, drops what is queued for it and tells the handler. cause is io.EOF
// where the peer closed; whether in good order is decided here.
func (r *receiver) end(c *conn, cause error) {
	t := r.t
	dropped, cause := t.remove(c, cause)
	delete(r.conns, c.peer)
	r.shares = slices.DeleteFunc(r.shares, func(s *conn) bool { return s == c })
	r.close(c)
	t.drop(&dropped)
	c.parser.abandon(t.release)
	if cause != nil {
		cause = fmt.Errorf("data connection with %s at %s: %w", name(c.peer), c.addr, cause)
	}
	t.handler.Lost(c.peer, cause)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.ending, c.peer)
	t.announce()
}

// remove takes c out of the table, once the send loop does not use it. It gives what
// was queued, and why c ended: nil where in good order.
func (t *Transport) remove(c *conn, cause error) (queue, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.table.remove(c)
	t.mu.ending[c.peer] = true
	for c.writing {
		t.quiet.Wait()
	}
	t.announce()
	q := c.queue
	c.queue = queue{}
	switch {
	case !errors.Is(cause, io.EOF):
		return q, cause
	case c.parser.goodbye || c.parted:
		return q, nil
	case c.broken != nil:
		return q, c.broken
	}
	return q, errors.New("closed by the peer without a goodbye")
}

// close closes the socket. The shutdown reaches the peer even where a forked child
// holds a copy.
func (r *receiver) close(c *conn) {
	if c.adopted {
		r.poller.unwatch(c)
		r.t.sender.poller.unwatch(c)
	}
	if c.near != nil {
		c.near.close()
	}
	unix.Shutdown(c.fd, unix.SHUT_RDWR)
	unix.Close(c.fd)
}
