// Package mem is a data plane inside one process: for a worker that is alone, and
// for tests that run whole clusters on virtual time. It carries the same packets
// as the sockets do, one at a time, in an order that a test may choose.
package mem

import (
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// Network joins the nodes of one process. Its Run is the receive loop of them all.
type Network struct {
	pick func(n int) int
	mu   struct {
		sync.Mutex
		wake   sync.Cond
		nodes  map[uint32]transport.Handler
		queue  []*run
		due    bool // a second has passed
		closed bool
	}
	done chan struct{}
}

// run is an Outgoing under way.
type run struct {
	from, to uint32
	m        transport.Outgoing
	sent     uint32 // packets delivered
}

// New makes a network and starts delivering. pick(n) chooses which of n waiting
// runs gives the next packet; nil takes the oldest.
func New(pick func(n int) int) *Network {
	if pick == nil {
		pick = func(int) int { return 0 }
	}
	n := &Network{pick: pick, done: make(chan struct{})}
	n.mu.nodes = map[uint32]transport.Handler{}
	n.mu.wake.L = &n.mu
	go n.deliver()
	go n.clock()
	return n
}

// clock has handlers ticked once a second.
func (n *Network) clock() {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-n.done:
			return
		case <-ticker.C:
			n.mu.Lock()
			n.mu.due = true
			n.mu.wake.Signal()
			n.mu.Unlock()
		}
	}
}

// Plane is one node's way into the network.
type Plane struct {
	network *Network
	node    uint32
}

// Join gives a node its plane; Attach has to follow before packets arrive.
func (n *Network) Join(node uint32) *Plane { return &Plane{n, node} }

// Attach tells who takes the packets to this node.
func (p *Plane) Attach(h transport.Handler) {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	p.network.mu.nodes[p.node] = h
}

// Send queues packets; it never blocks. What goes to a node that is not there is dropped.
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

// Close ends the delivering and releases every owner. On return no handler runs.
func (n *Network) Close() {
	n.mu.Lock()
	n.mu.closed = true
	n.mu.wake.Signal()
	n.mu.Unlock()
	<-n.done
}

// deliver is the one goroutine on which handlers run.
func (n *Network) deliver() {
	defer close(n.done)
	broken := guard(n.loop)
	n.drop()
	if broken == nil {
		return
	}
	for _, h := range n.handlers() {
		_ = guard(func() error { h.Failed(broken); return nil }) // one node's bug must not keep the news from the others
	}
}

// guard turns a panic into an error.
func guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the data plane broke: panic: %v\n%s", r, debug.Stack())
		}
	}()
	return f()
}

// loop delivers until Close, or until a handler refuses a packet of its own process.
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
				return fmt.Errorf("the data plane broke: %w", err)
			}
		}
	}
}

// next waits for a run to take a packet from; no run means that a tick is due.
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
	i := n.pick(len(n.mu.queue))
	r = n.mu.queue[i]
	if r.last() { // out of the queue, at the cost of those before it: the oldest go at none
		copy(n.mu.queue[1:i+1], n.mu.queue[:i])
		n.mu.queue[0] = nil
		n.mu.queue = n.mu.queue[1:]
	}
	return r, n.mu.nodes[r.to], true
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

// last tells whether the next packet is the run's last.
func (r *run) last() bool {
	return uint64(r.sent+1)*wire.PacketBytes >= uint64(len(r.m.Data))
}

// packet delivers the run's next packet through the encoded header, as sockets do.
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
	return hand(to, r.from == r.to, r.from, &h, payload)
}

func hand(to transport.Handler, local bool, from uint32, h *wire.Header, payload []byte) error {
	if local {
		return to.Local(h, payload)
	}
	var l transport.Landing
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

// drop releases what was not delivered.
func (n *Network) drop() {
	n.mu.Lock()
	n.mu.closed = true
	rest := n.mu.queue
	n.mu.queue = nil
	n.mu.Unlock()
	for _, r := range rest {
		guard(func() error { release(r.m.Owner); return nil }) // a panic in one must not keep the others
	}
}
