package van

import (
	"container/list"
	"errors"
	"sync"
)

const (
	// strangerBytes is what each connection of a stranger counts for, apart from the message that it sends: more than its
	// buffer and its goroutine take.
	strangerBytes = 16 << 10
	// maxStrangerBytes bounds what all strangers together take: 4096 connections, twice the nodes of the largest cluster, or
	// 60 longest messages.
	maxStrangerBytes = 64 << 20
)

var errMakesRoom = errors.New("its connection was closed, as too many strangers have connected or send long messages")

// connections holds the connections that others have made to this node. Each belongs to a member of the cluster, which has
// one, or to a stranger: a node that has not joined yet is one, too. When strangers take too much, the one from which no
// whole message has come for longest loses its connection. So no number of them locks out a node that asks to join.
type connections struct {
	mu        sync.Mutex
	limit     int // maxStrangerBytes
	closed    bool
	members   map[int]*conn // by id
	strangers list.List     // of *conn; the first has sent no whole message for longest
	bytes     int           // that strangers take
}

// place is where connections holds a conn. Its fields are guarded by connections.mu.
type place struct {
	member   int           // id of the member that it belongs to; 0: a stranger's
	stranger *list.Element // nil: a member's, or not held
	bytes    int           // that the stranger takes
}

func (p place) held() bool { return p.stranger != nil || p.member != 0 }

// add holds a new connection, of a stranger. It returns false and closes c if the van is closing.
func (s *connections) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.Close()
		return false
	}
	s.addStranger(c)
	return true
}

func (s *connections) addStranger(c *conn) {
	c.place = place{stranger: s.strangers.PushBack(c)}
	s.take(c, strangerBytes)
}

// take counts bytes that the stranger c takes from now on.
func (s *connections) take(c *conn, bytes int) {
	c.place.bytes += bytes
	s.bytes += bytes
	for s.bytes > s.limit {
		s.evict()
	}
}

// evict closes the connection of the stranger that has sent no whole message for longest.
func (s *connections) evict() {
	if first := s.strangers.Front(); first != nil {
		c := first.Value.(*conn)
		s.forget(c)
		c.evict(errMakesRoom)
	}
}

// forget stops holding c.
func (s *connections) forget(c *conn) {
	if c.place.stranger != nil {
		s.strangers.Remove(c.place.stranger)
		s.bytes -= c.place.bytes
	}
	if id := c.place.member; id != 0 && s.members[id] == c {
		delete(s.members, id)
	}
	c.place = place{}
}

// reserve counts the memory for the message that c is sending, if c is a stranger's.
func (s *connections) reserve(c *conn, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.place.stranger != nil {
		s.take(c, bytes)
	}
}

// heard records that a message of no member has come over c, and that its memory is free again.
func (s *connections) heard(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.place.held() {
		s.forget(c)
		s.addStranger(c)
	}
}

// admit records that c belongs to a member. An earlier connection of that member is closed: it is half dead, or belongs to a
// process that had the id before.
func (s *connections) admit(c *conn, id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.members[id]
	if old == c || !c.place.held() {
		return
	}
	if old != nil {
		s.forget(old)
		old.evict(nil)
	}
	s.forget(c)
	c.place.member = id
	s.members[id] = c
}

// isMember reports whether c belongs to a member.
func (s *connections) isMember(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.place.member != 0
}

// makeRoom closes the connection of one stranger, for example because there are no descriptors left.
func (s *connections) makeRoom() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evict()
}

func (s *connections) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(c)
}

// close closes all connections, and later ones.
func (s *connections) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, c := range s.members {
		c.Close()
	}
	for e := s.strangers.Front(); e != nil; e = e.Next() {
		e.Value.(*conn).Close()
	}
}
