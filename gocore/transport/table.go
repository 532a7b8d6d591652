package transport

import (
	"cmp"
	"slices"
)

// conn is one established connection.
type conn struct {
	peer uint32
	fd   int    // closed by the receive loop alone, while the send loop is not writing
	addr string // of the peer, for the log

	// The receive loop's.
	parser  parser
	adopted bool // both epolls know it

	// Guarded by Transport.mu.
	queue    queue
	writable bool  // the kernel takes more, as far as is known; false until adopted
	writing  bool  // the send loop uses fd and holds packets of queue
	parted   bool  // our Goodbye is written, and nothing follows
	readDone bool  // the peer's Goodbye and end are read, ours is still to be written
	broken   error // why a write failed
}

// table is the established connections.
type table struct {
	conns map[uint32]*conn
	order []*conn // by peer
	last  uint32  // the peer that was served last; at first this node's own id
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

// choose gives the writable connection whose head is most urgent; among equals the
// one that follows the last one served in the circle of ids. The circle starts
// after this node's own id, so that not all nodes begin with the same peer. It is
// nil where there is nothing to write; blocked tells that something waits for a
// connection that is not writable.
func (t *table) choose() (best *conn, blocked bool) {
	start, _ := slices.BinarySearchFunc(t.order, t.last+1, byPeer)
	var most int64
	for i := range t.order {
		c := t.order[(start+i)%len(t.order)]
		if c.queue.empty() {
			continue
		}
		if !c.writable {
			blocked = true
			continue
		}
		if u := c.queue.urgency(); best == nil || u > most {
			best, most = c, u
		}
	}
	if best != nil {
		t.last = best.peer
	}
	return best, blocked
}
