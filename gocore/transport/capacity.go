package transport

import (
	"slices"
	"time"

	"fptps/gocore/wire"
)

// Capacity is what a node has found out about its link and the paths to it, in bytes per second of TCP payload; 0: nothing.
type Capacity struct {
	Up, Down               float64 // what it carries in each direction
	CarriedUp, CarriedDown float64 // the most that it has carried lately, whatever the limit was

	Paths map[uint32]float64 // from peers, as far as they carry less than the links at both ends; see paths.go
}

const (
	// A capacity is measured while a queue stands before the link, over capacityTime and capacityBytes at least.
	capacityTime  = 60 * time.Millisecond
	capacityBytes = 24 * wire.PacketBytes
	// A measurement ends when nothing has passed for pauseTime, for the time of pausePackets, and for longer than the last packets
	// had waited: there was no queue meanwhile.
	pauseTime    = 40 * time.Millisecond
	pausePackets = 4 * wire.PacketBytes
	// It is known if the last measurements, fewest at least and of agreeTime together, differ by no more than alike.
	fewest    = 3
	agreeTime = 5 * capacityTime
	alike     = 0.94
	// A link has carried what it has in each of a few spans of carryTime: it may send some 100 KB at once after a pause,
	// and a process that stood still reads what has come meanwhile at once. It is remembered for carryFor to twice that.
	carryTime = 100 * time.Millisecond
	carryFor  = 10 * time.Second
	// A link that carries more than risenGain times its capacity has become faster.
	risenGain = 1.25
	// While a link sends less than idleGain of what it has sent lately, something else is the limit.
	idleGain = 0.7
)

// measurement is what has passed a queue, in bytes per second.
type measurement struct {
	rate  float64
	taken time.Duration
}

// capacity estimates what a link, or a path, carries in one direction. It is pure: the times are arguments. While a queue stands
// before the link, what passes is its capacity. Without a queue something else is the limit, and nothing is learned but
// that the link carries at least that much.
type capacity struct {
	last  []measurement // the latest last
	known float64       // that some of them have agreed on; 0: none

	measuring bool
	seen      time.Duration // the last observation
	wait      time.Duration // that was observed then
	begun     time.Duration // of the present measurement
	mark      uint64        // bytes that had passed then

	span     time.Duration // begin of the present carryTime
	spanMark uint64
	spans    [3]float64 // what has passed in the last ones; the latest first
	most     [2]float64 // the most that it has carried: in the present carryFor, and in the last
	mostFrom time.Duration
}

// observe takes the bytes that have passed until now, and how long packets wait before this link. It is called when something passes.
func (c *capacity) observe(now time.Duration, passed uint64, wait time.Duration) {
	c.carry(now, passed)
	paused := now-c.seen > max(pauseTime, c.wait, time.Duration(pausePackets/max(c.carried(), 1)*float64(time.Second)))
	c.seen, c.wait = now, wait
	switch {
	case wait < standTime:
		c.measuring = false
	case !c.measuring || paused:
		c.measuring, c.begun, c.mark = true, now, passed
	case now-c.begun >= capacityTime && passed-c.mark >= capacityBytes:
		c.measured(measurement{float64(passed-c.mark) / (now - c.begun).Seconds(), now - c.begun})
		c.begun, c.mark = now, passed
	}
}

// measured takes a measurement.
func (c *capacity) measured(m measurement) {
	c.last = append(c.last, m)
	least, most, together := m.rate, m.rate, time.Duration(0)
	for i := len(c.last) - 1; i >= 0; i-- {
		least, most, together = min(least, c.last[i].rate), max(most, c.last[i].rate), together+c.last[i].taken
		if len(c.last)-i >= fewest && together >= agreeTime {
			c.last = c.last[i:]
			if least >= alike*most {
				c.known = most
			}
			return
		}
	}
}

// carry records what passes, whatever the limit is.
func (c *capacity) carry(now time.Duration, passed uint64) {
	if now-c.mostFrom >= carryFor {
		c.most, c.mostFrom = [2]float64{0, c.most[0]}, now
	}
	if now-c.span < carryTime {
		return
	}
	copy(c.spans[1:], c.spans[:])
	c.spans[0] = float64(passed-c.spanMark) / (now - c.span).Seconds()
	c.span, c.spanMark = now, passed
	least := slices.Min(c.spans[:])
	c.most[0] = max(c.most[0], least)
	if c.known > 0 && least > risenGain*c.known {
		c.known, c.last = 0, nil
	}
}

// carried is the most that has passed lately, in bytes per second.
func (c *capacity) carried() float64 { return max(c.most[0], c.most[1]) }

// limits reports whether this link may be the limit. If something else is, less passes than lately.
func (c *capacity) limits() bool { return c.spans[0] >= idleGain*max(c.known, c.carried()) }

// Capacity returns what this node's link and the paths to it carry, over all lanes.
func (t *Transport) Capacity() Capacity {
	sum := t.laneCapacity()
	for _, l := range t.others() {
		c := l.laneCapacity()
		sum = Capacity{sum.Up + c.Up, sum.Down + c.Down, sum.CarriedUp + c.CarriedUp, sum.CarriedDown + c.CarriedDown, addPaths(sum.Paths, c.Paths)}
	}
	return sum
}

func (t *Transport) laneCapacity() Capacity {
	t.mu.Lock()
	defer t.mu.Unlock()
	up, down := &t.mu.conns.up, &t.mu.down
	return Capacity{up.known, down.known, up.carried(), down.carried(), t.mu.conns.paths()}
}
