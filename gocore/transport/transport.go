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
	"fptps/gocore/trace"
	"fptps/gocore/wire"
)

// Config holds the settings of Listen.
type Config struct {
	Host                      string // address to bind; empty: all interfaces
	Port                      int    // of the listener; 0: any free one
	SendBuffer, ReceiveBuffer int    // SO_SNDBUF and SO_RCVBUF; 0 leaves them to the kernel
	SharedMemory              SharedMemory
	Schedule                  Schedule
	Trace                     *trace.Tracer // of packets; nil: none are traced
	Log                       *slog.Logger
}

// Identity identifies this node to its peers.
type Identity struct {
	ID          uint32
	Incarnation uint64 // of this process: a restarted node has another
	Token       [wire.TokenBytes]byte
}

// Transport is the data plane of a node, or one lane of it.
type Transport struct {
	config      Config
	listener    *net.TCPListener
	shmListener *net.UnixListener // for peers on this host that use shared memory; nil if none may
	self        Identity          // set by Start
	handler     Handler           // set by Start
	lane        uint16            // number of this lane
	began       time.Time
	sender      *sender
	shortcut    writer
	receiver    *receiver
	sys         system
	count       *counters // common to all lanes
	queue       report    // before the link of this host, by packets that arrive
	uplink      report    // the least time that packets to any other host wait on their way

	handshakeTimeout time.Duration // from accept to the answer
	brokenTime       time.Duration // see mend.go, also for the next
	futileTime       time.Duration
	accepting        *pending // handshakes that peers began
	dialing          *pending // handshakes that this node began
	handshakes       sync.WaitGroup
	strangers        hosts

	life     context.Context // ends when the end begins, and so
	endLife  context.CancelFunc
	stopping chan struct{} // is closed
	ended    chan struct{} // closed when nothing is left

	// mu guards the queues and the connections. It is never held across a system call or
	// a call of Handler or Releaser. A panic unlocks it, so that the other threads can
	// end.
	mu struct {
		sync.Mutex
		started, stopped bool
		lanes            []*Transport // the other lanes, of lane 0; see lane.go
		leaving          bool         // Goodbye was called: Send drops
		failure          error        // why the data plane failed
		conns            connSet
		down             capacity // of the link of this host
		processor        processor
		probe            probe
		expect           map[uint32]uint64 // nodes that may connect, and their incarnations
		reserved         map[uint32]bool   // peers with a handshake in progress
		ending           map[uint32]bool   // peers for which Handler.Lost is about to be called
		addresses        map[uint32]string // see Endure
		local            queue             // packets of this node to itself
		seq              uint64
		free             []*run
		inbox            []*conn       // for the receive loop: new connections, and those whose writer has finished or failed
		shortcut         bool          // a caller of Send writes
		sendSleeps       bool          // the send loop waits in epoll and must be woken for new work
		sendWakes        time.Duration // time at which the send loop wakes by itself
		receiveSleeps    bool
		receiverFlushes  bool          // the receive loop is in a pass, and will flush packets sent meanwhile
		changed          chan struct{} // closed and made anew whenever conns changes or local runs empty
	}
	writeEnded sync.Cond // on mu: a writer has finished
}

// Listen binds a port for data connections. Handshakes wait in the kernel's backlog
// until Start.
func Listen(c Config) (*Transport, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	t, err := newTransport(c)
	if err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: t.config.control}
	l, err := lc.Listen(context.Background(), "tcp", net.JoinHostPort(c.Host, strconv.Itoa(c.Port)))
	if err != nil {
		t.closePollers()
		return nil, fault.New(fault.Config, "cannot listen for data connections on host %q at port %d: %v. Choose another FPTPS_DATA_PORT, or none for any free one", c.Host, c.Port, err)
	}
	t.listener = l.(*net.TCPListener)
	if c.SharedMemory != SharedMemoryNever {
		name := shmName(strconv.Itoa(t.Port()))
		if t.shmListener, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: name}); err != nil {
			c.Log.Warn("cannot share memory with nodes of this host", "error", err)
		}
	}
	return t, nil
}

// newTransport makes a lane without listeners.
func newTransport(c Config) (*Transport, error) {
	t := &Transport{
		config: c, sys: kernel, count: &counters{}, began: time.Now(), handshakeTimeout: 5 * time.Second, brokenTime: brokenTime, futileTime: futileTime,
		accepting: newPending(), dialing: newPending(),
		stopping: make(chan struct{}), ended: make(chan struct{}),
	}
	t.life, t.endLife = context.WithCancel(context.Background())
	t.mu.changed = make(chan struct{})
	t.mu.reserved = make(map[uint32]bool)
	t.mu.ending = make(map[uint32]bool)
	t.mu.down.late = true
	t.writeEnded.L = &t.mu
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
	if t.shmListener != nil {
		t.shmListener.Close()
	}
}

// Port is the port of the listener.
func (t *Transport) Port() int { return t.listener.Addr().(*net.TCPAddr).Port }

// now is the time since Listen, as pacing uses it.
func (t *Transport) now() time.Duration { return time.Since(t.began) }

// Start runs the data plane as node self, with a handler for each lane. expect holds the
// nodes that may connect to this one, with their incarnations; others are refused. Traffic
// to other hosts keeps below linkRate, in bytes of TCP payload per second; 0: no bound is
// known. It is called once.
func (t *Transport) Start(self Identity, expect map[uint32]uint64, linkRate float64, handlers ...Handler) {
	others := t.others()
	linkRate /= float64(1 + len(others)) // tensors are spread evenly over the lanes
	for i, l := range others {           // before a handshake for them can arrive
		l.start(self, nil, linkRate, handlers[1+i])
	}
	t.start(self, expect, linkRate, handlers[0])
}

func (t *Transport) start(self Identity, expect map[uint32]uint64, linkRate float64, h Handler) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.started {
		panic("transport: Start called twice")
	}
	if t.mu.stopped {
		return
	}
	t.self, t.handler = self, h
	t.mu.expect = maps.Clone(expect)
	t.mu.conns.bound, t.mu.conns.link.rate = linkRate, linkRate
	t.mu.conns.lastServed = self.ID
	t.mu.started = true
	if t.listener != nil {
		t.handshakes.Add(1)
		go t.serve(func() (stream, error) { return t.listener.AcceptTCP() })
	}
	if t.shmListener != nil {
		t.handshakes.Add(1)
		go t.serve(func() (stream, error) { return t.shmListener.AcceptUnix() })
	}
	go t.sender.run()
	go t.receiver.run()
}

// Send queues m for peer, which may be this node itself, and never blocks. Any thread
// may call it, also the handler. Without a connection to peer, or after Goodbye or Close,
// m is dropped and its Owner released before Send returns.
func (t *Transport) Send(peer uint32, m Outgoing) {
	wake, shortcut, queued := t.lockAndEnqueue(peer, &m)
	t.wake(wake)
	if shortcut {
		t.writeShortcut()
	}
	if !queued {
		t.count.dropped.Add(1)
		if m.Owner != nil {
			m.Owner.Release()
		}
	}
}

func (t *Transport) lockAndEnqueue(peer uint32, m *Outgoing) (wake *poller, shortcut, queued bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.enqueue(peer, m)
}

// enqueue queues m. It returns the loop to wake, if any, and whether the caller must
// write m itself. queued is false if m was dropped. mu is held.
func (t *Transport) enqueue(peer uint32, m *Outgoing) (wake *poller, shortcut, queued bool) {
	c, r, queued := t.pushRun(peer, m)
	switch {
	case !queued:
		return nil, false, false
	case c == nil:
		return t.wakeReceiver(), false, true
	case t.mu.receiverFlushes && t.mu.sendSleeps:
		return nil, false, true
	case t.tryShortcut(c, r):
		return nil, true, true
	case c.writable && t.mu.conns.due(c) < t.mu.sendWakes:
		return t.wakeSender(), false, true
	}
	return nil, false, true
}

// pushRun pushes m onto the queue of its connection; c is nil for this node itself. mu is
// held.
func (t *Transport) pushRun(peer uint32, m *Outgoing) (c *conn, r *run, queued bool) {
	if !t.accepts() {
		return nil, nil, false
	}
	if peer == t.self.ID {
		r = t.newRun(m)
		t.traceQueued(peer, r)
		t.mu.local.push(r)
		return nil, r, true
	}
	if c = t.mu.conns.byPeer[peer]; c == nil {
		return nil, nil, false
	}
	if c.remote && m.Header.Kind != wire.Probe {
		t.endProbe()
	}
	r = t.newRun(m)
	t.traceQueued(peer, r)
	c.queue.push(r)
	return c, r, true
}

// accepts reports whether packets may be queued. mu is held.
func (t *Transport) accepts() bool { return t.mu.started && !t.mu.stopped && !t.mu.leaving }

// newRun makes the run of m, with the next sequence number. mu is held.
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

// wakeSender and wakeReceiver return the poller to wake after mu is unlocked; nil if the
// loop is awake. mu is held.
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

// Await waits until all peers have a connection.
func (t *Transport) Await(ctx context.Context, peers []uint32) error {
	var missing []uint32
	err := t.waitUntil(ctx, func() bool {
		missing = missing[:0]
		for _, id := range peers {
			if t.mu.conns.byPeer[id] == nil {
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

// waitUntil waits until met returns true. met is called with mu held, whenever conns has
// changed or the local queue has become empty.
func (t *Transport) waitUntil(ctx context.Context, met func() bool) error {
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

// notifyChanged wakes waitUntil. mu is held.
func (t *Transport) notifyChanged() {
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

// Sockets lists every file descriptor of the data plane, for a forked child to close.
// The child must close them without Go.
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
	if t.shmListener != nil {
		if fd, err := descriptor(t.shmListener); err == nil {
			fds = append(fds, fd)
		}
	}
	for _, p := range []*poller{t.sender.poller, t.receiver.poller} {
		fds = append(fds, p.epoll, p.wake.fd)
	}
	for _, c := range t.mu.conns.order {
		fds = c.appendFds(fds)
	}
	return fds
}

// names lists nodes by role and rank.
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

// name is the role and rank of a node.
func name(id uint32) string { return wire.NodeName(int(id)) }
