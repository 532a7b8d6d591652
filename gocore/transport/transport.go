package transport

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"strconv"
	"sync"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// Config is what Listen needs to know.
type Config struct {
	Host                      string // address to bind; empty for every one
	SendBuffer, ReceiveBuffer int    // SO_SNDBUF and SO_RCVBUF; 0 leaves them to the kernel
	Share                     Share
	Schedule                  Schedule
	Log                       *slog.Logger
}

// Identity is who this node is to its peers.
type Identity struct {
	ID          uint32
	Incarnation uint64 // of this process: a restarted node has another
	Token       [wire.TokenBytes]byte
}

// Transport is one node's data plane.
type Transport struct {
	config   Config
	listener *net.TCPListener
	nearby   *net.UnixListener // of those who would share memory; nil where nobody may
	self     Identity          // set by Start
	handler  Handler           // set by Start
	lane     uint16            // this one's number
	rates    Rates             // set by Start
	began    time.Time
	sender   *sender
	shortcut writer
	receiver *receiver
	sys      system
	count    *counters // of all lanes

	handshakeTimeout time.Duration // from accept to the answer
	accepting        *pending      // handshakes of others with us
	dialing          *pending      // ours with others
	handshakes       sync.WaitGroup
	strangers        hosts

	stopping chan struct{} // closed when the end begins
	ended    chan struct{} // closed when nothing is left

	// mu guards the queues and the list of connections. It is never held across a
	// system call or a call of Handler or Releaser, and a panic lets it go: whoever
	// fails, the others come to an end.
	mu struct {
		sync.Mutex
		started, stopped bool
		lanes            []*Transport // that began with this one; see lane.go
		leaving          bool         // Goodbye was called: nothing new is queued
		failure          error        // why the data plane broke
		table            table
		expect           map[uint32]uint64 // nodes that may connect to us, and their incarnations
		reserved         map[uint32]bool   // peers in the middle of a handshake
		ending           map[uint32]bool   // peers whose end the handler is about to be told
		local            queue             // what this node sent to itself
		seq              uint64
		free             []*run
		inbox            []*conn       // for the receive loop: new connections, and those that the send loop is done with
		shortcut         bool          // in use
		sendSleeps       bool          // the send loop waits in epoll: who gives it work wakes it
		sendWakes        time.Duration // when it wakes by itself
		receiveSleeps    bool
		turning          bool          // the receive loop is at work and flushes what is sent meanwhile
		changed          chan struct{} // closed and made anew whenever table changes or local runs empty
	}
	quiet sync.Cond // on mu: some conn's writing went false
}

// Listen binds a port for the data plane's connections. Handshakes wait in the
// kernel's backlog for Start.
func Listen(c Config) (*Transport, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	t, err := newTransport(c)
	if err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: t.config.control}
	l, err := lc.Listen(context.Background(), "tcp", net.JoinHostPort(c.Host, "0"))
	if err != nil {
		t.closePollers()
		return nil, fault.New(fault.Config, "cannot listen for data connections on host %q: %v", c.Host, err)
	}
	t.listener = l.(*net.TCPListener)
	if c.Share != ShareNever {
		name := shareName(strconv.Itoa(t.Port()))
		if t.nearby, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: name}); err != nil {
			c.Log.Warn("no memory can be shared with nodes of this host", "error", err)
		}
	}
	return t, nil
}

// newTransport makes what every lane has.
func newTransport(c Config) (*Transport, error) {
	t := &Transport{
		config: c, sys: kernel, count: &counters{}, began: time.Now(), handshakeTimeout: 5 * time.Second,
		accepting: newPending(), dialing: newPending(),
		stopping: make(chan struct{}), ended: make(chan struct{}),
	}
	t.mu.changed = make(chan struct{})
	t.mu.reserved = make(map[uint32]bool)
	t.mu.ending = make(map[uint32]bool)
	t.quiet.L = &t.mu
	sending, err := newPoller()
	if err != nil {
		return nil, err
	}
	receiving, err := newPoller()
	if err != nil {
		sending.close()
		return nil, err
	}
	t.sender = newSender(t, sending)
	t.shortcut.t = t
	t.receiver = newReceiver(t, receiving)
	return t, nil
}

func (t *Transport) closePollers() {
	t.sender.poller.close()
	t.receiver.poller.close()
}

func (t *Transport) closeListeners() {
	if t.listener != nil {
		t.listener.Close()
	}
	if t.nearby != nil {
		t.nearby.Close()
	}
}

// Port is the port of the listener.
func (t *Transport) Port() int { return t.listener.Addr().(*net.TCPAddr).Port }

// now is the time of the paces.
func (t *Transport) now() time.Duration { return time.Since(t.began) }

// Start lets the data plane run: as self, with a handler for each lane. expect names
// the nodes that may connect to this one, with their incarnations; others are refused.
// It is called once.
func (t *Transport) Start(self Identity, expect map[uint32]uint64, rates Rates, handlers ...Handler) {
	others := t.others()
	rates = rates.split(1 + len(others))
	for i, l := range others { // before there can be a handshake for them
		l.start(self, nil, rates, handlers[1+i])
	}
	t.start(self, expect, rates, handlers[0])
}

func (t *Transport) start(self Identity, expect map[uint32]uint64, rates Rates, h Handler) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.started {
		panic("transport: Start called twice")
	}
	if t.mu.stopped {
		return
	}
	t.self, t.rates, t.handler = self, rates, h
	t.mu.expect = maps.Clone(expect)
	t.mu.table.link.rate = rates.Out
	t.mu.table.last = self.ID
	t.mu.started = true
	if t.listener != nil {
		t.handshakes.Add(1)
		go t.accept(func() (stream, error) { return t.listener.AcceptTCP() })
	}
	if t.nearby != nil {
		t.handshakes.Add(1)
		go t.accept(func() (stream, error) { return t.nearby.AcceptUnix() })
	}
	go t.sender.run()
	go t.receiver.run()
}

// Send queues m for peer, or for this node itself, and never blocks. Any thread may
// call it, the handler too. Where there is no connection to peer, or the transport
// is leaving or closed, m is dropped and its Owner released before Send returns.
func (t *Transport) Send(peer uint32, m Outgoing) {
	wake, short, queued := t.enqueue(peer, &m)
	t.wake(wake)
	if short {
		t.writeShort()
	}
	if !queued {
		t.count.dropped.Add(1)
		if m.Owner != nil {
			m.Owner.Release()
		}
	}
}

// enqueue tells the loop to wake, if any, whether the caller is to write m itself, and
// whether there was a queue for it.
func (t *Transport) enqueue(peer uint32, m *Outgoing) (wake *poller, short, queued bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, r, queued := t.place(peer, m)
	switch {
	case !queued:
		return nil, false, false
	case c == nil:
		return t.wakeReceiver(), false, true
	case t.mu.turning && t.mu.sendSleeps:
		return nil, false, true
	case t.short(c, r):
		return nil, true, true
	case c.writable && t.mu.table.due(c, c.queue.urgency()) < t.mu.sendWakes:
		return t.wakeSender(), false, true
	}
	return nil, false, true
}

// place puts m into the queue of its connection, nil for this node itself. mu is held.
func (t *Transport) place(peer uint32, m *Outgoing) (c *conn, r *run, queued bool) {
	if !t.mu.started || t.mu.stopped || t.mu.leaving {
		return nil, nil, false
	}
	if peer == t.self.ID {
		r = t.newRun(m)
		t.mu.local.push(r)
		return nil, r, true
	}
	if c = t.mu.table.conns[peer]; c == nil {
		return nil, nil, false
	}
	r = t.newRun(m)
	c.queue.push(r)
	return c, r, true
}

// newRun gives m the next place in the order of Sends. mu is held.
func (t *Transport) newRun(m *Outgoing) *run {
	var r *run
	if n := len(t.mu.free); n > 0 {
		r = t.mu.free[n-1]
		t.mu.free = t.mu.free[:n-1]
	} else {
		r = new(run)
	}
	t.mu.seq++
	r.init(m, t.mu.seq, t.config.Schedule)
	return r
}

// recycle keeps r for the next Send. mu is held.
func (t *Transport) recycle(r *run) {
	*r = run{}
	t.mu.free = append(t.mu.free, r)
}

// wakeSender and wakeReceiver give what has to be woken once mu, which is held, is
// let go; nil where the loop is awake.
func (t *Transport) wakeSender() *poller {
	if !t.mu.sendSleeps {
		return nil
	}
	t.mu.sendSleeps = false
	return t.sender.poller
}

func (t *Transport) wakeReceiver() *poller {
	if !t.mu.receiveSleeps {
		return nil
	}
	t.mu.receiveSleeps = false
	return t.receiver.poller
}

func (t *Transport) wake(p *poller) {
	if p != nil {
		t.count.wakeups.Add(1)
		p.wake.wake()
	}
}

// Await waits until every one of peers has a connection.
func (t *Transport) Await(ctx context.Context, peers []uint32) error {
	var missing []uint32
	err := t.until(ctx, func() bool {
		missing = missing[:0]
		for _, id := range peers {
			if t.mu.table.conns[id] == nil {
				missing = append(missing, id)
			}
		}
		return len(missing) == 0
	})
	if err == errStopped {
		return t.closedError()
	}
	if err != nil {
		return fault.New(fault.Connect, "no data connection with %s: %v", names(missing), err)
	}
	return nil
}

var errStopped = fmt.Errorf("the data plane has ended")

// until waits for met, which is called with mu held whenever table changes or the
// local queue runs empty.
func (t *Transport) until(ctx context.Context, met func() bool) error {
	for {
		t.mu.Lock()
		ok, changed := met(), t.mu.changed
		t.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-t.stopping:
			return errStopped
		}
	}
}

// announce wakes until. mu is held.
func (t *Transport) announce() {
	close(t.mu.changed)
	t.mu.changed = make(chan struct{})
}

func (t *Transport) closedError() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.failure != nil {
		return fault.New(fault.Internal, "the data plane has failed: %v", t.mu.failure)
	}
	return fault.New(fault.Closed, "the data plane is closed")
}

// Sockets lists every file descriptor of the data plane, for a forked child to
// close. The child has to do it without Go.
func (t *Transport) Sockets() []int {
	fds := append(t.accepting.fds(), t.dialing.fds()...)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.stopped {
		return nil
	}
	for _, l := range t.mu.lanes {
		fds = append(fds, l.Sockets()...)
	}
	if t.listener != nil {
		if fd, err := descriptor(t.listener); err == nil {
			fds = append(fds, fd)
		}
	}
	if t.nearby != nil {
		if fd, err := descriptor(t.nearby); err == nil {
			fds = append(fds, fd)
		}
	}
	for _, p := range []*poller{t.sender.poller, t.receiver.poller} {
		fds = append(fds, p.epoll, p.wake.fd)
	}
	for _, c := range t.mu.table.order {
		fds = append(fds, c.fd)
	}
	return fds
}

// names lists nodes as people know them.
func names(ids []uint32) string {
	s := ""
	for i, id := range ids {
		if i > 0 {
			s += ", "
		}
		s += name(id)
	}
	return s
}

// name is what people call a node.
func name(id uint32) string { return wire.NodeName(int(id)) }
