// Package memvan is a network of vans in one process, for tests: whole clusters
// under testing/synctest's virtual time, with delays from a seed.
package memvan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"fptps/gocore/van"
	"fptps/gocore/wire/pspb"
)

// inboxLength is more than any test sends to a van that does not receive.
const inboxLength = 1 << 16

// Network connects vans. As with ZeroMQ, what is sent to an address where nobody
// listens yet waits there, and a connection keeps the order of its messages.
type Network struct {
	maxDelay time.Duration
	mu       struct {
		sync.Mutex
		random  *rand.Rand
		port    int
		vans    map[string]*memVan   // by address
		waiting map[string][]arrival // for an address where nobody listens yet
	}
}

type arrival struct {
	from   []byte
	frames [][]byte
}

// New makes a network on which each message takes up to maxDelay.
func New(seed uint64, maxDelay time.Duration) *Network {
	n := &Network{maxDelay: maxDelay}
	n.mu.random = rand.New(rand.NewPCG(seed, 0))
	n.mu.port = 10000
	n.mu.vans = map[string]*memVan{}
	n.mu.waiting = map[string][]arrival{}
	return n
}

// Van makes a van on a host of the network. "" as a host to bind is this host.
func (n *Network) Van(host string) van.Van {
	v := &memVan{net: n, host: host, inbox: make(chan arrival, inboxLength), done: make(chan struct{})}
	v.mu.peers = map[int]*link{}
	return v
}

// Isolate cuts a van off: nothing reaches it and nothing of it reaches others, and
// neither side is told.
func (n *Network) Isolate(v van.Van) {
	v.(*memVan).isolated.Store(true)
}

// Inject delivers frames to an address as if they came from a connection called identity.
func (n *Network) Inject(host string, port int, identity string, frames ...[]byte) {
	n.deliver(address(host, port), arrival{[]byte(identity), frames})
}

func address(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

func (n *Network) deliver(to string, a arrival) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if v := n.mu.vans[to]; v != nil {
		v.put(a)
	} else {
		n.mu.waiting[to] = append(n.mu.waiting[to], a)
	}
}

// memVan is one van of the network.
type memVan struct {
	net      *Network
	host     string
	inbox    chan arrival
	done     chan struct{}
	once     sync.Once
	isolated atomic.Bool // see Isolate
	mu       struct {    // nothing else is locked while it is held
		sync.Mutex
		id    int
		peers map[int]*link
		stats van.Stats
	}
}

// link is a connection to an address.
type link struct {
	from []byte // identity
	to   string
	mu   struct {
		sync.Mutex
		last    time.Time // arrival of the last message
		flights []arrival // on their way, oldest first
	}
}

// send lets a message arrive after a delay, and after all that were sent before it.
func (l *link) send(n *Network, frames [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := time.Now().Add(n.delay()); at.After(l.mu.last) {
		l.mu.last = at
	}
	l.mu.flights = append(l.mu.flights, arrival{l.from, frames})
	time.AfterFunc(time.Until(l.mu.last), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		next := l.mu.flights[0]
		l.mu.flights = l.mu.flights[1:]
		n.deliver(l.to, next)
	})
}

var _ van.Van = (*memVan)(nil)

// Bind implements van.Van.
func (v *memVan) Bind(host string, port int) (int, error) {
	n := v.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if port == 0 {
		n.mu.port++
		port = n.mu.port
	}
	at := address(v.host, port)
	if n.mu.vans[at] != nil {
		return 0, fmt.Errorf("address %s is in use", at)
	}
	n.mu.vans[at] = v
	for _, a := range n.mu.waiting[at] {
		v.put(a)
	}
	delete(n.mu.waiting, at)
	return port, nil
}

// Identify implements van.Van.
func (v *memVan) Identify(id int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.id = id
}

// Connect implements van.Van.
func (v *memVan) Connect(id int, host string, port int) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	l := &link{to: address(host, port)}
	if v.mu.id != 0 {
		l.from = fmt.Appendf(nil, "ps%d", v.mu.id)
	}
	v.mu.peers[id] = l
	return nil
}

// ConnectPSLite implements van.Van.
func (v *memVan) ConnectPSLite(id int, host string, port int) error { return v.Connect(id, host, port) }

// Disconnect implements van.Van.
func (v *memVan) Disconnect(id int, now bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.mu.peers, id)
}

// Send implements van.Van. The message goes through its bytes, as on any network.
func (v *memVan) Send(id int, m *pspb.Meta, data ...[]byte) error {
	first, err := van.Encode(m)
	if err != nil {
		return err
	}
	v.mu.Lock()
	l := v.mu.peers[id]
	if l != nil {
		v.mu.stats.Sent++
	}
	v.mu.Unlock()
	if l == nil {
		return fmt.Errorf("node %d is not connected", id)
	}
	if v.isolated.Load() {
		return nil
	}
	l.send(v.net, append([][]byte{first}, data...))
	return nil
}

func (n *Network) delay() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Duration(n.mu.random.Int64N(int64(n.maxDelay) + 1))
}

func (v *memVan) put(a arrival) {
	if v.isolated.Load() {
		return
	}
	select {
	case v.inbox <- a:
	case <-v.done:
	}
}

// Receive implements van.Van.
func (v *memVan) Receive() (*van.Envelope, error) {
	for {
		select {
		case <-v.done:
			return nil, van.ErrClosed
		default: // closed goes before what is there
		}
		select {
		case <-v.done:
			return nil, van.ErrClosed
		case a := <-v.inbox:
			e, err := van.Decode(a.from, a.frames)
			v.mu.Lock()
			if err != nil {
				v.mu.stats.Rejected++
			} else {
				v.mu.stats.Received++
			}
			v.mu.Unlock()
			if err == nil {
				return e, nil
			}
		}
	}
}

// Close implements van.Van. What was sent still arrives.
func (v *memVan) Close() error {
	v.once.Do(func() {
		close(v.done)
		v.net.mu.Lock()
		maps.DeleteFunc(v.net.mu.vans, func(_ string, other *memVan) bool { return other == v })
		v.net.mu.Unlock()
		v.mu.Lock()
		defer v.mu.Unlock()
		clear(v.mu.peers)
	})
	return nil
}

// Stats implements van.Van.
func (v *memVan) Stats() van.Stats {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.stats
}
