// Package pspb is the control plane's messages: dmlc ps-lite's protobuf, and
// fptps's own fields beside it.
package pspb

// The commands of Control.
const (
	Terminate = 1
	AddNode   = 2
	Barrier   = 3
	Ack       = 4
	Heartbeat = 5
)
