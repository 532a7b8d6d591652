package transport

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// conn is one established connection.
type conn struct {
	peer   uint32
	fd     int    // set and closed by the receive loop alone, while no thread writes; -1 while the connection is broken
	shm    *shm   // carries the bytes in place of fd on this host; nil for a TCP connection
	remote bool   // on another host, so that its packets use a link
	addr   string // of the peer, for the log

	session *session // of a connection that is made again when it breaks; else nil

	// Used by the receive loop alone.
	parser parser
	met    bool // the receive loop knows it
	lag    lag

	waits  report // how long the peer's packets have waited on their way here: at least, or in the mean
	least  report // at least
	waited report // how long this node's have on their way there, as the peer says
	queued report // how long packets from all hosts wait before the peer's link, as it says
	uplink report // how long those of the peer wait at least, wherever they go, as it says

	carried  carried
	linked   uint64        // bytes that the peer has sent; used by the receive loop alone
	compared time.Duration // when its packets' wait was compared with others', likewise

	// Guarded by Transport.mu.
	queue       queue
	window      window   // see window.go
	flow        flow     // see uplink.go
	path        capacity // what the way from the peer carries; see paths.go
	service     service  // see weights.go
	writable    bool     // the kernel has room, as far as is known; false until adopted
	writing     bool     // a thread owns fd for a write; see doc.go
	goodbyeSent bool     // this node has written its Goodbye, and writes nothing more
	readDone    bool     // the peer's Goodbye and end of stream were read, but this node has not sent its Goodbye yet
	broken      error    // why a write failed, or why the connection is broken
	dropped     bool     // Drop was called; set before the connection enters the inbox
}

// connSet holds the established connections.
type connSet struct {
	byPeer      map[uint32]*conn
	met         map[uint32]uint64  // incarnations of the peers with which there was a connection that is made again
	order       []*conn            // by peer
	lastServed  uint32             // peer of the last write; at first this node's own id
	link        pace               // of all traffic that leaves this host
	bound       float64            // what its rate is at most, bytes per second; 0: not known
	uplink      uplink             // learns its rate
	weights     map[uint32]float64 // by peer; see Weigh
	virtualTime float64            // start tag of the last write

	waiting int // connections with other hosts that had packets to send at the last choice
	windows int // sum of their windows
}

func (t *connSet) add(c *conn) {
	if t.byPeer == nil {
		t.byPeer, t.met = make(map[uint32]*conn), make(map[uint32]uint64)
	}
	if c.session != nil {
		t.met[c.peer] = c.session.incarnation
	}
	t.byPeer[c.peer] = c
	i, _ := slices.BinarySearchFunc(t.order, c.peer, comparePeer)
	t.order = slices.Insert(t.order, i, c)
}

func (t *connSet) remove(c *conn) {
	delete(t.byPeer, c.peer)
	if i, ok := slices.BinarySearchFunc(t.order, c.peer, comparePeer); ok {
		t.order = slices.Delete(t.order, i, i+1)
	}
}

func comparePeer(c *conn, peer uint32) int { return cmp.Compare(c.peer, peer) }

// shmWritable checks whether a full shared-memory ring has room again, which epoll does not report.
func (c *conn) shmWritable() bool {
	if c.shm == nil || !c.shm.out.free() {
		return false
	}
	c.writable = true
	return true
}

// never is a time in the infinite future.
const never = time.Duration(math.MaxInt64)

// choice is the result of choose.
type choice struct {
	conn    *conn         // nil if nothing can be written now
	blocked bool          // packets are queued on a connection that is not writable
	due     time.Duration // earliest time at which pacing allows another write
}

// choose returns the writable connection with the most urgent head; among equally urgent
// ones the one with the smallest tag (weighted fair queuing), and among those the next
// after the last served in the order of ids. The first search starts after this node's
// own id, so that not all nodes begin with the same peer. While the pace of the link allows
// no write, connections with other hosts are left out. While the chosen one has to wait for
// others (heldUntil), nothing is written.
func (t *connSet) choose(now time.Duration) choice {
	start, _ := slices.BinarySearchFunc(t.order, t.lastServed+1, comparePeer)
	c, most, least := choice{due: never}, int64(0), 0.0
	t.waiting, t.windows = 0, 0
	for i := range t.order {
		n := t.order[(start+i)%len(t.order)]
		if !t.enter(now, n) {
			continue
		}
		if n.remote {
			t.waiting, t.windows = t.waiting+1, t.windows+n.window.bound()
		}
		if n.writing { // a shortcut writes it, and wakes the send loop if packets remain
			continue
		}
		if !n.writable && !n.shmWritable() {
			c.blocked = true
			continue
		}
		if n.full() { // acknowledgements arrive without an event for the send loop, and the receive loop then writes
			continue
		}
		u := n.queue.urgency()
		if due := t.due(n); due > now {
			c.due = min(c.due, due)
			continue
		}
		if tag := n.service.finish; c.conn == nil || u > most || u == most && tag < least {
			c.conn, most, least = n, u, tag
		}
	}
	if c.conn == nil {
		return c
	}
	if until := t.heldUntil(now, c.conn); until > 0 {
		return choice{blocked: true, due: min(c.due, until)}
	}
	t.lastServed = c.conn.peer
	return c
}

// learn adapts the window of a connection, and the pace of all, to the path, after a write. left reports whether
// the connection has more packets.
func (t *connSet) learn(now time.Duration, c *conn, p path, left bool) {
	c.window.step(now, p, t.uplink.carried())
	t.uplink.observe(now, &c.flow, p, left)
	if t.link.rate = t.uplink.limit(); t.link.rate == 0 || t.bound > 0 && t.bound < t.link.rate {
		t.link.rate = t.bound
	}
}

// due is the time at which the pace of the link allows a write to n.
func (t *connSet) due(n *conn) time.Duration {
	if !n.remote {
		return 0
	}
	return t.link.ready
}

// commitPackets is the number of packets for one write to another host.
func (t *connSet) commitPackets() int { return commitPackets(t.windows, t.link.rate, t.waiting) }
