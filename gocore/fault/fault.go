// Package fault defines the errors of fptps. An error has a code, which Python maps to
// an exception class, and a text: what failed, where, and what to do.
package fault

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// Code is the kind of an error. Its text is stable, as Python maps it to a class.
type Code string

// All codes; python/fptps/errors.py has one exception class for each.
const (
	Config   Code = "config"    // a setting is missing or invalid
	Connect  Code = "connect"   // a node could not be reached, or refused this node
	Mismatch Code = "mismatch"  // workers disagree about a tensor
	NodeLost Code = "node_lost" // a node of the cluster died
	Timeout  Code = "timeout"   // a wait ended before its event
	Closed   Code = "closed"    // used after close
	Busy     Code = "busy"      // the array is still in flight
	Type     Code = "type"      // an argument of the wrong type or dtype
	Value    Code = "value"     // an argument of the wrong value
	Key      Code = "key"       // a key that was never initialised
	Remote   Code = "remote"    // a node answered a request with an error
	Internal Code = "internal"  // a bug in fptps
)

// Codes lists every code, for the test that compares Go with Python.
func Codes() []Code {
	return []Code{Config, Connect, Mismatch, NodeLost, Timeout, Closed, Busy, Type, Value, Key, Remote, Internal}
}

// About is what an error is about, as far as that is known; Python gives it as attributes of the exception.
type About struct {
	Role    string   `json:"role,omitempty"`    // of the node: "worker", "server" or "scheduler"
	Rank    *int     `json:"rank,omitempty"`    // of the node, nil for the scheduler
	Key     any      `json:"key,omitempty"`     // of the tensor: a uint64, or a string if it has a name
	Missing []string `json:"missing,omitempty"` // names of the nodes that were waited for
}

// Error is an error with its code.
type Error struct {
	Code  Code
	Text  string
	About About
}

// Error returns the text, without the code.
func (e *Error) Error() string { return e.Text }

// New makes an error; format and args are as in fmt.Sprintf.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...)}
}

// With sets the error's About, and returns the error.
func (e *Error) With(about About) *Error {
	e.About = about
	return e
}

// AboutOf returns what err is about; nothing if it has no code.
func AboutOf(err error) About {
	var e *Error
	if errors.As(err, &e) {
		return e.About
	}
	return About{}
}

// CodeOf returns the code of err, Internal if it has none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}

// Catch runs f and returns its error, or after a panic an Internal error with the stack. Every goroutine calls it: an
// uncaught panic would end the interpreter.
func Catch(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = New(Internal, "panic: %v\n%s", r, debug.Stack())
		}
	}()
	return f()
}
