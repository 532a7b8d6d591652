package transport

import (
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// Packets in the kernel, in a network card or in a switch cannot be overtaken. So a
// connection with another host has a window: while that many bytes are on their way, the
// kernel takes no more of them. Acknowledgements make room. So a connection sends at the
// rate of the slowest link on its path, shares that link with whoever else uses it, and
// follows it when it changes, within a round trip. Nobody needs to know any rate.
//
// The window is adapted to the time that packets wait on the path, which is the round trip
// less the shortest one: it grows while they wait less than a target and the window is what
// limits the sender, and shrinks while they wait longer. Growing by addition and
// shrinking by a factor lets all senders that share a link have the same part of it (Chiu,
// Jain, Computer Networks and ISDN Systems 1989; with a target for delay: Swift, Kumar et
// al., SIGCOMM 2020). That matters here: a sum is complete when the slowest sender's packet
// has arrived.
//
// Paths with a round trip of more than longTrip have no window: TCP's own is left, because
// what waits in this host adds little to their delay, and because Linux bounds what a program
// may set (net.core.wmem_max), by default to 400 KB.
const (
	longTrip = 2 * time.Millisecond
	// Packets should wait wakeTime, so that a link is busy while a sender wakes up, and a third
	// of the shortest round trip: the kernel reports room when a third of the window is free,
	// so windows move in bursts. The wait delays urgent packets.
	wakeTime = 2 * time.Millisecond
	// On a link that carries less than slowRate, in bytes per second, it is slowTime: packets come so seldom that senders wake up in
	// time, and the least windows of a few connections fill the link. Larger ones, which differ by chance, let some
	// senders be ahead of others, and a sum waits for the last.
	slowTime = wakeTime / 2
	slowRate = 40e6
	// growBytes is added to the window in one step. While packets wait less than a fourth of
	// what they should, the link is not full, and the window is multiplied by growFactor.
	growBytes  = wire.PacketBytes
	growFactor = 1.25
	// leastFactor bounds the shrinking in one step.
	leastFactor = 0.5
	// stepTime is the shortest time of a step; a round trip may be longer.
	stepTime = 2 * time.Millisecond
	// minWindow is half a packet: then the next one follows while it leaves.
	minWindow   = wire.PacketBytes / 2
	firstWindow = 4 * wire.PacketBytes
	maxWindow   = 4 << 20
)

// window bounds the bytes of one connection that are on their way. The thread that owns the
// connection uses it; size changes under Transport.mu.
type window struct {
	size    int           // 0: none
	applied int           // the size that the socket has; 0: the kernel's
	refused bool          // the kernel has refused bytes since the last step
	stepped time.Duration // time of the last step
	trip    time.Duration // recent round trip
}

// due reports whether a step is due, for which the path is read.
func (w *window) due(now time.Duration) bool {
	return now-w.stepped >= max(stepTime, w.trip)
}

// step adapts the size. carried is what this node's link has carried lately, in bytes per second; 0: not known.
func (w *window) step(now time.Duration, p path, carried float64) {
	refused := w.refused
	w.stepped, w.trip, w.refused = now, p.mean, false
	target := wakeTime + p.shortest/3
	if carried > 0 && carried < slowRate {
		target = slowTime + p.shortest/3
	}
	switch wait := p.mean - p.shortest; {
	case w.size == 0 && p.shortest > longTrip:
		return
	case w.size == 0:
		w.size = firstWindow
	case wait > target:
		w.size = int(float64(w.size) * max(leastFactor, 1-float64(wait-target)/float64(2*p.mean)))
	case !refused: // something else limits the sender
	case wait < target/4:
		w.size = max(w.size+growBytes, int(float64(w.size)*growFactor))
	default:
		w.size += growBytes
	}
	w.size = max(minWindow, min(maxWindow, w.size))
}

// bound is the most that may be on its way.
func (w *window) bound() int {
	if w.size == 0 {
		return maxWindow
	}
	return w.size
}

// apply limits the bytes that the socket holds. The kernel doubles the value, for its own
// structures, which large writes hardly need.
func (w *window) apply(fd int) error {
	if w.applied == w.size {
		return nil
	}
	w.applied = w.size
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, w.size/2)
}
