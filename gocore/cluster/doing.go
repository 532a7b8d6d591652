package cluster

import (
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire/pspb"
)

// A node that waits for another one asks what that does, for its log: Ask, and the other's Answer. The scheduler passes them on and
// keeps nothing of them. To each question it adds at once how long it has heard nothing of the other: that is all there is to say of
// a process that stands still.

// Doing is a question, an answer, or what the scheduler knows.
type Doing struct {
	ID      int // the node that asks, or about which the others are
	Kind    DoingKind
	Wait    *Wait         // Asks: what the asking node waits for; nil: a barrier or a declaration
	State   string        // Answers: what the node's core knows, and
	Stack   string        // where the threads of its program are; "": nothing is known of them
	Silence time.Duration // Heard: since the scheduler has heard of the node
}

// DoingKind says what a Doing is.
type DoingKind uint8

const (
	Asks DoingKind = iota
	Answers
	Heard
)

// Wait is a round of a tensor.
type Wait struct {
	Tensor uint32
	Round  uint64
}

// Bounds of an answer, in bytes, and of the silence in a message, in milliseconds.
const (
	maxState   = 600
	maxStack   = 1500
	maxSilence = 1 << 40
)

func (s *Scheduler) stepDoing(now time.Time, from *member, own *pspb.Doing) {
	about := s.members[int(own.GetId())]
	if about == nil || about.Vacant || about.Protocol == 0 {
		return
	}
	if own.State == nil {
		silence := uint64(max(0, now.Sub(about.heard)) / time.Millisecond)
		s.sendOwn(from.ID, &pspb.Meta{Own: &pspb.Meta_Doing{Doing: &pspb.Doing{Id: own.Id, Silence: &silence}}})
	}
	passed := &pspb.Doing{Id: proto.Int32(int32(from.ID)), Tensor: own.Tensor, Round: own.Round}
	if own.State != nil {
		passed.State, passed.Stack = proto.String(line(own.GetState(), maxState)), proto.String(line(own.GetStack(), maxStack))
	}
	s.sendOwn(about.ID, &pspb.Meta{Own: &pspb.Meta_Doing{Doing: passed}})
}

// Ask asks a node what it does. What the scheduler knows, and the answer, come as Doing; wait as there.
func (p *Postoffice) Ask(id int, wait *Wait) {
	own := &pspb.Doing{Id: proto.Int32(int32(id))}
	if wait != nil {
		own.Tensor, own.Round = &wait.Tensor, &wait.Round
	}
	p.sendDoing(own)
}

// Answer answers a question of the node id.
func (p *Postoffice) Answer(id int, state, stack string) {
	p.sendDoing(&pspb.Doing{Id: proto.Int32(int32(id)), State: proto.String(line(state, maxState)), Stack: proto.String(line(stack, maxStack))})
}

func (p *Postoffice) sendDoing(own *pspb.Doing) {
	p.loop.do(func() { p.send(&pspb.Meta{Own: &pspb.Meta_Doing{Doing: own}}) })
}

// doing reports a question or an answer to the node.
func (p *Postoffice) doing(own *pspb.Doing) {
	d := Doing{ID: int(own.GetId())}
	switch {
	case p.View().Member(d.ID).ID == 0:
		return
	case own.Silence != nil:
		d.Kind, d.Silence = Heard, time.Duration(min(own.GetSilence(), maxSilence))*time.Millisecond
	case own.State != nil:
		d.Kind, d.State, d.Stack = Answers, line(own.GetState(), maxState), line(own.GetStack(), maxStack)
	case own.Tensor != nil:
		d.Wait = &Wait{own.GetTensor(), own.GetRound()}
	}
	p.events.doing(d)
}

// Named returns the member with a name in texts (see Name); false if there is none.
func (v View) Named(name string) (Member, bool) {
	for _, m := range v.Members {
		if Name(m.ID) == name {
			return m, true
		}
	}
	return Member{}, false
}
