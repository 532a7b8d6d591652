package transport

import (
	"syscall"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// control sets up a socket before it connects or listens: what it accepts inherits
// it. Go's net package adds TCP_NODELAY and keep-alive.
func (c *Config) control(_, _ string, raw syscall.RawConn) error {
	var err error
	set := func(fd uintptr) {
		// The default of many machines, BBR, paces by its own estimate and reaches
		// about half of a loopback and of a link that several flows share.
		if e := unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic"); e != nil {
			c.Log.Debug("data plane: congestion control stays the system's", "wanted", "cubic", "error", e)
		}
		// Size of the buffers before the handshake: it fixes the window's scale.
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

// How much of what it was given the kernel may have unsent before it calls a socket
// full. What waits there cannot be overtaken, and without a bound autotuning may
// bring it to megabytes. Within a host it is half a batch; on a link one packet.
const (
	unsentNear = batchBytes / 2
	unsentFar  = wire.PacketBytes
)

// limitUnsent sets the bound on an established socket; a listener's is not
// inherited.
func limitUnsent(fd int, far bool) error {
	bound := unsentNear
	if far {
		bound = unsentFar
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bound)
}
