package transport

import (
	"math"
	"time"

	"fptps/gocore/wire"
)

const (
	// commitTime is how much of a paced link's time one writev commits: what is given
	// to the kernel cannot be overtaken any more.
	commitTime = 130 * time.Microsecond
	// creditTime bounds what a sender that woke late may catch up, in one writev. What
	// it missed is lost to the link, and what it catches up becomes a queue before it,
	// which at 99% of the rate stands for a hundred times as long: it fills the link
	// while the sender is late again, and delays what is urgent meanwhile.
	creditTime = time.Millisecond
	// mostTogether bounds outflow.together. The kernel handles up to 64 KB as one
	// segment; with their headers four packets would take two, the second of 600 bytes.
	mostTogether = 3
)

// Rates is how fast the links of this node are, in bytes of TCP payload per second;
// 0 is not limited. Connections within one host are never limited.
type Rates struct {
	Out float64 // what this node sends, over all connections
	In  float64 // what this node receives
	// To is what a peer gets from this node until it says otherwise: its share of
	// the peer's link if all who may send to the peer did.
	To map[uint32]float64
}

// pace is a token bucket, kept as the time at which the next write may begin.
type pace struct {
	rate  float64       // bytes per second; 0: not limited
	ready time.Duration // since the transport's start
}

// spend notes that so many bytes were written.
func (p *pace) spend(now time.Duration, bytes int) {
	if p.rate > 0 {
		p.ready = max(p.ready, now-creditTime) + time.Duration(float64(bytes)/p.rate*1e9)
	}
}

// outflow is the rate of one connection, on the side of its sender.
type outflow struct {
	pace
	fair   float64       // until the receiver tells another one
	told   float64       // by the receiver, 0: nothing, or too long ago
	last   time.Duration // of the last write
	urgent int64         // urgency of what was written last
	path   follow
}

// together is how many packets at least go to this receiver at a time: one for each
// flow of this rate that link carries. Where those are several, the receiver's link
// carries others' flows too, and what is urgent waits for their packets anyway, while
// most of what a packet costs the processor is for each write.
func (f *outflow) together(link *pace) int {
	if link.rate == 0 || f.rate == 0 {
		return 1
	}
	return max(1, min(mostTogether, int(math.Round(link.rate/f.rate))))
}

// spend notes a write.
func (f *outflow) spend(now time.Duration, bytes int, urgency int64) {
	if now-f.last > fallBackTime {
		f.told = 0
	}
	f.last, f.urgent = now, urgency
	f.rate = f.allowed()
	f.pace.spend(now, bytes)
}

// full is what the receiver allows.
func (f *outflow) full() float64 {
	if f.told > 0 {
		return f.told
	}
	return f.fair
}

// allowed is the least of what the receiver and the path allow.
func (f *outflow) allowed() float64 {
	rate := f.full()
	if f.path.limit > 0 && (rate == 0 || f.path.limit < rate) {
		rate = f.path.limit
	}
	return rate
}

// due is when something of that urgency may be written. What is more urgent than
// the last packet does not wait for it; its bytes are owed all the same.
func (f *outflow) due(urgency int64) time.Duration {
	if urgency > f.urgent {
		return 0
	}
	return f.ready
}

// train is how many packets may be bound together. They hold up what is urgent, and
// where the rate is unknown, so is for how long.
func (p *pace) train() int {
	return int(p.rate * commitTime.Seconds() / wire.PacketBytes)
}

// commit is the bytes of one writev now: those of commitTime, and what a sender that
// woke late is behind. So where the processor is what is short, one wake-up serves
// many packets.
func (p *pace) commit(now time.Duration) int {
	if p.rate == 0 {
		return batchBytes
	}
	behind := min(max(0, now-p.ready), creditTime)
	return min(batchBytes, int(p.rate*max(commitTime, behind).Seconds()))
}
