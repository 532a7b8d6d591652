package transport

import (
	"syscall"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// control sets options of a socket before it connects or listens; accepted connections
// inherit them. Go's net package adds TCP_NODELAY and keep-alive.
func (c *Config) control(_, _ string, raw syscall.RawConn) error {
	var err error
	set := func(fd uintptr) {
		// BBR, the default of many machines, paces by its own estimate and reaches about
		// half the rate of a loopback, and of a link that several flows share.
		if e := unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic"); e != nil {
			c.Log.Debug("data plane: congestion control stays the system's", "wanted", "cubic", "error", e)
		}
		// Before the handshake, because that fixes the window scale.
		if c.SendBuffer > 0 {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, c.SendBuffer)
		}
		if c.ReceiveBuffer > 0 && err == nil {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, c.ReceiveBuffer)
		}
	}
	if e := raw.Control(set); e != nil {
		return e
	}
	return err
}

// Bounds of the unsent bytes in the kernel above which a socket is not writable. Those bytes
// cannot be overtaken, and without a bound autotuning may let them grow to megabytes. Within
// a host the bound is half a batch, on a link one packet.
const (
	unsentLocal  = batchBytes / 2
	unsentRemote = wire.PacketBytes
)

// limitUnsent sets the bound on an established socket; accepted sockets do not inherit it.
func limitUnsent(fd int, remote bool) error {
	bound := unsentLocal
	if remote {
		bound = unsentRemote
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bound)
}

// A host that vanishes sends nothing that would end a connection. So one with another host ends when what was sent is not
// acknowledged for vanishMs, or, on a silent one, no probe is. The kernel of a stopped process answers probes, but its buffer
// fills up: with data on the way it is lost after that time too.
//
// Probes are not sent again when they are lost, so there are many: on a link that loses 1% of the packets, one connection in 50
// would end if a single lost probe ended it.
const (
	vanishMs     = 10_000
	probeSeconds = 1
)

// noticeVanishing sets that up on an established connection with another host.
func noticeVanishing(fd int) error {
	for option, value := range map[int]int{
		unix.TCP_USER_TIMEOUT: vanishMs, unix.TCP_KEEPIDLE: probeSeconds, unix.TCP_KEEPINTVL: probeSeconds,
	} {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, value); err != nil {
			return err
		}
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
}
