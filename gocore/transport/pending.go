package transport

import (
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	// maxPending bounds the unfinished handshakes that peers have begun.
	maxPending = 64
	// grace is how long a handshake may take while others wait for a place.
	grace = 100 * time.Millisecond
	// maxHosts bounds the number of hosts whose failed handshakes are logged.
	maxHosts = 1024
)

// pending holds the connections with unfinished handshakes, oldest first.
type pending struct {
	mu     sync.Mutex
	closed bool
	conns  []handshaking
	freed  chan struct{} // holds a signal after a place was freed
}

type handshaking struct {
	conn  stream
	since time.Time
}

func newPending() *pending { return &pending{freed: make(chan struct{}, 1)} }

// add returns false and closes c if the transport is closing.
func (p *pending) add(c stream, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
		return false
	}
	p.conns = append(p.conns, handshaking{c, now})
	return true
}

func (p *pending) remove(c stream) {
	p.mu.Lock()
	p.conns = slices.DeleteFunc(p.conns, func(s handshaking) bool { return s.conn == c })
	p.mu.Unlock()
	select {
	case p.freed <- struct{}{}:
	default:
	}
}

// waitForPlace returns how long the next handshake must wait for a place, 0 if there is
// one. If all are taken, the oldest handshake is closed after its grace time, so that
// silent connections cannot lock out others.
func (p *pending) waitForPlace(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) < maxPending {
		return 0
	}
	oldest := p.conns[0]
	if wait := grace - now.Sub(oldest.since); wait > 0 {
		return wait
	}
	oldest.conn.Close() // its goroutine then ends by itself
	p.conns = slices.Delete(p.conns, 0, 1)
	return 0
}

// close ends all handshakes, and later ones.
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

// stream is a connection that can carry a handshake.
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

// hosts holds the hosts whose failed handshakes were logged.
type hosts struct {
	mu   sync.Mutex
	seen map[string]bool
}

// isFirst returns true once for each host, and never for hosts beyond maxHosts.
func (h *hosts) isFirst(addr net.Addr) bool {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil { // a Unix socket has no host
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
