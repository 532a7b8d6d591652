package transport

import (
	"time"

	"fptps/gocore/wire"
)

// Releaser is notified when the transport no longer uses memory that it was lent.
type Releaser interface {
	// Release is called exactly once, on a loop's thread or inside Send, without a lock
	// of the transport. It must not block. A Release that calls Send again must stop
	// once the peer is lost: Send then drops the run and calls Release before it returns, and
	// the two would call each other for ever.
	Release()
}

// Outgoing is a run of consecutive packets of one tensor, or one packet without a
// payload.
type Outgoing struct {
	// Header is that of the first packet. Later packets count up Packet; WireLen is set
	// for each packet, and RawLen too if Data is not empty and plain.
	Header wire.Header
	// Data is divided into packets of wire.PacketBytes. It is read until Owner is
	// released and must not change before. It is empty for wire.Empty and for a Sum of
	// zeros.
	Data []byte
	// Owner, if not nil, is released after the kernel has taken the last byte of Data, over a connection that is made
	// again when it breaks (Endure) once the peer has it, or when the run is dropped because its connection ended.
	Owner Releaser
}

// Destination is the memory that a payload is read into.
type Destination struct {
	Bytes []byte
	// Owner is released by the transport only if the packet is never completed.
	Owner Releaser
}

// Handler handles arriving packets. The receive loop's thread makes all calls, one at a
// time. None may block, and none may call Close or Goodbye.
type Handler interface {
	// Place returns the memory for the payload of the packet with header h: h.WireLen
	// bytes, at least 1. An error closes the connection.
	Place(peer uint32, h *wire.Header) (Destination, error)

	// Arrived is called when a packet is complete. l is the result of Place, empty for a
	// packet without payload; from now on the handler owns it. An error closes the
	// connection. h is valid during the call.
	Arrived(peer uint32, h *wire.Header, l Destination) error

	// Local is called for a packet of this node to itself. payload is the sender's
	// memory, valid during the call. An error is a bug of this node: the data plane
	// fails.
	Local(h *wire.Header, payload []byte) error

	// Lost is called once for each connection that has ended: with nil after a Goodbye
	// from either side, else with the reason. Before the call every Owner queued for
	// peer was released; after it, nothing is read from peer or written to it.
	// Connections that Close ends are not reported.
	Lost(peer uint32, err error)

	// Tick is called about once a second.
	Tick(now time.Time)

	// Failed is called once if the data plane itself failed: by a panic in a loop or a
	// handler, or an error of epoll. Both loops have ended, all connections are closed,
	// every Owner is released, and no other call follows.
	Failed(err error)
}
