package cluster

import (
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// A node ends in one of two ways. A node that closes in good order waits in the last
// barrier, and the scheduler announces this to all others, so that none waits for the node
// any more. A node that leaves at once sends its reason to the scheduler, whose verdict
// passes the reason on to all.

// stepClosed announces to all nodes that one has come to the last barrier. Servers that
// no program drives come there as soon as they are up: they need no announcement, since
// nothing waits for them.
func (s *Scheduler) stepClosed(from *member, own *pspb.Closed) {
	if from.Role != RoleWorker && !s.view.Classic() {
		return
	}
	s.closing = s.closing || from.Role == RoleWorker
	s.callOff("")
	news := &pspb.Closed{Id: proto.Int32(int32(from.ID)), Counts: own.GetCounts(), Rounds: own.GetRounds()}
	for _, id := range s.ids() {
		if id != from.ID {
			s.sendOwn(id, &pspb.Meta{Own: &pspb.Meta_Closed{Closed: news}})
		}
	}
}

// stepLeave passes the verdict on a node that leaves at once.
func (s *Scheduler) stepLeave(now time.Time, from *member, own *pspb.Leave) {
	s.verdict(now, from.ID, clip(own.GetWhy()), true)
}

// End is the Barrier of all nodes at the end of the cluster. last holds the last rounds
// of this worker's tensors.
func (p *Postoffice) End(last wire.Rounds, done func(error)) {
	m := barrierMessage(int32(AllGroup), 0, 0, true)
	if !p.pslite() {
		m.Own = &pspb.Meta_Closed{Closed: &pspb.Closed{Counts: last.Counts, Rounds: last.Last}}
	}
	p.loop.do(p.lastProgress)
	p.meet(0, &waiter{group: AllGroup, done: done, request: m})
}

// Leave sends the others the reason why this node leaves at once: "it left by ValueError: ...".
// The channel closes when the scheduler has passed it on, or cannot.
func (p *Postoffice) Leave(why string) <-chan struct{} {
	left := make(chan struct{})
	leave := func() {
		switch {
		case p.failure != nil || p.orphan != nil || p.pslite():
			close(left)
		default:
			p.left = left
			p.lastProgress()
			p.send(&pspb.Meta{Own: &pspb.Meta_Leave{Leave: &pspb.Leave{Why: proto.String(clip(why))}}})
		}
	}
	if !p.loop.do(leave) {
		close(left)
	}
	return left
}

// finishLeave closes the channel that Leave has returned.
func (p *Postoffice) finishLeave() {
	if p.left != nil {
		close(p.left)
		p.left = nil
	}
}

// nodeClosed handles the scheduler's announcement that a node waits in the last barrier.
// All barriers and declarations that this node still waits for end with an error, since
// the closed node will never come to them: had it come before, it would be waiting there
// too, and not in the last barrier.
func (p *Postoffice) nodeClosed(m *pspb.Closed) {
	id := int(m.GetId())
	if p.View().Member(id).ID == 0 || p.closed[id] {
		return
	}
	p.closed[id] = true
	role := p.View().Member(id).Role
	for where, waiting := range p.barriers {
		if len(waiting) == 0 || waiting[0].group == AllGroup || !inGroup(role, waiting[0].group) {
			continue
		}
		delete(p.barriers, where)
		p.send(withdrawMessage(where.group, where.customer))
		for _, w := range waiting {
			w.end(p.closedError("a barrier", fault.About{}, id))
		}
	}
	if role != RoleWorker {
		return
	}
	for key, d := range p.declares {
		p.declared(key, 0, p.closedError(d.name(), wire.AboutKey(d.Key, d.Tensor.Name), id))
	}
	p.events.closed(id, wire.Rounds{Counts: m.GetCounts(), Last: m.GetRounds()})
}

// closedOf returns the id of a node of a group that has closed, 0 if there is none.
func (p *Postoffice) closedOf(group int) int {
	for _, m := range p.View().Members {
		if p.closed[m.ID] && inGroup(m.Role, group) {
			return m.ID
		}
	}
	return 0
}

func (p *Postoffice) closedError(event string, about fault.About, id int) error {
	node := wire.AboutNode(id)
	about.Role, about.Rank = node.Role, node.Rank
	return fault.New(fault.Mismatch, "%s waits for %s, which has closed: every program has to come to the same barriers, and to declare the same keys, before it closes",
		event, Name(id)).With(about)
}
