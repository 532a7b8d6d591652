package transport

import (
	"fmt"
	"sync/atomic"
	"time"

	"fptps/gocore/wire"
)

// A connection that is made again when it breaks (mend.go) keeps the packets that it has written until the peer has acknowledged
// them: after a break they return to the queue.
//
// Each side counts the packets that have arrived whole, and every header says how many there are so far. So a sum acknowledges
// the contributions that it is made of, and a caller's array is kept no longer than until its sum is there. A packet that only
// acknowledges (wire.Ack) is needed where nothing else is sent back.
const (
	// ackPackets is the number of packets after which the peer gets an acknowledgement, ackTime after which time. If the loop
	// would sleep, the peer gets it at once.
	ackPackets = 256
	ackTime    = 2 * time.Millisecond
	// keptPackets bounds what one connection keeps; more is not written until the peer has acknowledged some. One write
	// may exceed it.
	keptPackets = 4096
)

// session is what makes a connection outlive its socket.
type session struct {
	dials       bool          // this node dials the peer when the connection breaks, not the peer this node
	address     string        // of the peer's listener; empty: not known
	incarnation uint64        // of the peer
	received    atomic.Uint32 // packets that have arrived, modulo 2^32; counted by the receive loop

	// Used by the receive loop alone.
	acked  uint32        // the last acknowledgement of the peer
	pushed uint32        // received when acknowledgements were last considered
	series time.Duration // time of the first of the breaks that follow each other
	moved  uint32        // packets sent and received by then
	mended time.Duration // when it was last made again
	logged bool          // that it was made again

	// Guarded by Transport.mu.
	number  uint16 // of the latest socket, also of one that failed: each has the next number
	next    int    // a new socket for the receive loop to take over; -1: none
	severed bool   // the peer knows that the socket is broken
	failed  error  // why it could not be made again
	told    uint32 // the number of received packets that the peer has been told
	kept    kept
}

func newSession(dials bool, address string, incarnation uint64) *session {
	return &session{dials: dials, address: address, incarnation: incarnation, next: -1}
}

// counts reports whether packets of a kind are counted, and sent again when they are lost.
func counts(k wire.Kind) bool { return k != wire.Ack && k != wire.Probe }

// keeps reports whether p, which was written, is kept until the peer acknowledges it.
func (c *conn) keeps(p packet) bool { return c.session != nil && counts(p.run.Header.Kind) }

// full reports whether so much is kept that nothing may be written now: but what was begun, and acknowledgements, without which two
// nodes could wait for each other. A peer that has said goodbye acknowledges nothing any more. mu is held; the queue is not empty.
func (c *conn) full() bool {
	return c.session != nil && c.session.kept.len() >= keptPackets && len(c.queue.bound) == 0 && c.queue.heap[0].Header.Kind != wire.Ack && !c.readDone
}

// noteWritten keeps what was written of a batch, and reports whether the peer has acknowledged some of it already. mu is held.
func (s *session) noteWritten(b *batch) (acked bool) {
	for i, p := range b.packets[:b.done] {
		if p.run.Header.Flags&wire.FlagLearningRate == 0 {
			s.told = b.stamps.received
			if i == 0 && b.skip > 0 {
				s.told = b.begun.received
			}
		}
		if counts(p.run.Header.Kind) {
			s.kept.push(p)
		}
	}
	return s.kept.acknowledged()
}

// mustAck reports whether a packet is needed only to acknowledge: packets have arrived, and no packet is queued that says so.
// mu is held.
func (c *conn) mustAck() bool {
	s := c.session
	if s == nil || s.told == s.received.Load() || c.fd < 0 {
		return false
	}
	return c.queue.empty() || c.full() || len(c.queue.bound) == 0 && c.queue.heap[0].Header.Flags&wire.FlagLearningRate != 0
}

// restore returns everything that the peer has not acknowledged to the queue. mu is held, and no thread writes.
func (c *conn) restore() {
	q, k := &c.queue, &c.session.kept
	for i := len(q.bound) - 1; i >= 0; i-- {
		q.unpop(q.bound[i])
	}
	clear(q.bound)
	q.bound, q.sent, q.begun = q.bound[:0], 0, stamps{}
	for i := len(k.packets) - 1; i >= k.first; i-- {
		p := k.packets[i]
		c.goodbyeSent = c.goodbyeSent && p.run.Header.Kind != wire.Goodbye
		q.unpop(p)
	}
	k.clear()
}

// releaseKept calls release with the owners of what is kept of a connection that has ended. No loop uses it any more.
func (s *session) releaseKept(release func(Releaser)) {
	if s == nil {
		return
	}
	for _, p := range s.kept.packets[s.kept.first:] {
		if p.last() { // else the run is in the queue
			release(p.run.Owner)
		}
	}
	s.kept.clear()
}

// kept holds the packets that were written, but that the peer has not acknowledged, in their order. It is pure.
type kept struct {
	packets []packet // from first on
	first   int
	base    uint32 // packets before them, modulo 2^32
	seen    uint32 // packets that the peer has acknowledged; at most 2^31 more than base
}

func (k *kept) len() int { return len(k.packets) - k.first }

func (k *kept) push(p packet) {
	if k.first > len(k.packets)/2 && len(k.packets) == cap(k.packets) {
		n := copy(k.packets, k.packets[k.first:])
		clear(k.packets[n:])
		k.packets, k.first = k.packets[:n], 0
	}
	k.packets = append(k.packets, p)
}

// acknowledge notes that the peer has received so many packets, modulo 2^32. writing is the number of packets that
// may have reached it, but are not in k yet.
func (k *kept) acknowledge(received uint32, writing int) error {
	if most := k.len() + writing; uint64(received-k.base) > uint64(most) {
		return fmt.Errorf("it acknowledges %d packets, %d to %d were sent", received, k.base, k.base+uint32(most))
	}
	k.seen = received
	return nil
}

// acknowledged reports whether pop has something to take out.
func (k *kept) acknowledged() bool { return k.len() > 0 && k.seen-k.base-1 < 1<<31 }

// pop takes out the next packet that was acknowledged.
func (k *kept) pop() (p packet, ok bool) {
	if !k.acknowledged() {
		return packet{}, false
	}
	p = k.packets[k.first]
	k.packets[k.first] = packet{}
	k.first++
	k.base++
	if k.first == len(k.packets) {
		k.packets, k.first = k.packets[:0], 0
	}
	return p, true
}

// clear empties k. The next packets get the numbers of those that were in it.
func (k *kept) clear() {
	clear(k.packets)
	k.packets, k.first = k.packets[:0], 0
}
