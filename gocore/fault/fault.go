// Package fault is the one way fptps reports an error: a code that Python maps
// to an exception class, and a text that says what, where, and what to do.
package fault

import (
	"errors"
	"fmt"
)

// Code names the kind of an error. Its text is stable: Python maps it to a class.
type Code string

// Every code there is; python/fptps/errors.py has one exception class for each.
const (
	Config   Code = "config"    // a setting is missing or makes no sense
	Connect  Code = "connect"   // a node could not be reached, or refused us
	Mismatch Code = "mismatch"  // workers disagree about a tensor
	NodeLost Code = "node_lost" // a node of the cluster died
	Timeout  Code = "timeout"   // a wait ended without its event
	Closed   Code = "closed"    // used after close
	Busy     Code = "busy"      // the array is still in flight
	Type     Code = "type"      // an argument of the wrong type or dtype
	Value    Code = "value"     // an argument of the wrong value
	Key      Code = "key"       // a key that was never initialised
	Remote   Code = "remote"    // a node answered a request with an error
	Internal Code = "internal"  // a bug in fptps
)

// Codes lists every code, for the test that holds both languages together.
func Codes() []Code {
	return []Code{Config, Connect, Mismatch, NodeLost, Timeout, Closed, Busy, Type, Value, Key, Remote, Internal}
}

// Error is an error with its code.
type Error struct {
	Code Code
	Text string
}

// Error gives the text alone.
func (e *Error) Error() string { return e.Text }

// New makes an error; format and args are as in fmt.Sprintf.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...)}
}

// CodeOf tells the code of err, Internal where it carries none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}
