package cluster

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// A cluster that recovers takes further nodes after its start: replacements of dead ones, or more than before. Such a newcomer gets an id that no
// other has had. It learns all nodes, and all nodes learn of it (Came), make their connections with it, and report them (LINKED). A server is a member
// then (ADMITTED): the next plan may give it a share. A worker is one when it has been admitted: see admission.go.

// refusalOfNewcomer returns why a node cannot join any more, "" if it can.
func (s *Scheduler) refusalOfNewcomer(node Member) string {
	others, most := 0, wire.MaxWorkers
	for _, m := range s.members {
		if m.Role == node.Role {
			others++
		}
	}
	if node.Role == RoleWorker {
		if most = s.c.MaxWorkers; most == 0 {
			most = s.c.Workers
		}
	}
	switch {
	case node.PSLite() || node.Classic && node.Role == RoleWorker:
		return "the cluster has begun: it takes further workers of fptps alone"
	case s.closing:
		return "a worker of the cluster has closed: the training ends"
	case others >= most:
		return fmt.Sprintf("the cluster has its %s already: another can come when one has died, or up to FPTPS_MAX_WORKERS of the scheduler", count(most, node.Role.String()))
	case !fits(s.next[node.Role], node.Role):
		return fmt.Sprintf("%d nodes of its role have been in the cluster, all that there can be: start another cluster", wire.MaxWorkers)
	}
	return ""
}

// come gives a newcomer an id, and connects it with the others. While they make their own first connections it has to ask again.
func (s *Scheduler) come(now time.Time, node Member) {
	if s.finals == 0 {
		return
	}
	node.ID, node.Customers, node.Newcomer = s.next[node.Role], 1, true
	s.next[node.Role] += 2
	m := &member{Member: node, heard: now, beats: true, given: node.Share, links: map[int]bool{}, knows: s.epoch}
	m.Share = 0
	s.members[node.ID] = m
	s.view = s.makeView()
	s.do(Came{View: s.view, ID: m.ID})
	s.do(Connect{ID: m.ID, Host: m.Host, Port: m.Port})
	var all []*pspb.Node
	for _, other := range s.view.Members {
		all = append(all, nodeOf(other))
	}
	s.send(m.ID, s.list(all))
	s.tellHistory(m)
	s.decide(addNodes(m.Member), slices.DeleteFunc(s.ids(), func(id int) bool { return id == m.ID }))
}

// tellHistory tells a newcomer what it would have to tell another scheduler: the decisions that not all have handled, and the tensors.
func (s *Scheduler) tellHistory(m *member) {
	if s.history == nil {
		return
	}
	m.has = s.history.number
	for _, decision := range s.history.kept() {
		s.send(m.ID, proto.Clone(decision).(*pspb.Meta))
	}
	for part := range slices.Chunk(s.history.tensors(), maxBatch) {
		s.send(m.ID, &pspb.Meta{Own: &pspb.Meta_Ledger{Ledger: &pspb.Ledger{Tensor: part}}})
	}
}

// stepLinked records that a node has its connections with a newcomer.
func (s *Scheduler) stepLinked(now time.Time, from *member, own *pspb.Linked) {
	if m := s.members[int(own.GetId())]; m != nil && m.Newcomer && m.Incarnation == own.GetIncarnation() {
		m.links[from.ID] = true
		s.admitNewcomers(now)
	}
}

// linked reports whether all members have their connections with a newcomer.
func (s *Scheduler) linked(m *member) bool {
	return !slices.ContainsFunc(s.takesPart(), func(id int) bool { return !m.links[id] })
}

// admitServers makes members of the servers with which all others are connected.
func (s *Scheduler) admitServers(now time.Time) {
	for _, id := range s.ids() {
		if m := s.members[id]; m.Newcomer && m.Role == RoleServer && s.linked(m) && m.knows == s.epoch { // else contributions could reach it too early
			s.admitOne(m, 0, 0)
			s.planner.join(now, m.ID)
		}
	}
}

// admitOne makes a member of a newcomer.
func (s *Scheduler) admitOne(m *member, epoch int, points uint64) {
	m.Newcomer = false
	s.view = s.makeView()
	s.do(Admitted{View: s.view, ID: m.ID})
	s.decide(&pspb.Meta{Own: &pspb.Meta_Admitted{Admitted: &pspb.Admitted{Id: proto.Int32(int32(m.ID)), Epoch: positive(uint32(epoch)), Points: positive(points)}}}, s.ids())
}

// dismiss ends newcomers that have not come to the last barrier, as the cluster ends.
func (s *Scheduler) dismiss(last *barrier) {
	for _, id := range s.ids() {
		if m := s.members[id]; m.Newcomer && last.came(id) == 0 {
			s.send(id, lostNode(m.Member, "the others have ended the training before it was admitted", false))
		}
	}
}

// came handles the announcement of a newcomer.
func (p *Postoffice) came(n *pspb.Node) {
	m, err := memberOf(n)
	m.ID, m.Customers = int(n.GetId()), 1
	if m.ID == p.view.Self { // the last of what a newcomer is told
		p.begun = true
		return
	}
	if err != nil || !fits(m.ID, m.Role) || m.Role == RoleScheduler || p.View().Member(m.ID).ID != 0 {
		p.log.Warn("dropped the announcement of a node that makes no sense", "node", m.ID, "reason", err)
		return
	}
	p.mail.change(p.View().Plus(m), m.ID)
	p.events.came(m)
}

// Linked reports that this node has its connections with a newcomer.
func (p *Postoffice) Linked(m Member) {
	p.loop.do(func() {
		p.pending.linked[m.ID] = m.Incarnation
		p.send(linkedMessage(m))
	})
}

func linkedMessage(m Member) *pspb.Meta {
	return &pspb.Meta{Own: &pspb.Meta_Linked{Linked: &pspb.Linked{Id: proto.Int32(int32(m.ID)), Incarnation: proto.Uint64(m.Incarnation)}}}
}

// admitted handles the admission of a newcomer, which may be this node.
func (p *Postoffice) admitted(own *pspb.Admitted) {
	m := p.View().Member(int(own.GetId()))
	if !m.Newcomer {
		return
	}
	m.Newcomer = false
	delete(p.pending.linked, m.ID)
	p.mail.change(p.View().With(m), 0)
	p.events.admitted(m, int(own.GetEpoch()), own.GetPoints())
}
