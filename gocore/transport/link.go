package transport

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Link is the state of the connections with a node, for a log.
type Link struct {
	Peer        uint32
	Connected   bool // there is a connection; if it is broken, it will be made again
	Broken      bool
	Shared      bool          // it is shared memory
	Queued      int           // messages that wait in this process
	Unsent      int           // bytes that wait in the kernel
	Unacked     int           // segments that were sent and not acknowledged
	Retransmits int           // of the oldest of them
	Silence     time.Duration // since data came from the peer
	RoundTrip   time.Duration
}

// Waits reports whether something is on its way to the peer.
func (l Link) Waits() bool { return l.Queued+l.Unsent+l.Unacked > 0 || l.Broken }

func (l Link) String() string {
	switch {
	case !l.Connected:
		return "no connection"
	case l.Broken:
		return fmt.Sprintf("the connection broke and is not made again yet, %d messages queued", l.Queued)
	case l.Shared:
		return fmt.Sprintf("shared memory, %d messages queued", l.Queued)
	}
	parts := []string{fmt.Sprintf("TCP, %d messages queued", l.Queued)}
	if l.Unsent > 0 {
		parts = append(parts, fmt.Sprintf("%d bytes not sent", l.Unsent))
	}
	if l.Unacked > 0 {
		parts = append(parts, fmt.Sprintf("%d segments not acknowledged", l.Unacked))
	}
	if l.Retransmits > 0 {
		parts = append(parts, fmt.Sprintf("%d retransmissions without an answer", l.Retransmits))
	}
	parts = append(parts, "last data from there "+l.Silence.Round(100*time.Millisecond).String()+" ago", "round trip "+l.RoundTrip.Round(10*time.Microsecond).String())
	return strings.Join(parts, ", ")
}

// Link returns the state of the connections with a node, of all lanes together.
func (t *Transport) Link(peer uint32) Link {
	all := t.laneLink(peer)
	for _, lane := range t.others() {
		l := lane.laneLink(peer)
		all.Broken = all.Broken || l.Broken
		all.Queued, all.Unsent, all.Unacked = all.Queued+l.Queued, all.Unsent+l.Unsent, all.Unacked+l.Unacked
		all.Retransmits = max(all.Retransmits, l.Retransmits)
		all.Silence = min(all.Silence, l.Silence)
	}
	return all
}

// Peers lists the nodes with which there is a connection.
func (t *Transport) Peers() (peers []uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.mu.conns.order {
		peers = append(peers, c.peer)
	}
	return peers
}

func (t *Transport) laneLink(peer uint32) Link {
	l, c := t.holdLink(peer)
	if c == nil {
		return l
	}
	var info unix.TCPInfo
	if _, ok := readPath(c.fd, &info); ok {
		l.Unsent, l.Unacked, l.Retransmits = int(info.Notsent_bytes), int(info.Unacked), int(info.Retransmits)
		l.Silence, l.RoundTrip = time.Duration(info.Last_data_recv)*time.Millisecond, time.Duration(info.Rtt)*time.Microsecond
	}
	t.wake(t.releaseLink(c))
	return l
}

// holdLink owns the connection as a write of a caller would, so that its socket stays open without the lock; nil if there is no
// socket, or another thread writes this moment.
func (t *Transport) holdLink(peer uint32) (Link, *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.mu.conns.byPeer[peer]
	if c == nil {
		return Link{Peer: peer}, nil
	}
	l := Link{Peer: peer, Connected: true, Broken: c.broken != nil || c.shm == nil && c.fd < 0, Shared: c.shm != nil, Queued: len(c.queue.heap) + len(c.queue.bound)}
	if l.Broken || l.Shared || c.writing || t.mu.shortcut || t.mu.stopped {
		return l, nil
	}
	c.writing, t.mu.shortcut = true, true
	return l, c
}

// releaseLink gives the connection back, and returns the poller to wake.
func (t *Transport) releaseLink(c *conn) (wake *poller) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.writing, t.mu.shortcut = false, false
	t.writeEnded.Broadcast()
	if !c.queue.empty() {
		return t.wakeSender()
	}
	return nil
}
