package transport

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fptps/gocore/wire"
)

// deadline bounds every wait of the tests: only a failure takes that long.
const deadline = 60 * time.Second

var token = [wire.TokenBytes]byte{3, 1, 4, 1, 5}

func incarnation(id uint32) uint64 { return uint64(id)*1000 + 7 }

// ledger counts owners: each is to be released exactly once.
type ledger struct {
	lent, released, twice atomic.Int64
}

type loan struct {
	ledger *ledger
	done   atomic.Bool
	then   func()
}

func (l *ledger) lend(then func()) *loan {
	l.lent.Add(1)
	return &loan{ledger: l, then: then}
}

func (o *loan) Release() {
	if o.done.Swap(true) {
		o.ledger.twice.Add(1)
		return
	}
	o.ledger.released.Add(1)
	if o.then != nil {
		o.then()
	}
}

func (l *ledger) check(t testing.TB) {
	t.Helper()
	if l.twice.Load() != 0 || l.lent.Load() != l.released.Load() {
		t.Errorf("%d owners lent, %d released, %d released again", l.lent.Load(), l.released.Load(), l.twice.Load())
	}
}

// arrival is one packet that a handler has received.
type arrival struct {
	peer    uint32 // own id for Local
	header  wire.Header
	payload []byte
}

// recorder is a Handler that records its calls. A test may replace single methods.
type recorder struct {
	id                   uint32
	places               ledger // of Destinations: released by Arrived or by the transport
	place                func(peer uint32, h *wire.Header) (Destination, error)
	arrived              func(a arrival) error // in place of keeping it; the payload is valid during the call
	lost                 func(peer uint32, err error)
	badPlace, badArrival error // guarded by mu: what Place and Arrived answer
	mu                   sync.Mutex
	arrivals             []arrival
	ends                 map[uint32]error
	ticks                int
	failure              error
	after                bool // a call came after Failed
	changed              chan struct{}
}

func newRecorder(id uint32) *recorder {
	return &recorder{id: id, ends: make(map[uint32]error), changed: make(chan struct{})}
}

func (r *recorder) note(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure != nil {
		r.after = true
	}
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *recorder) Place(peer uint32, h *wire.Header) (Destination, error) {
	if r.place != nil {
		return r.place(peer, h)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.badPlace != nil {
		return Destination{}, r.badPlace
	}
	return Destination{Bytes: make([]byte, h.WireLen), Owner: r.places.lend(nil)}, nil
}

func (r *recorder) Arrived(peer uint32, h *wire.Header, l Destination) error {
	if l.Owner != nil {
		l.Owner.Release()
	}
	return r.keep(arrival{peer, *h, l.Bytes})
}

func (r *recorder) Local(h *wire.Header, payload []byte) error {
	if r.arrived == nil {
		payload = append([]byte(nil), payload...)
	}
	return r.keep(arrival{r.id, *h, payload})
}

func (r *recorder) keep(a arrival) error {
	if r.arrived != nil {
		return r.arrived(a)
	}
	var err error
	r.note(func() {
		if err = r.badArrival; err == nil {
			r.arrivals = append(r.arrivals, a)
		}
	})
	return err
}

func (r *recorder) Lost(peer uint32, err error) {
	if r.lost != nil {
		r.lost(peer, err)
	}
	r.note(func() {
		if _, again := r.ends[peer]; again {
			err = fmt.Errorf("lost a second time: %v", err)
		}
		r.ends[peer] = err
	})
}

func (r *recorder) Tick(time.Time) { r.note(func() { r.ticks++ }) }

func (r *recorder) Failed(err error) { r.note(func() { r.failure = err }) }

// waitUntil waits for met, which is called with mu held after every change.
func (r *recorder) until(t testing.TB, name string, met func() bool) {
	t.Helper()
	timer := time.NewTimer(deadline)
	defer timer.Stop()
	for {
		r.mu.Lock()
		ok, changed := met(), r.changed
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			t.Fatalf("node %d waited in vain for %s; ends %v, failure %v", r.id, name, r.ends, r.failure)
		}
	}
}

func (r *recorder) untilArrived(t testing.TB, n int) []arrival {
	t.Helper()
	r.until(t, strconv.Itoa(n)+" packets", func() bool { return len(r.arrivals) >= n })
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]arrival(nil), r.arrivals...)
}

func (r *recorder) untilLost(t testing.TB, peer uint32) error {
	t.Helper()
	var err error
	r.until(t, "the end of "+name(peer), func() (ok bool) { err, ok = r.ends[peer]; return ok })
	return err
}

// node is a transport with its recorder.
type node struct {
	*Transport
	id      uint32
	h       *recorder
	puppets []uint32 // expected too, for the test to connect
	front   string   // the address that others dial instead of its own
}

func (n *node) dialed() string {
	if n.front != "" {
		return n.front
	}
	return n.addr()
}

func (n *node) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.Port())) }

// listen makes a node that is not started; prepare may change it.
func listen(t testing.TB, id uint32, prepare func(*node)) *node {
	t.Helper()
	tr, err := Listen(Config{Host: "127.0.0.1", SharedMemory: kitSharedMemory})
	if err != nil {
		t.Fatal(err)
	}
	if kitEndures {
		tr.Endure(map[uint32]string{})
	}
	n := &node{Transport: tr, id: id, h: newRecorder(id)}
	if prepare != nil {
		prepare(n)
	}
	t.Cleanup(n.Close)
	return n
}

func (n *node) start(expect ...uint32) {
	m := make(map[uint32]uint64)
	for _, id := range append(expect, n.puppets...) {
		m[id] = incarnation(id)
	}
	n.Start(Identity{ID: n.id, Incarnation: incarnation(n.id), Token: token}, m, 0, n.h)
}

func soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), deadline)
}

// mesh is nodes with these ids, each connected to every other.
func mesh(t testing.TB, prepare func(*node), ids ...uint32) []*node {
	t.Helper()
	var nodes []*node
	for _, id := range ids {
		nodes = append(nodes, listen(t, id, prepare))
	}
	ctx, cancel := soon()
	defer cancel()
	if kitEndures {
		addresses := map[uint32]string{}
		for _, n := range nodes {
			addresses[n.id] = n.dialed()
		}
		for _, n := range nodes {
			n.Endure(addresses)
		}
	}
	var dials sync.WaitGroup
	for i, n := range nodes {
		n.start(ids[i+1:]...)
		for _, peer := range nodes[:i] {
			dials.Go(func() {
				if err := n.Dial(ctx, peer.id, incarnation(peer.id), peer.dialed()); err != nil {
					t.Error(err)
				}
			})
		}
	}
	dials.Wait()
	for i, n := range nodes {
		others := append(append([]uint32(nil), ids[:i]...), ids[i+1:]...)
		if err := n.Await(ctx, others); err != nil {
			t.Fatal(err)
		}
	}
	return nodes
}

// contrib is a header that passes its check.
func contrib(tensor uint32, priority int32) wire.Header {
	return wire.Header{Kind: wire.Contrib, DType: wire.Uint8, Tensor: tensor, Run: 1, Round: 1, Priority: priority}
}

// fill writes bytes that differ by tensor, sender and offset.
func fill(b []byte, id, tensor uint32) []byte {
	for i := range b {
		b[i] = content(id, tensor, i)
	}
	return b
}

func content(id, tensor uint32, offset int) byte {
	x := (uint64(id)<<48 ^ uint64(tensor)<<32 ^ uint64(offset)) * 0x9E3779B97F4A7C15
	return byte(x >> 56)
}

// checkContent finds the first wrong byte of a packet's payload.
func checkContent(id uint32, h *wire.Header, payload []byte) error {
	if len(payload) != int(h.WireLen) {
		return fmt.Errorf("payload of %d bytes under a header of %d", len(payload), h.WireLen)
	}
	for i, b := range payload {
		if want := content(id, h.Tensor, int(h.Packet)*wire.PacketBytes+i); b != want {
			return fmt.Errorf("tensor %d of node %d, packet %d: byte %d is %d, not %d", h.Tensor, id, h.Packet, i, b, want)
		}
	}
	return nil
}

func seeded(t testing.TB, seed uint64) *rand.Rand {
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 42))
}

// How the nodes of tests connect; overTCPAndShm and enduring change it.
var (
	kitSharedMemory = SharedMemoryNever
	kitEndures      = false
)

// enduring runs a test with connections that are made again when they break.
func enduring(t *testing.T, test func(t *testing.T)) {
	kitEndures = true
	defer func() { kitEndures = false }()
	test(t)
}

// overTCPAndShm runs a test over TCP, with connections that are made again when they break and others, and over shared memory.
func overTCPAndShm(t *testing.T, test func(t *testing.T)) {
	t.Run("enduring", func(t *testing.T) { enduring(t, test) })
	for name, mode := range map[string]SharedMemory{"tcp": SharedMemoryNever, "shared memory": SharedMemoryAlways} {
		t.Run(name, func(t *testing.T) {
			kitSharedMemory = mode
			defer func() { kitSharedMemory = SharedMemoryNever }()
			test(t)
		})
	}
}
