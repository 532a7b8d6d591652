package transport

import (
	"time"

	"fptps/gocore/wire"
)

// Releaser is told when memory that was lent to the transport is no longer used.
type Releaser interface {
	// Release is called exactly once, on a loop's thread or inside Send, with no
	// lock of the transport held. It must not block. One that sends anew has to
	// stop when the peer is lost: a Send that drops releases before it returns.
	Release()
}

// Outgoing is a run of consecutive packets of one tensor, or one packet without a
// payload.
type Outgoing struct {
	// Header is the first packet's. Packet counts up from it; WireLen is filled in per
	// packet, and RawLen with it where there is Data and it is plain.
	Header wire.Header
	// Data is cut into packets at wire.PacketBytes. It is read until Owner is
	// released and must not change before. Empty for Empty and for a Sum of zeros.
	Data []byte
	// Owner, where not nil, is released after the last byte of Data was given to
	// the kernel, or when the run is dropped because its connection ended.
	Owner Releaser
}

// Landing is where a payload is read to.
type Landing struct {
	Bytes []byte
	// Owner is released by the transport only if the packet never becomes whole.
	Owner Releaser
}

// Handler is told what arrives. All its calls come from the receive loop's thread,
// one at a time; none may block, and none may call Close or Goodbye.
type Handler interface {
	// Place says where the payload of the packet that h announces is read to:
	// h.WireLen bytes, more than 0. An error closes the connection.
	Place(peer uint32, h *wire.Header) (Landing, error)

	// Arrived is called when a packet is whole; l is what Place gave for it, empty
	// where the packet has no payload. l is the handler's from here on. An error
	// closes the connection. h is valid during the call.
	Arrived(peer uint32, h *wire.Header, l Landing) error

	// Local is called for a packet that this node sent to itself. payload is the
	// sender's memory, valid during the call. An error means that this node sent
	// itself nonsense, a bug: the data plane fails.
	Local(h *wire.Header, payload []byte) error

	// Lost is called once for each connection that ended by itself: with nil after
	// a Goodbye, from either side, else with what happened. Before the call every
	// Owner queued for peer was released; after it, nothing is read from peer or
	// written to it. Connections that our own Close ends are not reported.
	Lost(peer uint32, err error)

	// Tick is called about once a second.
	Tick(now time.Time)

	// Failed is called once if the data plane itself broke: a panic in a loop or a
	// handler, epoll refused. Both loops have ended, all connections are closed,
	// every Owner is released, and no other call follows.
	Failed(err error)
}
