package transport

import "time"

// The path from a host may carry less than the links at both ends: because of a slow switch between them, or a tunnel. The
// receiver finds that out. Packets that wait longer here than the same peer's packets to its quickest other peer do not wait
// before that peer's link. If packets of no other host wait meanwhile, they do not wait before this host's link either: the queue is on
// the path. A path that makes rounds longer still has packets when the others have none, and then both links are idle.

// pathBytes is the least that stands in a path's queue. Waits also differ without one, by a few packets that leave a link
// together; in that time a small part of a link carries less.
const pathBytes = minWindow * 3 / 4

// onlyWaiting returns the connection whose packets wait after their own host's link, if there is exactly one.
func (r *receiver) onlyWaiting(now time.Duration) (only *conn) {
	for _, c := range r.conns {
		switch {
		case !c.remote || c.afterUplink(now) < standTime:
		case only != nil:
			return nil
		default:
			only = c
		}
	}
	return only
}

// onPath returns how long packets of c wait on their path; 0 if they may wait elsewhere.
func (r *receiver) onPath(now time.Duration, c *conn) time.Duration {
	if c != r.waiting {
		return 0
	}
	// What stands in a queue is what passes in the time of its wait.
	if wait := c.afterUplink(now); wait.Seconds()*c.path.spans[0] >= pathBytes {
		return wait
	}
	return 0
}

// afterUplink is how much longer the peer's packets wait than before its own link; 0 if it has sent none for a while.
func (c *conn) afterUplink(now time.Duration) time.Duration {
	wait, ok := c.least.get(now, sendingTime)
	if !ok {
		return 0
	}
	uplink, _ := c.uplink.get(now, freshTime)
	return wait - uplink
}

// paths returns what the paths from peers carry, as far as known.
func (t *connSet) paths() map[uint32]float64 {
	known := map[uint32]float64{}
	for _, c := range t.order {
		if c.path.sure > 0 {
			known[c.peer] = c.path.sure
		}
	}
	return known
}

// addPaths adds up what the paths of two lanes carry, as far as both are known.
func addPaths(a, b map[uint32]float64) map[uint32]float64 {
	sum := map[uint32]float64{}
	for peer, rate := range a {
		if b[peer] > 0 {
			sum[peer] = rate + b[peer]
		}
	}
	return sum
}
