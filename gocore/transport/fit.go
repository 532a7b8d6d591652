package transport

import (
	"time"

	"fptps/gocore/wire"
)

const (
	// The first settleTime of a probe is left out, or the first settleBytes of a fast link: its token bucket lets bursts pass then,
	// and TCP and the windows have not found their pace.
	settleTime  = 50 * time.Millisecond
	settleBytes = 128 * wire.PacketBytes
	// A fit needs fitTime and fitBytes, or fitEnough.
	fitTime   = 120 * time.Millisecond
	fitBytes  = 48 * wire.PacketBytes
	fitEnough = 256 * wire.PacketBytes
	// pointTime is the least time between two points, and lookTime between two fits.
	pointTime = time.Millisecond
	lookTime  = 10 * time.Millisecond
	// A line is straight if its parts are as steep as each other, up to this.
	fitParts = 3
	straight = 0.9
)

// fit estimates from the little time of a probe what passes a queue: by the line through what has passed while the queue stood. As
// that is seen in bursts, two observations alone say little, but the line through many of them does. The line has to be straight, or
// else the later part of it: at the begin a process may still have been late. It is pure: the times are arguments.
type fit struct {
	from, until time.Duration // of the probe
	mark        uint64        // bytes that had passed before
	looked      time.Duration // time of the last fit
	points      []point
}

// point says what had passed at a time.
type point struct{ seconds, bytes float64 }

// runs reports whether the probe lasts.
func (f *fit) runs(now time.Duration) bool { return now < f.until }

// restart forgets the observations: there was no queue.
func (f *fit) restart() { f.points = f.points[:0] }

// observe takes the bytes that have passed until now, while the queue stands. It returns the rate in bytes per second; 0: not known.
func (f *fit) observe(now time.Duration, passed uint64) float64 {
	p := point{now.Seconds(), float64(passed)}
	if f.mark == 0 {
		f.mark = passed
	}
	if n := len(f.points); now < f.from && passed-f.mark < settleBytes || n > 0 && p.seconds-f.points[n-1].seconds < pointTime.Seconds() {
		return 0
	}
	f.points = append(f.points, p)
	if now-f.looked < lookTime {
		return 0
	}
	f.looked = now
	for points := f.points; isLong(points[0], p); {
		if isStraight(points) {
			return slope(points)
		}
		points = points[pointsBefore(points, points[0].seconds+lookTime.Seconds()):]
	}
	return 0
}

// isLong reports whether what has passed from one point to another is enough for a fit.
func isLong(from, to point) bool {
	bytes := to.bytes - from.bytes
	return bytes >= fitEnough || bytes >= fitBytes && to.seconds-from.seconds >= fitTime.Seconds()
}

// pointsBefore is the number of points before a time.
func pointsBefore(points []point, seconds float64) int {
	n := 0
	for n < len(points) && points[n].seconds < seconds {
		n++
	}
	return n
}

// isStraight reports whether the first, the second and the third part of the time are alike.
func isStraight(points []point) bool {
	first := points[0].seconds
	part := (points[len(points)-1].seconds - first) / fitParts
	least, most := slope(points), slope(points)
	for i := range fitParts {
		n := len(points)
		if i < fitParts-1 {
			n = pointsBefore(points, first+float64(i+1)*part)
		}
		rate := slope(points[:n])
		least, most, points = min(least, rate), max(most, rate), points[n:]
	}
	return least >= straight*most
}

// slope is that of the line with the least squares of distances; 0 if there is none.
func slope(points []point) float64 {
	if len(points) == 0 {
		return 0
	}
	var seconds, bytes, squares, products float64 // of the distances from the first point: sums, sums of squares, sums of products
	n := float64(len(points))
	for _, p := range points {
		s, b := p.seconds-points[0].seconds, p.bytes-points[0].bytes
		seconds, bytes, squares, products = seconds+s, bytes+b, squares+s*s, products+s*b
	}
	if squares -= seconds * seconds / n; squares <= 0 {
		return 0
	}
	return (products - seconds*bytes/n) / squares
}

// probe begins a probe, which is too short for several measurements. endProbe ends it early.
func (c *capacity) probe(now, until time.Duration) {
	c.fit, c.seen, c.measuring = fit{from: now + settleTime, until: until}, now, false
}

func (c *capacity) endProbe() { c.fit = fit{} }

// mainly returns the wait before this link, or during a probe 0 if it is less than half of the whole wait: reports of what packets wait
// elsewhere are late while the queues grow.
func (c *capacity) mainly(now, wait, whole time.Duration) time.Duration {
	if c.fit.runs(now) && wait < whole/2 {
		return 0
	}
	return wait
}

// probed takes an observation during a probe.
func (c *capacity) probed(now time.Duration, passed uint64, idle bool) {
	if idle {
		c.fit.restart()
	} else if rate := c.fit.observe(now, passed); rate > 0 {
		c.known, c.sure = rate, rate
	}
}
