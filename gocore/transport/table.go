package transport

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// conn is one established connection.
type conn struct {
	peer uint32
	fd   int    // closed by the receive loop alone, while the send loop is not writing
	near *share // on this host: in the place of fd's bytes; nil where it is a TCP connection
	far  bool   // on another host, so that its packets take room on a link
	addr string // of the peer, for the log

	// The receive loop's.
	parser  parser
	adopted bool // both epolls know it
	in      inflow

	// Guarded by Transport.mu.
	queue    queue
	out      outflow
	weight   float64 // of what goes to the peer, against what goes to others
	tag      float64 // where its last write ended, in bytes by weight; see table.charge
	writable bool    // the kernel takes more, as far as is known; false until adopted
	writing  bool    // the send loop uses fd and holds packets of queue
	parted   bool    // our Goodbye is written, and nothing follows
	readDone bool    // the peer's Goodbye and end are read, ours is still to be written
	broken   error   // why a write failed
	dropped  bool    // by Drop; set before the receive loop finds it in its inbox
}

// table is the established connections.
type table struct {
	conns map[uint32]*conn
	order []*conn // by peer
	last  uint32  // the peer that was served last; at first this node's own id
	link  pace    // of all that leaves this host
	tag   float64 // where the last write began
}

func (t *table) add(c *conn) {
	if t.conns == nil {
		t.conns = make(map[uint32]*conn)
	}
	t.conns[c.peer] = c
	i, _ := slices.BinarySearchFunc(t.order, c.peer, byPeer)
	t.order = slices.Insert(t.order, i, c)
}

func (t *table) remove(c *conn) {
	delete(t.conns, c.peer)
	if i, ok := slices.BinarySearchFunc(t.order, c.peer, byPeer); ok {
		t.order = slices.Delete(t.order, i, i+1)
	}
}

func byPeer(c *conn, peer uint32) int { return cmp.Compare(c.peer, peer) }

// freed tells whether memory that was full has room again, for which epoll has no event.
func (c *conn) freed() bool {
	if c.near == nil || !c.near.out.free() {
		return false
	}
	c.writable = true
	return true
}

// never is a time that does not come.
const never = time.Duration(math.MaxInt64)

// choice is what choose found.
type choice struct {
	conn    *conn         // nil where there is nothing to write
	blocked bool          // something waits for a connection that is not writable
	due     time.Duration // when the next write may begin of what waits for its time alone
}

// choose gives the writable connection whose head is most urgent; among equals the
// one that has had least for its weight, and among those the one that follows the
// last one served in the circle of ids. The circle starts after this node's own id,
// so that not all nodes begin with the same peer. Connections whose rate, or that of
// the link that they share, is used up are left out until they are due.
func (t *table) choose(now time.Duration) choice {
	start, _ := slices.BinarySearchFunc(t.order, t.last+1, byPeer)
	c, most, least := choice{due: never}, int64(0), 0.0
	for i := range t.order {
		n := t.order[(start+i)%len(t.order)]
		if n.queue.empty() || n.writing { // by a shortcut, which wakes the send loop if something is left
			continue
		}
		if !n.writable && !n.freed() {
			c.blocked = true
			continue
		}
		u := n.queue.urgency()
		if due := t.due(n, u); due > now {
			c.due = min(c.due, due)
			continue
		}
		if tag := max(n.tag, t.tag); c.conn == nil || u > most || u == most && tag < least {
			c.conn, most, least = n, u, tag
		}
	}
	if c.conn != nil {
		t.last = c.conn.peer
	}
	return c
}

// charge notes a write to c. Who had nothing to write, or was not let, gets nothing
// for it afterwards: everyone begins where the last write began, at the earliest
// (start-time fair queuing: Goyal, Vin, Cheng, SIGCOMM 1996, equations 4 and 5).
func (t *table) charge(c *conn, bytes int) {
	t.tag = max(t.tag, c.tag)
	c.tag = t.tag + float64(bytes)/c.weight
}

// due is when the pace of n and of the link allows a write of that urgency.
func (t *table) due(n *conn, urgency int64) time.Duration {
	if !n.far {
		return 0
	}
	return max(t.link.ready, n.out.due(urgency))
}
