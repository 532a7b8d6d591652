package cluster

import (
	"fmt"
	"log/slog"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"

	"fptps/gocore/wire/pspb"
)

// Action is an action that the scheduler requests: one of the types below. Actions are performed in order.
type Action interface{ fmt.Stringer }

// Connect connects to a node. Nodes without an id are guests, with ids below zero.
type Connect struct {
	ID   int
	Host string
	Port int
}

// Disconnect closes the connection to a node; with Now, without sending queued messages.
type Disconnect struct {
	ID  int
	Now bool
}

// Identify sets the identity of the scheduler's connections: from now on it talks to
// members.
type Identify struct{ ID int }

// Send sends a message to a node or guest.
type Send struct {
	ID   int
	Meta *pspb.Meta
}

// Answer answers the current message over its connection.
type Answer struct{ Meta *pspb.Meta }

// Deliver passes the current message to this node's apps.
type Deliver struct{ From Member }

// Passed reports that a barrier that this node has entered is passed.
type Passed struct{ Group int }

// Asked reports that a node has asked to join, and which nodes are still missing.
type Asked struct {
	Member  Member
	Missing []string
}

// Joined reports that all nodes have joined.
type Joined struct{ View View }

// Waited reports a long wait to the scheduler's own node.
type Waited struct {
	What    string
	Missing []string
	Level   slog.Level // level of the log line
}

// Failed is the verdict that a node is dead, which ends the cluster. It is the last action.
type Failed struct {
	ID  int
	Why string
}

// Vacated reports that a node is dead, and that its place is kept for a successor.
type Vacated struct {
	View View
	ID   int
	Why  string
}

// Backed reports that the backup of a node has received everything that the node stores.
type Backed struct {
	ID, Backup int
}

// Buried reports that a node is dead, and that the cluster goes on without it.
type Buried struct {
	View View
	ID   int
	Why  string
}

// Recovered reports that a successor has taken the place of a dead node.
type Recovered struct {
	View View
	ID   int
}

// Came reports that a newcomer has come, and Admitted that it is a member.
type Came struct {
	View View
	ID   int
}

// Admitted is described at Came.
type Admitted struct {
	View View
	ID   int
}

// Finished reports that the cluster has ended in order.
type Finished struct{}

// Planned reports that a new plan is in force.
type Planned struct {
	Number uint32
	Why    string
}

// Kept reports that the first reports of all links have shown no better plan than that of the start.
type Kept struct{}

// Note is a log line.
type Note struct{ Text string }

func (a Connect) String() string {
	return fmt.Sprintf("connect %d to %s:%d", a.ID, a.Host, a.Port)
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
func (a Answer) String() string  { return "answer" }
func (a Deliver) String() string { return "deliver: of " + Name(a.From.ID) }
func (a Passed) String() string  { return fmt.Sprintf("passed: barrier of group %d", a.Group) }
func (a Asked) String() string {
	return fmt.Sprintf("asked: %v at %s:%d, missing %v", a.Member.Role, a.Member.Host, a.Member.Port, a.Missing)
}
func (a Joined) String() string    { return fmt.Sprintf("joined: %d nodes", len(a.View.Members)) }
func (a Waited) String() string    { return fmt.Sprintf("waited: %s, missing %v", a.What, a.Missing) }
func (a Failed) String() string    { return fmt.Sprintf("failed: %s: %s", Name(a.ID), a.Why) }
func (a Vacated) String() string   { return fmt.Sprintf("vacated: %s: %s", Name(a.ID), a.Why) }
func (a Backed) String() string    { return fmt.Sprintf("backed: %s by %s", Name(a.ID), Name(a.Backup)) }
func (a Buried) String() string    { return fmt.Sprintf("buried: %s: %s", Name(a.ID), a.Why) }
func (a Recovered) String() string { return "recovered: " + Name(a.ID) }
func (a Came) String() string      { return "came: " + Name(a.ID) }
func (a Admitted) String() string  { return "admitted: " + Name(a.ID) }
func (a Finished) String() string  { return "finished" }
func (a Planned) String() string   { return fmt.Sprintf("planned: %d: %s", a.Number, a.Why) }
func (a Kept) String() string      { return "kept: the first plan" }
func (a Note) String() string      { return "note: " + a.Text }
