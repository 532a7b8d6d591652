package transport

import (
	"cmp"
	"slices"
	"time"

	"fptps/gocore/wire"
)

// A node learns what its own link sends: where packets to all its peers have waited
// for a while, the link was never idle, and the bytes that were acknowledged meanwhile are its rate (capacity.go).
//
// Windows keep the queue before a link short, but not empty: an urgent packet waits there for 2 ms
// and more. And they do not treat all flows alike: a sum waits for the worker that is behind. So a node that knows its
// link's rate stays a little below. Then there is no queue, windows are hardly ever full, and the order of the heaps
// and the weights (weights.go) alone decide. Now and then the node tries whether the link sends more. Nothing is limited where the
// plan gives peers unequal parts: flows wait for each other then, by their weights, and the queue keeps the link busy meanwhile.
const (
	// A queue of standTime is never empty between two writes.
	standTime = 500 * time.Microsecond
	// cruiseTime is the time until it tries whether the link carries more. It waits for a queue for tryTime and tryBytes
	// then. Only time with packets to send counts.
	cruiseTime = 750 * time.Millisecond
	tryTime    = 150 * time.Millisecond
	tryBytes   = 16 * burstBytes
	// burstBytes may pass a link at once after a pause, or be on their way when the node begins to try.
	burstBytes = 16 * wire.PacketBytes
	// The parts of the learned rate: to have no queue before a single peer, and before several, whose packets wait
	// for each other's elsewhere too; to empty a queue, and to try.
	singleGain = 0.98
	cruiseGain = 0.99
	drainGain  = 0.9
	tryGain    = 1.1
	// If triedGain times the rate has passed without a queue, not counting a burst, the rate grows by raiseGain. That may be too much:
	// then windows limit until new measurements agree.
	triedGain = 1.03
	raiseGain = 2
	// measureEach is the least of a measurement for each flow. Acknowledgements are read from one flow after the other.
	measureEach = 16 * wire.PacketBytes
	// A flow is observed once a round trip; if that is long, another flow or the same one is within everyTime.
	everyTime = 40 * time.Millisecond
	// recentTime is how long a connection counts as active after a write that left packets.
	recentTime = 50 * time.Millisecond
)

// flow is what uplink knows of a connection with another host.
type flow struct {
	at    time.Duration // of the last observation
	acked uint64        // bytes acknowledged then
	wait  time.Duration // of recent packets, in this direction, less what packets of all hosts wait before the peer's link
	way   time.Duration // the whole wait
}

// uplink is pure: the times are arguments.
type uplink struct {
	capacity        // of the link, to send
	acked    uint64 // bytes that all peers have acknowledged
	active   []*flow
	weighted bool          // the plan gives peers unequal parts
	drained  time.Duration // when the queue of the last measurement is gone
	last     time.Duration // of all observations
	elapsed  time.Duration // since it began to cruise or to try, while there were packets to send
	several  time.Duration // until when packets to another peer may begin to wait again

	trying bool          // whether the link carries more
	tried  uint64        // bytes acknowledged when it began to try
	spell  time.Duration // since when there were always packets to send
	mark   uint64        // bytes acknowledged then, or later when it began to try
}

// limit is what may be sent, in bytes per second; 0: no limit.
func (u *uplink) limit() float64 {
	switch {
	case u.weighted && len(u.active) > 1:
		return 0
	case u.trying:
		return u.known * tryGain
	case u.last < u.drained: // nothing is measured meanwhile
		return u.known * drainGain
	case len(u.active) == 1:
		return u.known * singleGain
	}
	return u.known * cruiseGain
}

// observe is called after a write of a flow, with what is known of its path. waiting reports whether packets are left to send.
func (u *uplink) observe(now time.Duration, f *flow, p path, waiting bool) {
	u.acked += p.acked - f.acked
	f.at, f.acked, f.wait, f.way = now, p.acked, p.queued(), p.queued()+p.there
	u.active = slices.DeleteFunc(u.active, func(g *flow) bool { return g == f || now-g.at > recentTime })
	if waiting {
		u.active = append(u.active, f)
		u.elapsed += min(now-u.last, recentTime)
	}
	u.last = now
	if len(u.active) == 0 {
		u.spell, u.mark = now, u.acked
	}
	own := 0.0 // what limits itself is not the link's
	if !u.trying {
		own = u.limit()
	}
	if len(u.active) > 1 {
		u.several = now + carryFor
	}
	stands := u.mainly(now, u.wait(), u.shortest())
	if now < u.drained || len(u.active) == 1 && now < u.several { // the queue may be anywhere on the way to that peer
		stands = 0
	}
	measured := u.capacity.observe(now, sight{u.acked, stands, min(2*p.mean, everyTime), uint64(measureEach * len(u.active)), own})
	switch {
	case u.known == 0:
		u.trying = false
	case measured:
		u.trying, u.elapsed, u.measuring = false, 0, false
		u.drained = now + time.Duration(float64(stands)/(1-drainGain))
	case !u.trying && u.elapsed >= cruiseTime:
		u.try(now)
	case u.trying && stands < standTime:
		u.tryOn(now)
	}
}

// try sends more than the link is known to carry.
func (u *uplink) try(now time.Duration) {
	u.trying, u.elapsed, u.tried, u.spell, u.mark, u.measuring = true, 0, u.acked, now, u.acked, false
}

// tryOn raises the rate if more has passed without a pause, and tries again. It ends the attempt if there is too little to send.
func (u *uplink) tryOn(now time.Duration) {
	bytes, long := float64(u.acked-u.mark)-burstBytes, u.elapsed >= tryTime && u.acked-u.tried >= tryBytes
	switch {
	case bytes >= tryBytes && bytes >= triedGain*u.known*(now-u.spell).Seconds():
		u.raise(raiseGain)
		u.try(now)
	case long:
		u.trying, u.elapsed = false, 0
	}
}

// wait is how much longer the packets of all flows wait than those of other hosts to the same peers, at least: then the queue is
// before this host's link. It is 0 without packets to send.
func (u *uplink) wait() time.Duration {
	if len(u.active) == 0 {
		return 0
	}
	return slices.MinFunc(u.active, func(a, b *flow) int { return cmp.Compare(a.wait, b.wait) }).wait
}

// shortest is the least time that packets to any peer wait on their way: they do not wait longer before this host's link. It is 0
// without packets to send, and while something else than the link limits.
func (u *uplink) shortest() time.Duration {
	if len(u.active) == 0 || !u.limits() {
		return 0
	}
	return slices.MinFunc(u.active, func(a, b *flow) int { return cmp.Compare(a.way, b.way) }).way
}
