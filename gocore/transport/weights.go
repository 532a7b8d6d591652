package transport

import (
	"math"
	"time"

	"fptps/gocore/wire"
)

// Flows that are equally urgent share this node's link by weighted fair queuing. A weight is
// the part of the node's traffic that the plan gives to a peer, relative to an equal part.
//
// Windows (window.go) give the peers' flows about equal rates, whatever their weights. A flow
// of little weight would then be far ahead of the others by the middle of a round, which
// is of no use: a tensor's sum is complete with its last part. Meanwhile the links of the
// peers that sum the most would not be full. So a flow that has less than an equal part waits
// while it is ahead of a flow that does not accept more at the moment.
const (
	// leadBytes is how far a flow may be ahead, divided by its weight.
	leadBytes = 4 * wire.PacketBytes
	// stallTime is how long others wait for a flow of which the kernel takes nothing: its peer may be stopped. Then it
	// loses its credit too.
	stallTime = 50 * time.Millisecond
	// A flow of less than equalWeight has less than an equal part. Shares that differ by errors of measurement do not count.
	equalWeight = 0.85
)

// Weigh divides this node's traffic over its peers, from now on and in all lanes: traffic is
// what each will get, in any unit. Peers that are not in it, or get nothing, have an equal part.
func (t *Transport) Weigh(traffic map[uint32]float64) {
	weights := relative(traffic)
	t.setWeights(weights)
	for _, l := range t.others() {
		l.setWeights(weights)
	}
}

func (t *Transport) setWeights(weights map[uint32]float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.conns.weights, t.mu.conns.uplink.weighted = weights, false
	for _, w := range weights {
		if w < equalWeight {
			t.mu.conns.uplink.weighted = true
		}
	}
}

// relative divides the positive finite numbers by their mean, and leaves out the others.
func relative(traffic map[uint32]float64) map[uint32]float64 {
	weights := make(map[uint32]float64, len(traffic))
	sum := 0.0
	for peer, bytes := range traffic {
		if bytes > 0 && bytes <= math.MaxFloat64 {
			weights[peer] = bytes
			sum += bytes
		}
	}
	for peer, bytes := range weights {
		weights[peer] = bytes / sum * float64(len(weights))
	}
	return weights
}

// weight is that of the traffic to c.
func (t *connSet) weight(c *conn) float64 {
	if w := t.weights[c.peer]; w > 0 {
		return w
	}
	return 1
}

// service is the fair queuing's state of a connection.
type service struct {
	busy   bool          // it had packets to send at the last look
	finish float64       // virtual time at which its last write finished, and its next one starts
	last   time.Duration // time of its last write, or at which it got packets to send
}

// enter notes whether c has packets to send. After a time without packets, or a stall, the next write of a flow starts
// at the current virtual time at the earliest. So the flow gets no credit for that time.
func (t *connSet) enter(now time.Duration, c *conn) (busy bool) {
	busy = !c.queue.empty()
	if busy && !c.service.busy {
		c.service.last = now
	}
	if !c.service.busy || now-c.service.last >= stallTime {
		c.service.finish = max(c.service.finish, t.virtualTime)
	}
	c.service.busy = busy
	return busy
}

// charge accounts for a write to c, by start-time fair queuing (Goyal, Vin, Cheng, SIGCOMM 1996,
// equations 4 and 5). A flow that cannot send for less than stallTime keeps its credit and catches up.
func (t *connSet) charge(now time.Duration, c *conn, bytes int) {
	if bytes == 0 {
		return
	}
	start := c.service.finish
	t.virtualTime = max(t.virtualTime, start)
	c.service.finish, c.service.last = start+float64(bytes)/t.weight(c), now
}

// heldUntil returns until when c, which is chosen for a write, waits for flows that are behind it; 0 if it
// need not.
func (t *connSet) heldUntil(now time.Duration, c *conn) time.Duration {
	if !c.remote || t.weight(c) >= equalWeight {
		return 0
	}
	limit, until := c.service.finish-leadBytes, time.Duration(0)
	for _, n := range t.order {
		if n.remote && n.service.busy && !n.writable && !n.writing && n.service.finish < limit && n.queue.urgency() >= c.queue.urgency() {
			until = max(until, n.service.last+stallTime)
		}
	}
	if until <= now {
		return 0
	}
	return until
}
