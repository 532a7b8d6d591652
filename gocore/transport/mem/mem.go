// Package mem is a data plane inside one process, for a worker without a cluster and
// for tests that run whole clusters on virtual time. It carries the same packets as
// the sockets, one at a time; a test may choose their order.
package mem

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// Network connects the nodes of one process. Its goroutine is the receive loop of all of them.
type Network struct {
	pick func(n int) int
	mu   struct {
		sync.Mutex
		wake   sync.Cond
		nodes  map[uint32]transport.Handler
		queue  []*run
		due    bool // a tick is due: a second has passed
		closed bool
	}
	done chan struct{}
}

// run is an Outgoing that is being delivered.
type run struct {
	from, to uint32
	m        transport.Outgoing
	sent     uint32 // packets delivered
}

// New makes a network and starts to deliver packets. pick(n) returns the index of the
// run, among n queued ones, whose next packet is delivered; nil picks a sum that was just
// queued, else the oldest run: so the sums of a large tensor are not all in memory at once.
func New(pick func(n int) int) *Network {
	n := &Network{pick: pick, done: make(chan struct{})}
	n.mu.nodes = map[uint32]transport.Handler{}
	n.mu.wake.L = &n.mu
	go n.deliver()
	go fault.Catch(n.clock)
	return n
}

// clock makes a tick due once a second.
func (n *Network) clock() error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-n.done:
			return nil
		case <-ticker.C:
			n.mu.Lock()
			n.mu.due = true
			n.mu.wake.Signal()
			n.mu.Unlock()
		}
	}
}

// Plane is the data plane of one node.
type Plane struct {
	network *Network
	node    uint32
}

// Join makes the plane of a node. Attach must be called before packets arrive.
func (n *Network) Join(node uint32) *Plane { return &Plane{n, node} }

// Attach sets the handler of the packets to this node.
func (p *Plane) Attach(h transport.Handler) {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	p.network.mu.nodes[p.node] = h
}

// Send queues packets and never blocks. Packets to an unknown node are dropped.
func (p *Plane) Send(node uint32, m transport.Outgoing) {
	n := p.network
	n.mu.Lock()
	open := !n.mu.closed && n.mu.nodes[node] != nil
	if open {
		n.mu.queue = append(n.mu.queue, &run{from: p.node, to: node, m: m})
		n.mu.wake.Signal()
	}
	n.mu.Unlock()
	if !open {
		release(m.Owner)
	}
}

// Close stops the delivery and releases every owner. After it returns, no handler runs.
func (n *Network) Close() {
	n.mu.Lock()
	n.mu.closed = true
	n.mu.wake.Signal()
	n.mu.Unlock()
	<-n.done
}

// deliver is the goroutine of the network; all handlers run on it.
func (n *Network) deliver() {
	defer close(n.done)
	broken := fault.Catch(n.loop)
	handlers := n.drop()
	if broken == nil {
		return
	}
	broken = fmt.Errorf("the data plane broke: %w", broken)
	for _, h := range handlers {
		fault.Catch(func() error { h.Failed(broken); return nil }) // a panic in one handler must not keep the others from being notified
	}
}

// loop delivers packets until Close or until a handler returns an error.
func (n *Network) loop() error {
	for {
		r, h, open := n.next()
		switch {
		case !open:
			return nil
		case r == nil:
			n.tick()
		default:
			if err := r.packet(h); err != nil {
				return err
			}
		}
	}
}

// next waits for a run with a packet to deliver; a nil run means that a tick is due.
func (n *Network) next() (r *run, to transport.Handler, open bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.mu.queue) == 0 && !n.mu.due && !n.mu.closed {
		n.mu.wake.Wait()
	}
	if n.mu.closed || n.mu.due {
		n.mu.due = false
		return nil, nil, !n.mu.closed
	}
	i, newest := 0, len(n.mu.queue)-1
	if n.pick != nil {
		i = n.pick(len(n.mu.queue))
	} else if n.mu.queue[newest].m.Header.Kind == wire.Sum {
		i = newest
	}
	i = n.firstOfOrder(i)
	r = n.mu.queue[i]
	switch {
	case !r.last():
	case i == newest:
		n.mu.queue[i] = nil
		n.mu.queue = n.mu.queue[:i]
	default: // remove it by moving the runs before it: removing the oldest costs nothing
		copy(n.mu.queue[1:i+1], n.mu.queue[:i])
		n.mu.queue[0] = nil
		n.mu.queue = n.mu.queue[1:]
	}
	return r, n.mu.nodes[r.to], true
}

// firstOfOrder returns the index of the first run that the sockets would deliver before run i, whatever pick says: replicas of the same priority keep their order.
func (n *Network) firstOfOrder(i int) int {
	r := n.mu.queue[i]
	if r.m.Header.Kind != wire.Replica {
		return i
	}
	return slices.IndexFunc(n.mu.queue, func(other *run) bool {
		return other.from == r.from && other.to == r.to && other.m.Header.Kind == wire.Replica && other.m.Header.Priority == r.m.Header.Priority
	})
}

func (n *Network) tick() {
	now := time.Now()
	for _, h := range n.handlers() {
		h.Tick(now)
	}
}

func (n *Network) handlers() []transport.Handler {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Values(n.mu.nodes))
}

// last reports whether the next packet is the run's last.
func (r *run) last() bool {
	return uint64(r.sent+1)*wire.PacketBytes >= uint64(len(r.m.Data))
}

// packet delivers the run's next packet. It encodes and decodes the header, as the sockets do.
func (r *run) packet(to transport.Handler) error {
	if r.last() {
		defer release(r.m.Owner)
	}
	from := min(int(r.sent)*wire.PacketBytes, len(r.m.Data))
	payload := r.m.Data[from:min(from+wire.PacketBytes, len(r.m.Data))]
	h := r.m.Header
	h.Packet += r.sent
	if h.WireLen = uint32(len(payload)); h.WireLen > 0 && h.Codec == wire.CodecPlain {
		h.RawLen = h.WireLen
	}
	r.sent++
	var bytes [wire.HeaderBytes]byte
	h.Put(bytes[:])
	if err := h.Get(bytes[:]); err != nil {
		return err
	}
	return handle(to, r.from == r.to, r.from, &h, payload)
}

func handle(to transport.Handler, local bool, from uint32, h *wire.Header, payload []byte) error {
	if local {
		return to.Local(h, payload)
	}
	var l transport.Destination
	if len(payload) > 0 {
		var err error
		if l, err = to.Place(from, h); err != nil {
			return err
		}
		copy(l.Bytes, payload)
	}
	return to.Arrived(from, h, l)
}

func release(owner transport.Releaser) {
	if owner != nil {
		owner.Release()
	}
}

// drop releases the runs that were not delivered. It forgets the handlers, which it returns: they may refer to callers'
// arrays, which they may free now.
func (n *Network) drop() []transport.Handler {
	handlers := n.handlers()
	n.mu.Lock()
	n.mu.closed = true
	rest := n.mu.queue
	n.mu.queue = nil
	clear(n.mu.nodes)
	n.mu.Unlock()
	for _, r := range rest {
		fault.Catch(func() error { release(r.m.Owner); return nil }) // a panic in one Release must not prevent the others
	}
	return handlers
}
