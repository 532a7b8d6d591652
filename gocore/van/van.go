// Package van carries the messages of the control plane between nodes: over ZeroMQ, as dmlc
// ps-lite does, and, in memvan, inside one process for tests. It makes no decisions.
package van

import (
	"errors"

	"fptps/gocore/wire/pspb"
)

// ErrClosed is the error of a Van after Close, ErrFull that of Send if the peer does not
// read.
var (
	ErrClosed = errors.New("van is closed")
	ErrFull   = errors.New("too many messages wait to be sent")
)

// Envelope is a message with its sender.
type Envelope struct {
	From int    // the id that the sender states; 0 if it has none
	Host string // the address of its connection; "" if unknown
	Meta *pspb.Meta
	Data [][]byte

	Answer func(*pspb.Meta) // answers a question over its connection, once, and never blocks; nil for all other messages
}

// Van sends and receives messages. Only one goroutine may call Receive; the other methods may
// be called from any. Messages to a node arrive in the order of Send, until Connect is called
// again for its id.
type Van interface {
	// Bind binds the address at which this node receives; port 0 is any free port, host ""
	// all interfaces. It is called once, before all other methods.
	Bind(host string, port int) (boundPort int, err error)
	// Trust sets the function that tells whether a message comes from a member of the cluster, by its sender and its first
	// frame, which e holds. Until then there are only strangers. A stranger's message has one frame; its Data is never read.
	// isMember is called by any goroutine.
	Trust(isMember func(e *Envelope) bool)
	// Identify sets the id that later connections announce. Connections before it are
	// anonymous.
	Identify(id int)
	// Connect connects to node id. An earlier connection to that id ends after its queued
	// messages are sent. Connect does not wait for the peer: messages are queued until it can
	// be reached.
	Connect(id int, host string, port int) error
	// ConnectCounted is Connect to a node, for which Connections counts.
	ConnectCounted(id int, host string, port int) error
	// Connections is how often the connection to a node has been made since ConnectCounted: more
	// often than once if it broke. What was sent before it was made anew may never be answered.
	Connections(id int) int
	// Disconnect closes the connection to a node. Queued messages are still sent, up to a
	// timeout, unless now is true.
	Disconnect(id int, now bool)
	// Send never blocks. After an error the message will not be sent.
	Send(id int, m *pspb.Meta, data ...[]byte) error
	// Receive waits for the next message. It counts malformed messages, logs them once per
	// sender, and drops them. After Close it returns ErrClosed.
	Receive() (*Envelope, error)
	// Close sends queued messages, up to a timeout, and wakes Receive. It is idempotent.
	Close() error
	Stats() Stats
}

// Stats holds counters since the van was made.
type Stats struct {
	Sent     uint64 // messages
	Received uint64 // messages
	Rejected uint64 // malformed messages and handshakes
}
