package transport

import (
	"time"

	"fptps/gocore/wire"
)

const (
	// commitTime bounds the transmission time of the bytes in one write where a rate is known.
	commitTime = 130 * time.Microsecond
	// maxShare bounds the number of commitTimes in one write where other connections wait too.
	maxShare = 3
	// creditTime bounds the burst of a sender that woke late. The capacity that it missed
	// is lost; a burst that catches up becomes a queue in front of the link, which at 99%
	// of the rate takes a hundred times as long to drain. That queue keeps the link busy
	// when the sender is late again, but delays urgent packets meanwhile.
	creditTime = time.Millisecond
)

// pace keeps the traffic to other hosts below a rate that is known to be the most that this
// node's link carries. It is a token bucket, represented by the time at which the next write
// may begin.
type pace struct {
	rate  float64       // bytes of TCP payload per second; 0: not limited
	ready time.Duration // since the transport's start
}

// spend accounts for written bytes.
func (p *pace) spend(now time.Duration, bytes int) {
	if p.rate > 0 {
		p.ready = max(p.ready, now-creditTime) + timeFor(float64(bytes), p.rate)
	}
}

// timeFor is how long bytes take at a rate in bytes per second.
func timeFor(bytes, rate float64) time.Duration {
	return time.Duration(bytes / rate * float64(time.Second))
}

// commitPackets is the number of packets for one write: an eighth of the windows of the
// connections that have packets to send, and at most what a link of a known rate carries in
// commitTime; at least one. If there are several of these connections, it is up to maxShare
// times that: their packets wait for each other anyway, and larger writes save processor time.
func commitPackets(windows int, rate float64, connections int) int {
	bytes := float64(windows) / 8
	if rate > 0 {
		bytes = min(bytes, rate*commitTime.Seconds())
	}
	share := float64(max(1, min(maxShare, connections)))
	return int(max(1, min(batchBytes, bytes*share)/wire.PacketBytes+0.5))
}
