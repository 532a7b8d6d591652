package transport

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// path is what is known of the way to another host.
type path struct {
	// What the kernel says.
	shortest time.Duration // round trip that was seen, as a rule while the queues were empty
	mean     time.Duration // of recent round trips
	acked    uint64        // bytes that the peer's kernel has acknowledged

	// What the peer says, in the headers of its packets: see lag.go.
	wait      time.Duration // of recent packets on their way there
	waitKnown bool
	there     time.Duration // how long packets from all hosts wait before its link
}

// readPath reads the TCP_INFO of a socket into info. It does not sleep, so it bypasses Go's scheduler as readv does, and it allocates
// nothing: busy nodes do this a thousand times a second.
func readPath(fd int, info *unix.TCPInfo) (p path, ok bool) {
	size := uint32(unsafe.Sizeof(*info))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_INFO,
		uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return path{}, false
	}
	return path{
		shortest: time.Duration(min(info.Min_rtt, info.Rtt)) * time.Microsecond,
		mean:     time.Duration(info.Rtt) * time.Microsecond,
		acked:    info.Bytes_acked,
	}, true
}

// queued is the time that packets wait before the link of this host. A round trip waits in the queues of both
// directions, and the peer's report includes the time until its process has read a packet: the
// lesser is nearer. What packets of other hosts wait, too, is before the peer's link.
func (p path) queued() time.Duration {
	wait := p.mean - p.shortest
	if p.waitKnown {
		wait = min(wait, p.wait)
	}
	return wait - p.there
}
