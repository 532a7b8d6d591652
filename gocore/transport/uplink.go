package transport

import (
	"cmp"
	"slices"
	"time"

	"fptps/gocore/wire"
)

// A node learns what its own link sends: where packets to all its peers have waited
// for a while, the link was never idle, and the bytes that were acknowledged meanwhile are its rate.
//
// Windows keep the queue before a link short, but not empty: an urgent packet waits there for 2 ms
// and more. A node with a single peer that knows its link's rate stays a little below, so that there is no
// queue at all, and now and then tries whether the link sends more. With several peers nothing is limited: nodes that sum for
// each other wait for each other's packets, and the queue keeps their links busy meanwhile. (With a
// limit, four workers and a server take 10% longer.)
const (
	// A queue of standTime is never empty between two writes.
	standTime = 500 * time.Microsecond
	// measureTime, measureBytes and, for each connection, measureEach are the least of a measurement.
	measureTime  = 30 * time.Millisecond
	measureBytes = 64 * wire.PacketBytes
	measureEach  = 16 * wire.PacketBytes
	// cruiseTime is the time until it tries whether the link carries more, and tryTime how long
	// it waits for a queue then. Only time with packets to send counts.
	cruiseTime = time.Second
	tryTime    = 50 * time.Millisecond
	// The parts of the learned rate: to have no queue, to empty one, and to try.
	cruiseGain = 0.98
	drainGain  = 0.9
	tryGain    = 1.1
	// Without a queue in tryTime the rate grows by raiseGain.
	raiseGain = 1.25
	// A rate is learned if the last measurements, kept in number, differ by no more.
	kept      = 3
	agreement = 0.96
	// If the limit itself, or nearly as much, was measured, the link is not what limits.
	limitedGain = 0.97
	// recentTime is how long a connection counts as active after a write that left packets.
	recentTime = 50 * time.Millisecond
)

// flow is what uplink knows of a connection with another host.
type flow struct {
	at    time.Duration // of the last observation
	acked uint64        // bytes acknowledged then
	wait  time.Duration // of recent packets, in this direction, less what packets of all hosts wait before the peer's link
	way   time.Duration // the whole wait

	measurement int // that the mark belongs to
	markAt      time.Duration
	markAcked   uint64
}

// uplink is pure: the times are arguments.
type uplink struct {
	active  []*flow
	rates   []float64     // the last measurements, bytes per second
	rate    float64       // learned, or higher while it tries; 0: not known
	trying  bool          // whether the link carries more
	drained time.Duration // when the queue of the last measurement is gone
	last    time.Duration // of all observations
	elapsed time.Duration // since it began to cruise or to try, while there were packets to send

	measurement int // number of the present one
	begun       time.Duration
}

// limit is what may be sent, in bytes per second; 0: no limit.
func (u *uplink) limit() float64 {
	switch {
	case len(u.active) != 1:
		return 0
	case u.trying:
		return u.rate * tryGain
	case u.last < u.drained:
		return u.rate * drainGain
	}
	return u.rate * cruiseGain
}

// learned is the rate that was measured, in bytes per second; 0: not known.
func (u *uplink) learned() float64 {
	if u.rate == 0 {
		return 0
	}
	return slices.Max(u.rates)
}

// observe is called after a write of a flow whose fields acked and wait are new. waiting
// reports whether packets are left to send.
func (u *uplink) observe(now time.Duration, f *flow, waiting bool) {
	f.at = now
	u.active = slices.DeleteFunc(u.active, func(g *flow) bool { return g == f || now-g.at > recentTime })
	if waiting {
		u.active = append(u.active, f)
		u.elapsed += min(now-u.last, recentTime)
	}
	u.last = now
	if f.measurement != u.measurement {
		f.measurement, f.markAt, f.markAcked = u.measurement, now, f.acked
	}
	stands, limited := u.wait() >= standTime, true
	if !stands {
		u.restart(now)
	} else if rate, ok := u.measured(now); ok {
		limit := u.limit()
		if limited = limit == 0 || rate < limit*limitedGain; limited {
			u.settle(now, rate)
			return
		}
		u.restart(now)
	}
	switch {
	case u.limit() == 0:
	case !u.trying && u.elapsed >= cruiseTime:
		u.trying, u.elapsed = true, 0
	case u.trying && u.elapsed >= tryTime && !(stands && limited):
		u.rate, u.elapsed = u.rate*raiseGain, 0
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
// without packets to send.
func (u *uplink) shortest() time.Duration {
	if len(u.active) == 0 {
		return 0
	}
	return slices.MinFunc(u.active, func(a, b *flow) int { return cmp.Compare(a.way, b.way) }).way
}

// restart begins another measurement.
func (u *uplink) restart(now time.Duration) {
	u.measurement++
	u.begun = now
}

// measured returns what was acknowledged per second, if the queue has stood long enough. Connections are
// observed at different times, so each counts over the time between its own observations, unless
// that is short.
func (u *uplink) measured(now time.Duration) (rate float64, ok bool) {
	whole := now - u.begun
	if whole < measureTime {
		return 0, false
	}
	bytes := uint64(0)
	for _, f := range u.active {
		if f.measurement != u.measurement {
			continue
		}
		between := f.at - f.markAt
		if between < whole/2 {
			between = whole
		}
		bytes += f.acked - f.markAcked
		rate += float64(f.acked-f.markAcked) / between.Seconds()
	}
	return rate, bytes >= uint64(max(measureBytes, measureEach*len(u.active)))
}

// settle takes the largest of the last measurements, if they agree. They do not where something
// else than the link limits: the processor, or the links of several peers.
func (u *uplink) settle(now time.Duration, rate float64) {
	u.rates = append(u.rates, rate)
	u.rates = u.rates[max(0, len(u.rates)-kept):]
	u.trying, u.elapsed, u.rate = false, 0, slices.Max(u.rates)
	if len(u.rates) < kept || slices.Min(u.rates) < agreement*u.rate {
		u.rate = 0
	}
	u.drained = now + time.Duration(float64(u.wait())/(1-drainGain))
	u.restart(now)
}
