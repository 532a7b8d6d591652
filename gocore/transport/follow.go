package transport

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// A link may be slower than it was said to be, and may become so. Where the kernel
// does not take what the pace allows, and the round trip says that a queue stands on
// the way, the sender keeps to what gets through, and feels its way up again once the
// queue is gone. Neither sign will do alone: a round trip also counts delayed
// acknowledgements, and a socket is full for a moment where threads run late.
const (
	followEvery = 10 * time.Millisecond
	// queueTall and queueLow are the delays, over the least round trip that the
	// kernel has seen, above which a rate falls and below which it rises.
	queueTall = 5 * time.Millisecond
	queueLow  = 2 * time.Millisecond
	// patience is how many looks in a row have to find a queue: a processor that is
	// short makes one for a moment, too.
	patience = 4
	fall     = 0.9
	rise     = 1.25
	// leastRate keeps a connection alive whose peer does not read at all.
	leastRate = 64 << 10
	// leastAcked is the bytes below which a round trip tells of delayed
	// acknowledgements, not of a queue.
	leastAcked = 32 << 10
)

// follow is the limit that a connection's path sets.
type follow struct {
	limit  float64       // bytes per second; 0: none
	tall   int           // looks in a row that found a queue
	filled bool          // the kernel did not take all since the last step
	acked  uint64        // by the peer, at the last step
	at     time.Duration // of the last step
}

// path is what the kernel knows of a connection.
type path struct {
	delay time.Duration // round trip above the least one seen
	acked uint64        // bytes so far
}

// pathOf asks the kernel for the path of a socket.
func pathOf(fd int) (p path, ok bool) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return path{}, false
	}
	delay := time.Duration(info.Rtt-min(info.Rtt, info.Min_rtt)) * time.Microsecond
	return path{delay: delay, acked: info.Bytes_acked}, true
}

// step takes a look, and tells whether the path was found slower; full is the rate
// that holds where the path sets no limit.
func (f *follow) step(now time.Duration, p path, full float64) (slower bool) {
	bytes, passed := p.acked-f.acked, now-f.at
	filled := f.filled
	f.acked, f.at, f.filled = p.acked, now, false
	if bytes < leastAcked || passed > 10*followEvery {
		return false
	}
	rate := float64(bytes) / passed.Seconds()
	if full == 0 {
		full = math.Inf(1)
	}
	if filled && p.delay > queueTall {
		f.tall++
	} else {
		f.tall = 0
	}
	switch {
	case f.tall >= patience:
		f.limit = max(leastRate, fall*min(rate, full))
		return true
	case p.delay < queueLow && f.limit > 0:
		f.limit *= rise
		if f.limit >= full {
			f.limit = 0
		}
	}
	return false
}
