// Package memvan is a network of vans in one process. Tests run whole clusters on it,
// in testing/synctest's virtual time, with delays from a seed.
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

// inboxLength is more messages than any test sends to a van that does not receive.
const inboxLength = 1 << 16

// Network connects vans. As with ZeroMQ, messages to an address wait until a van binds
// it, and a connection keeps the order of its messages.
type Network struct {
	maxDelay time.Duration
	mu       struct {
		sync.Mutex
		random  *rand.Rand
		port    int
		vans    map[string]*memVan   // by address
		unbound map[string][]message // messages to addresses that no van has bound yet
		binds   map[string]int       // how often a van has bound an address
	}
}

type message struct {
	host   string // that sent it; "": injected
	from   []byte
	frames [][]byte
}

// New makes a network on which each message takes up to maxDelay.
func New(seed uint64, maxDelay time.Duration) *Network {
	n := &Network{maxDelay: maxDelay}
	n.mu.random = rand.New(rand.NewPCG(seed, 0))
	n.mu.port = 10000
	n.mu.vans = map[string]*memVan{}
	n.mu.unbound = map[string][]message{}
	n.mu.binds = map[string]int{}
	return n
}

// Van makes a van on a host of the network. Bind with the host "" binds this host.
func (n *Network) Van(host string) van.Van {
	v := &memVan{net: n, host: host, inbox: make(chan message, inboxLength), done: make(chan struct{})}
	v.mu.peers = map[int]*link{}
	return v
}

// Isolate cuts a van off: its messages and those to it are lost, and neither side gets
// an error.
func (n *Network) Isolate(v van.Van) {
	v.(*memVan).isolated.Store(true)
}

// Kill is Isolate, and what the van has sent and has not arrived yet is lost, too.
func (n *Network) Kill(v van.Van) {
	n.Isolate(v)
	v.(*memVan).killed.Store(true)
}

// KillAfter isolates a van when it has sent so many more messages. left tells how many it may still send.
func (n *Network) KillAfter(v van.Van, messages int) (left func() int) {
	m := v.(*memVan)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.left = &messages
	return func() int {
		m.mu.Lock()
		defer m.mu.Unlock()
		return messages
	}
}

// Inject delivers frames to an address as if they came from a connection with that identity.
func (n *Network) Inject(host string, port int, identity string, frames ...[]byte) {
	n.deliver(address(host, port), message{from: []byte(identity), frames: frames})
}

func address(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

func (n *Network) deliver(to string, a message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if v := n.mu.vans[to]; v != nil {
		v.put(a)
	} else {
		n.mu.unbound[to] = append(n.mu.unbound[to], a)
	}
}

// memVan is one van of the network.
type memVan struct {
	net      *Network
	host     string
	inbox    chan message
	done     chan struct{}
	once     sync.Once
	isolated atomic.Bool // see Isolate
	killed   atomic.Bool // see Kill
	mu       struct {    // no other lock is taken while it is held
		sync.Mutex
		id    int
		peers map[int]*link
		stats van.Stats
		left  *int // see KillAfter

		isMember func(*van.Envelope) bool // nil: there are only strangers
	}
}

// link is a connection to an address.
type link struct {
	van  *memVan // that sends
	from []byte  // identity
	to   string
	past int // vans that were bound at the address and no longer were when the link was made
	mu   struct {
		sync.Mutex
		last    time.Time // arrival time of the last message
		flights []message // sent and not yet delivered, oldest first
	}
}

// send delivers a message after a delay, and after all messages sent before it.
func (l *link) send(n *Network, frames [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := time.Now().Add(n.delay()); at.After(l.mu.last) {
		l.mu.last = at
	}
	l.mu.flights = append(l.mu.flights, message{l.van.host, l.from, frames})
	time.AfterFunc(time.Until(l.mu.last), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		next := l.mu.flights[0]
		l.mu.flights = l.mu.flights[1:]
		if !l.van.killed.Load() {
			n.deliver(l.to, next)
		}
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
	n.mu.binds[at]++
	for _, a := range n.mu.unbound[at] {
		v.put(a)
	}
	delete(n.mu.unbound, at)
	return port, nil
}

// Trust implements van.Van.
func (v *memVan) Trust(isMember func(*van.Envelope) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.isMember = isMember
}

// Identify implements van.Van.
func (v *memVan) Identify(id int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.id = id
}

// Connect implements van.Van.
func (v *memVan) Connect(id int, host string, port int) error {
	l := &link{van: v, to: address(host, port)}
	l.past = v.net.past(l.to)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.id != 0 {
		l.from = fmt.Appendf(nil, "ps%d", v.mu.id)
	}
	v.mu.peers[id] = l
	return nil
}

// past is how many vans have been bound at an address and no longer are.
func (n *Network) past(at string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.vans[at] != nil {
		return n.mu.binds[at] - 1
	}
	return n.mu.binds[at]
}

// ConnectCounted implements van.Van.
func (v *memVan) ConnectCounted(id int, host string, port int) error {
	return v.Connect(id, host, port)
}

// Connections implements van.Van.
func (v *memVan) Connections(id int) int {
	v.mu.Lock()
	l := v.mu.peers[id]
	v.mu.Unlock()
	if l == nil {
		return 0
	}
	v.net.mu.Lock()
	defer v.net.mu.Unlock()
	return v.net.mu.binds[l.to] - l.past
}

// Disconnect implements van.Van.
func (v *memVan) Disconnect(id int, now bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.mu.peers, id)
}

// Send implements van.Van. The message is encoded and decoded, as on a real network.
func (v *memVan) Send(id int, m *pspb.Meta, data ...[]byte) error {
	first, err := van.Encode(m)
	if err != nil {
		return err
	}
	v.mu.Lock()
	l := v.mu.peers[id]
	if l != nil {
		v.mu.stats.Sent++
		if left := v.mu.left; left != nil && *left == 0 {
			v.isolated.Store(true)
		} else if left != nil {
			*left--
		}
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

func (v *memVan) put(a message) {
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
		default: // after Close no queued message is returned
		}
		select {
		case <-v.done:
			return nil, van.ErrClosed
		case a := <-v.inbox:
			e, err := van.Decode(a.from, a.frames)
			v.mu.Lock()
			isMember := v.mu.isMember
			v.mu.Unlock()
			if err == nil && len(e.Data) > 0 && (isMember == nil || !isMember(e)) {
				err = fmt.Errorf("data of node %d, which is no member", e.From)
			}
			v.mu.Lock()
			if err != nil {
				v.mu.stats.Rejected++
			} else {
				v.mu.stats.Received++
			}
			v.mu.Unlock()
			if err == nil {
				e.Host = a.host
				return e, nil
			}
		}
	}
}

// Close implements van.Van. Messages already sent still arrive.
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
