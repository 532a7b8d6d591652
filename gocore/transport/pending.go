package transport

import (
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	// maxPending bounds the handshakes that others have begun with us and not ended.
	maxPending = 64
	// grace is how long a handshake may take while others wait for its place.
	grace = 100 * time.Millisecond
	// maxHosts bounds the memory of whom was logged.
	maxHosts = 1024
)

// pending is the connections in the middle of a handshake, oldest first.
type pending struct {
	mu     sync.Mutex
	closed bool
	conns  []shaking
	left   chan struct{} // holds a signal after a connection has left
}

type shaking struct {
	conn  stream
	since time.Time
}

func newPending() *pending { return &pending{left: make(chan struct{}, 1)} }

// add is false, and closes c, where the transport is closing.
func (p *pending) add(c stream, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
		return false
	}
	p.conns = append(p.conns, shaking{c, now})
	return true
}

func (p *pending) remove(c stream) {
	p.mu.Lock()
	p.conns = slices.DeleteFunc(p.conns, func(s shaking) bool { return s.conn == c })
	p.mu.Unlock()
	select {
	case p.left <- struct{}{}:
	default:
	}
}

// crowded tells how long the next handshake has to wait for a place; 0 is not at
// all. Where all are taken, the oldest loses its place when its grace is over, so
// that connections which say nothing cannot keep the others out.
func (p *pending) crowded(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) < maxPending {
		return 0
	}
	oldest := p.conns[0]
	if wait := grace - now.Sub(oldest.since); wait > 0 {
		return wait
	}
	oldest.conn.Close() // its goroutine goes on to end by itself
	p.conns = slices.Delete(p.conns, 0, 1)
	return 0
}

// close ends all handshakes, and those to come.
func (p *pending) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, s := range p.conns {
		s.conn.Close()
	}
}

func (p *pending) fds() (fds []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.conns {
		if fd, err := descriptor(s.conn); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds
}

// stream is what a handshake runs over.
type stream interface {
	net.Conn
	syscall.Conn
}

// descriptor is the file descriptor of a net connection or listener.
func descriptor(c syscall.Conn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	err = raw.Control(func(p uintptr) { fd = int(p) })
	return fd, err
}

// hosts remembers whose bad handshakes were logged already.
type hosts struct {
	mu   sync.Mutex
	seen map[string]bool
}

// first is true once per host of addr; beyond maxHosts never.
func (h *hosts) first(addr net.Addr) bool {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil { // a Unix socket's
		host = "this host"
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen[host] || len(h.seen) == maxHosts {
		return false
	}
	if h.seen == nil {
		h.seen = make(map[string]bool)
	}
	h.seen[host] = true
	return true
}
