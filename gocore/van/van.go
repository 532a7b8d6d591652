// Package van carries the control plane's messages between nodes, and decides
// nothing: zmq as dmlc ps-lite does it here, memvan in one process for tests.
package van

import (
	"errors"

	"fptps/gocore/wire/pspb"
)

// ErrClosed is what a Van answers after Close, ErrFull what Send answers when the
// node reads nothing.
var (
	ErrClosed = errors.New("van is closed")
	ErrFull   = errors.New("too many messages wait to be sent")
)

// Envelope is a message and who sent it.
type Envelope struct {
	From int // the sender's id as it claims; 0 when it has none
	Meta *pspb.Meta
	Data [][]byte
}

// Van moves messages. Receive belongs to one goroutine; the rest may be called
// from any. Messages to one node arrive in the order in which they were sent, until
// Connect names that node's id anew.
type Van interface {
	// Bind opens the address at which this node receives; port 0 is any free one,
	// host "" every interface. Once, before anything else.
	Bind(host string, port int) (boundPort int, err error)
	// Identify says which id the connections made from now on present themselves
	// with. Before it they are anonymous.
	Identify(id int)
	// Connect says where the node called id is; an earlier connection of that id
	// ends when what was sent over it has left. It does not wait for the other
	// side: messages are kept until it can be reached.
	Connect(id int, host string, port int) error
	// ConnectPSLite is Connect to a program of dmlc ps-lite, which has to know this
	// node by its bare identity.
	ConnectPSLite(id int, host string, port int) error
	// Disconnect forgets the node. What was sent to it still leaves, unless it
	// takes longer than a bound, or now is true.
	Disconnect(id int, now bool)
	// Send never blocks. An error means that the message was not taken.
	Send(id int, m *pspb.Meta, data ...[]byte) error
	// Receive waits for the next message. What cannot be decoded is counted,
	// logged once per sender and dropped inside. ErrClosed after Close.
	Receive() (*Envelope, error)
	// Close lets what was sent leave, within a bound, and wakes Receive. Idempotent.
	Close() error
	Stats() Stats
}

// Stats are counts since the van was made.
type Stats struct {
	Sent     uint64 // messages
	Received uint64 // messages
	Rejected uint64 // messages and handshakes of strangers that made no sense
}
