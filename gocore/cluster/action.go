package cluster

import (
	"fmt"
	"log/slog"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"

	"fptps/gocore/wire/pspb"
)

// Action is what the scheduler wants done: one of the types below, in their order.
type Action interface{ fmt.Stringer }

// Connect says where a node can be reached. Nodes that have no id yet, or never
// get one, are guests with ids below zero.
type Connect struct {
	ID     int
	Host   string
	Port   int
	PSLite bool // a program of dmlc ps-lite
}

// Disconnect forgets a node; Now without waiting for what was sent to it.
type Disconnect struct {
	ID  int
	Now bool
}

// Identify gives the scheduler's own connections their name: from here on it
// speaks to members.
type Identify struct{ ID int }

// Send takes a message to a node or guest.
type Send struct {
	ID   int
	Meta *pspb.Meta
}

// Deliver hands the message that was just taken to this node's applications.
type Deliver struct{ From Member }

// Passed says that a barrier which this node came to is passed.
type Passed struct{ Group int }

// Joined says that everyone is there.
type Joined struct{ View View }

// Waited is the scheduler's own copy of what it tells those who wait.
type Waited struct {
	What    string
	Missing []string
	Level   slog.Level // of its line in the log
}

// Failed is the verdict that a node is dead. Nothing follows it.
type Failed struct {
	ID  int
	Why string
}

// Vacated says that a node is dead, and that its place is kept for another.
type Vacated struct {
	View View
	ID   int
	Why  string
}

// Recovered says that a node has taken the place of one that had died.
type Recovered struct {
	View View
	ID   int
}

// Finished says that the cluster has ended in good order.
type Finished struct{}

// Note is a line for the log.
type Note struct{ Text string }

func (a Connect) String() string {
	text := fmt.Sprintf("connect %d to %s:%d", a.ID, a.Host, a.Port)
	if a.PSLite {
		text += " (ps-lite)"
	}
	return text
}

func (a Disconnect) String() string {
	if a.Now {
		return fmt.Sprintf("disconnect %d now", a.ID)
	}
	return fmt.Sprintf("disconnect %d", a.ID)
}
func (a Identify) String() string { return fmt.Sprintf("identify as %d", a.ID) }
func (a Send) String() string {
	text := prototext.MarshalOptions{}.Format(a.Meta)
	return fmt.Sprintf("send %d: %s", a.ID, strings.Join(strings.Fields(text), " ")) // its spaces vary from build to build
}
func (a Deliver) String() string   { return "deliver: of " + Name(a.From.ID) }
func (a Passed) String() string    { return fmt.Sprintf("passed: barrier of group %d", a.Group) }
func (a Joined) String() string    { return fmt.Sprintf("joined: %d nodes", len(a.View.Members)) }
func (a Waited) String() string    { return fmt.Sprintf("waited: %s, missing %v", a.What, a.Missing) }
func (a Failed) String() string    { return fmt.Sprintf("failed: %s: %s", Name(a.ID), a.Why) }
func (a Vacated) String() string   { return fmt.Sprintf("vacated: %s: %s", Name(a.ID), a.Why) }
func (a Recovered) String() string { return "recovered: " + Name(a.ID) }
func (a Finished) String() string  { return "finished" }
func (a Note) String() string      { return "note: " + a.Text }
