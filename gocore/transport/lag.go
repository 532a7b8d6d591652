package transport

import (
	"math"
	"sync/atomic"
	"time"

	"fptps/gocore/wire"
)

// A round trip waits in the queues of both directions, so that it does not show which of the two links is full. To learn
// the rate of its own link (uplink.go), a node has to know how long its packets wait in one direction. So each
// header to another host carries the time at which it was written, by the sender's clock. The receiver
// compares it with its own clock, and reports in the headers of the other direction how long
// packets have waited on their way.

const (
	// Clocks of hosts differ, and drift apart by up to 20 us a second. So only differences from the
	// shortest way count, which is that of the last leastTime to twice that.
	leastTime = 30 * time.Second
	// freshTime is how long a report is used. With 16 hosts at 100 Mbit/s a connection carries a packet every 20 ms.
	freshTime = 100 * time.Millisecond
	// A host counts as one that sends for sendingTime after a packet, and on a slow link for the time of sendingPackets, at
	// most freshTime.
	sendingTime    = 30 * time.Millisecond
	sendingPackets = 8
	// compareTime is the least time between two comparisons of all hosts.
	compareTime = time.Millisecond
	queueUnit   = 10 * time.Microsecond // of wire.Header.Queue
	// longestWait bounds what a report says: a peer may send anything.
	longestWait = time.Second
	// Where several hosts send, the shortest wait of recentPackets counts, as far as they came in the last recentWaits. In a burst,
	// such as of the sums for all workers, each packet but the first waits for the others; only a queue that stands delays all of
	// them (CoDel: Nichols and Jacobson, ACM Queue 2012).
	recentPackets = 16
	recentWaits   = 250 * time.Millisecond
	// waitGain is the weight of one packet in the mean, which counts where one host sends, as of TCP's round trips.
	waitGain = 8
)

// lag measures how much longer than at best the packets of one connection are on their way
// here. The receive loop alone uses it.
type lag struct {
	known  bool
	offset uint32   // the first packet's arrival, by this clock, less its start, by the peer's; in us, modulo 2^32
	least  [2]int32 // the shortest way less the first, in us: of the present interval, and of the last
	began  time.Duration
	recent [recentPackets]waited // the last packets
	next   int                   // in recent
	mean   int32                 // us
}

// waited is the wait of one packet.
type waited struct {
	us int32
	at time.Duration
}

// arrived returns how long packets have recently waited at least, and in the mean.
func (l *lag) arrived(now time.Duration, sent uint32) (least, mean time.Duration) {
	way := clock(now) - sent - l.offset
	if !l.known {
		*l = lag{known: true, offset: way, began: now}
		return 0, 0
	}
	if now-l.began >= leastTime {
		l.least, l.began = [2]int32{int32(way), l.least[0]}, now
	}
	l.least[0] = min(l.least[0], int32(way))
	wait := int32(way) - min(l.least[0], l.least[1])
	wait = min(max(0, wait), int32(longestWait/time.Microsecond)) // below 0 only by an overflow, with a peer's nonsense
	l.recent[l.next] = waited{wait, now}
	l.next = (l.next + 1) % recentPackets
	l.mean += (wait - l.mean) / waitGain
	for _, w := range l.recent {
		if now-w.at < recentWaits {
			wait = min(wait, w.us)
		}
	}
	return time.Duration(wait) * time.Microsecond, time.Duration(l.mean) * time.Microsecond
}

// report is a wait that one thread writes and others read: the us plus 1 in the lower half, the time in the upper.
type report struct{ word atomic.Uint64 }

func (r *report) set(now, wait time.Duration) {
	wait = min(wait, longestWait)
	r.word.Store(uint64(clock(now))<<32 | uint64(wait/time.Microsecond+1))
}

// get returns a wait that is not older than age.
func (r *report) get(now, age time.Duration) (wait time.Duration, ok bool) {
	word := r.word.Load()
	if word == 0 || clock(now)-uint32(word>>32) > uint32(age/time.Microsecond) {
		return 0, false
	}
	return time.Duration(uint32(word)-1) * time.Microsecond, true
}

// clock is a time in us, modulo 2^32.
func clock(now time.Duration) uint32 { return uint32(now / time.Microsecond) }

// stamps are the fields of a header that say when it is written and what has arrived by then.
type stamps struct {
	sent, waited  uint32 // by these and the next two hosts observe the path between them
	queue, uplink uint16
	received      uint32 // see session.go
}

// stamps returns the stamps of packets that are written now. queue is the least time that packets to this host wait, and uplink
// the least that its own wait.
func (c *conn) stamps(now, queue, uplink time.Duration) stamps {
	s := stamps{sent: max(1, clock(now)), queue: uint16(queue / queueUnit), uplink: uint16(min(uplink/queueUnit, math.MaxUint16))}
	if wait, ok := c.waits.get(now, freshTime); ok {
		s.waited = uint32(wait/time.Microsecond) + 1
	}
	return s
}

// put sets the fields.
func (s stamps) put(h *wire.Header) {
	h.Sent, h.Waited, h.Queue, h.Uplink, h.Received = s.sent, s.waited, s.queue, s.uplink, s.received
}

// observe takes the fields of a header that has just arrived from another host.
func (r *receiver) observe(c *conn, now time.Duration, h *wire.Header) {
	least, mean := c.lag.arrived(now, h.Sent)
	c.least.set(now, least)
	if r.senders == 1 || h.Kind == wire.Probe { // there are no bursts
		c.waits.set(now, mean)
	} else {
		c.waits.set(now, least)
	}
	if h.Waited != 0 {
		c.waited.set(now, time.Duration(h.Waited-1)*time.Microsecond)
	}
	c.queued.set(now, time.Duration(h.Queue)*queueUnit)
	c.uplink.set(now, time.Duration(h.Uplink)*queueUnit)
	r.linked += wire.HeaderBytes + uint64(h.WireLen)
	c.linked += wire.HeaderBytes + uint64(h.WireLen)
	r.compare(now, c, h.Kind == wire.Probe)
}

// compare learns, now and then, from what has arrived over c: what this host's link carries, and the path of c.
func (r *receiver) compare(now time.Duration, c *conn, probe bool) {
	if now-r.compared >= compareTime {
		r.compared = now
		queue, own := r.queue(now)
		r.t.queue.set(now, queue)
		r.waiting = r.onlyWaiting(now)
		r.t.mu.Lock()
		if !probe { // a node that trains already sends what it has, not as much as it can
			r.t.mu.down.endProbe()
		}
		r.t.mu.down.observe(now, sight{passed: r.linked, wait: r.t.mu.down.mainly(now, own, queue)})
		r.rate = r.t.mu.down.spans[0]
		r.t.mu.Unlock()
	}
	if now-c.compared >= compareTime {
		c.compared = now
		wait := r.onPath(now, c)
		r.t.mu.Lock()
		c.path.observe(now, sight{passed: c.linked, wait: wait})
		r.t.mu.Unlock()
	}
}

// sending is how long a host counts as one that sends.
func (r *receiver) sending() time.Duration {
	if r.rate == 0 {
		return sendingTime
	}
	return min(freshTime, max(sendingTime, timeFor(sendingPackets*wire.PacketBytes, r.rate)))
}

// queue is the time that packets wait before the link of this host: the shortest wait among
// all hosts that send at present. own leaves out what each of them says its packets wait at least, wherever they go. With a single
// sender both are 0, because the queue may be before that sender's link, or on the path.
func (r *receiver) queue(now time.Duration) (queue, own time.Duration) {
	r.senders = 0
	queue, own = math.MaxUint16*queueUnit, longestWait
	sending := r.sending()
	for _, c := range r.conns {
		wait, ok := c.waits.get(now, sending)
		if !ok || !c.remote {
			continue
		}
		uplink, _ := c.uplink.get(now, freshTime)
		r.senders, queue, own = r.senders+1, min(queue, wait), min(own, wait-uplink)
	}
	if r.senders < 2 {
		return 0, 0
	}
	return queue, own
}
