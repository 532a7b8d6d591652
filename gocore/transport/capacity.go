package transport

import (
	"slices"
	"time"

	"fptps/gocore/wire"
)

// Capacity is what a node has found out about itself, its link and the paths to it, in bytes per second of TCP payload; 0: nothing.
type Capacity struct {
	Up, Down float64 // what it carries in each direction
	// The most that it has sent lately, whatever the limit was. (What has come may be read late, and then faster than the link.)
	Carried float64
	// What the processor moves in each direction, if it is slower than the link.
	Processor float64

	Paths map[uint32]float64 // from peers, as far as they carry less than the links at both ends; see paths.go
}

const (
	// A capacity is measured while a queue stands before the link, over capacityTime, capacityWaits times what packets wait (of which
	// longWait counts) and capacityBytes at least, or capacityEnough. Over long ways packets come in clumps; before a link that has
	// become slower they wait long.
	capacityTime   = 60 * time.Millisecond
	capacityWaits  = 4
	longWait       = 100 * time.Millisecond
	capacityBytes  = 24 * wire.PacketBytes
	capacityEnough = 256 * wire.PacketBytes
	// A measurement ends when nothing was observed for pauseTime, for the time of pausePackets, and for longer than the last packets
	// had waited: there may have been no queue meanwhile.
	pauseTime    = 5 * time.Millisecond
	pausePackets = 4 * wire.PacketBytes
	// It is known if fewest of the last measurements, of which there are most, differ by no more than alike.
	fewest = 3
	most   = 8
	// Shares of the summing follow what they agree on for sureTime.
	sureTime = 4 * capacityTime
	alike    = 0.95
	// If the latest agree on less than fallenGain of it, those before them do not count.
	fallenGain = 0.8
	// A link has carried what it has in each of a few spans of carryTime: it may send some 100 KB at once after a pause,
	// and a process that stood still reads what has come meanwhile at once. It is remembered for carryFor to twice that.
	carryTime = 100 * time.Millisecond
	probeSpan = 20 * time.Millisecond // the same during a probe
	carryFor  = 10 * time.Second
	// A link that carries more than risenGain times its capacity has become faster.
	risenGain = 1.25
	// A first capacity cannot be less than carriedGain of what it has carried lately.
	carriedGain = 0.9
	// While a link sends less than idleGain of what it has sent lately, something else is the limit.
	idleGain = 0.7
	// A measurement of ownGain of the sender's own limit shows that limit, not the link's. Measurements vary by less than the rest: if those
	// that are a little lower counted, the capacity would fall and fall.
	ownGain = 0.9
)

// capacity estimates what a link, or a path, carries in one direction. It is pure: the times are arguments. While a queue stands
// before the link, what passes is its capacity. Without a queue something else is the limit, and nothing is learned but
// that the link carries at least that much.
type capacity struct {
	last  []float64 // the last measurements, in bytes per second; the latest last
	known float64   // that some of them have agreed on, or the fit of a probe has found; 0: none
	sure  float64   // that they have agreed on for long, or the fit
	fit   fit
	late  bool // what passes is seen late at times, and then faster than the link: by a process that reads

	measuring bool
	seen      time.Duration // the last observation
	wait      time.Duration // that was observed then
	begun     time.Duration // of the present measurement
	mark      uint64        // bytes that had passed then

	span     time.Duration // begin of the present carryTime
	spanMark uint64
	spans    [3]float64 // what has passed in the last ones; the latest first
	peak     [2]float64 // the most that it has carried: in the present carryFor, and in the last
	peakFrom time.Duration
}

// sight is an observation of a link.
type sight struct {
	passed uint64        // bytes until now
	wait   time.Duration // of packets before the link
	every  time.Duration // time between observations, if that is long
	least  uint64        // bytes of a measurement, if more than usual
	own    float64       // what the sender allows itself, in bytes per second; 0: anything
}

// observe is called when something passes. It reports whether a measurement has ended.
func (c *capacity) observe(now time.Duration, s sight) (measured bool) {
	passed, wait := s.passed, s.wait
	c.carry(now, passed)
	pause := now - c.seen
	paused := pause > max(pauseTime, c.wait, s.every, timeFor(pausePackets, max(c.carried(), 1)))
	c.seen, c.wait = now, wait
	if c.fit.runs(now) {
		c.probed(now, passed, wait < standTime || pause > settleTime)
		return false
	}
	switch {
	case wait < standTime:
		c.measuring = false
	case !c.measuring || paused:
		c.measuring, c.begun, c.mark = true, now, passed
	case passed-c.mark >= max(capacityEnough, s.least) || now-c.begun >= max(capacityTime, capacityWaits*min(wait, longWait)) && passed-c.mark >= max(capacityBytes, s.least):
		taken := now - c.begun
		rate := float64(passed-c.mark) / taken.Seconds()
		c.begun, c.mark = now, passed
		if s.own == 0 || rate < ownGain*s.own {
			c.measured(rate, taken)
			return true
		}
	}
	return false
}

// measured takes a measurement. The capacity is what most of the last ones agree on, and of two such values the higher one: where
// something else was the limit for a moment measurements differ, and most are too low.
func (c *capacity) measured(m float64, taken time.Duration) {
	if c.known == 0 && !c.late && m < carriedGain*c.carried() {
		return // the processor was the limit
	}
	c.last = append(c.last, m)
	c.last = c.last[max(0, len(c.last)-most):]
	if latest := c.last[max(0, len(c.last)-fewest):]; len(latest) == fewest {
		if rate, n := mode(latest); n == fewest && rate < fallenGain*c.known {
			c.last = latest // the link has become slower
		}
	}
	rate, n := mode(c.last)
	if n < fewest {
		return
	}
	c.known = rate
	if time.Duration(n)*taken >= sureTime {
		c.sure = rate
	}
}

// mode finds the most measurements that are alike, and returns the mean of the upper half of them, and their number: a wrong
// measurement is rather too low.
func mode(list []float64) (rate float64, n int) {
	sorted := slices.Sorted(slices.Values(list))
	for i := range sorted { // the highest first
		alikeOnes := sorted[:len(sorted)-i]
		top := alikeOnes[len(alikeOnes)-1]
		from, _ := slices.BinarySearch(alikeOnes, alike*top)
		if alikeOnes = alikeOnes[from:]; len(alikeOnes) > n {
			n = len(alikeOnes)
			rate = mean(alikeOnes[n/2:])
		}
	}
	return rate, n
}

func mean(list []float64) float64 {
	sum := 0.0
	for _, x := range list {
		sum += x
	}
	return sum / float64(len(list))
}

// raise takes a higher capacity, until new measurements agree.
func (c *capacity) raise(gain float64) { c.known, c.sure, c.last = c.known*gain, 0, nil }

// carry records what passes, whatever the limit is.
func (c *capacity) carry(now time.Duration, passed uint64) {
	if now-c.peakFrom >= carryFor {
		c.peak, c.peakFrom = [2]float64{0, c.peak[0]}, now
	}
	span := carryTime
	if c.fit.runs(now) {
		span = probeSpan
	}
	if now-c.span < span {
		return
	}
	copy(c.spans[1:], c.spans[:])
	c.spans[0] = float64(passed-c.spanMark) / (now - c.span).Seconds()
	c.span, c.spanMark = now, passed
	least := slices.Min(c.spans[:])
	if span == probeSpan { // a burst may be a large part of that
		least -= burstBytes / (float64(len(c.spans)) * probeSpan.Seconds())
	}
	c.peak[0] = max(c.peak[0], least)
	if c.known > 0 && least > risenGain*c.known {
		c.known, c.sure, c.last = 0, 0, nil
	}
}

// carried is the most that has passed lately, in bytes per second.
func (c *capacity) carried() float64 { return max(c.peak[0], c.peak[1]) }

// limits reports whether this link may be the limit. If something else is, less passes than lately.
func (c *capacity) limits() bool { return c.spans[0] >= idleGain*max(c.known, c.carried()) }

// Capacity returns what this node's link and the paths to it carry, over all lanes, and what its processor moves. It is called several
// times a second.
func (t *Transport) Capacity() Capacity {
	sum := t.laneCapacity()
	for _, l := range t.others() {
		c := l.laneCapacity()
		sum = Capacity{Up: sum.Up + c.Up, Down: sum.Down + c.Down, Carried: sum.Carried + c.Carried, Paths: addPaths(sum.Paths, c.Paths)}
	}
	sum.Processor = t.observeProcessor()
	return sum
}

func (t *Transport) laneCapacity() Capacity {
	t.mu.Lock()
	defer t.mu.Unlock()
	up, down := &t.mu.conns.uplink.capacity, &t.mu.down
	return Capacity{Up: up.sure, Down: down.sure, Carried: up.carried(), Paths: t.mu.conns.paths()}
}
