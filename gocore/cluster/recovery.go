package cluster

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire/pspb"
)

// In a cluster of fptps.ps a death does not end the cluster: the next node of the dead one's role that asks to join gets its
// id, as in ps-lite. The successor receives the list of all nodes, the others receive its entry alone. Barriers wait for it. If
// none joins in time, the cluster ends.

// maxApplicants bounds the ps-lite programs that asked to join before the death of another was known.
const maxApplicants = 64

// mayRecover reports whether the place of a dead node is kept for a successor.
func (s *Scheduler) mayRecover(id int) bool {
	others := slices.ContainsFunc(s.ids(), func(other int) bool { return other != id && !s.members[other].Vacant })
	return s.c.RecoveryTimeout > 0 && s.finals > 0 && others && s.view.Classic()
}

// vacate keeps the place of a dead node.
func (s *Scheduler) vacate(now time.Time, id int, why string) {
	m := s.members[id]
	m.Vacant, m.died, m.why = true, now, why
	s.detach(id)
	s.do(Vacated{View: s.view, ID: id, Why: why})
	i := slices.IndexFunc(s.applicants, func(a Member) bool { return a.Role == m.Role })
	if i >= 0 {
		next := s.applicants[i]
		s.applicants = slices.Delete(s.applicants, i, i+1)
		s.recover(now, next)
	}
}

// detach removes what a dead node leaves behind: suspicions, arrivals at barriers, signatures. Its member has been changed or removed.
func (s *Scheduler) detach(id int) {
	s.suspects = slices.DeleteFunc(s.suspects, func(o suspicion) bool { return o.id == id || o.by == id })
	s.forget(id)
	s.acks.forget(id)
	s.view = s.makeView()
}

// vacancy returns the place of a role that has been vacant for longest; nil if none is.
func (s *Scheduler) vacancy(r Role) *member {
	var oldest *member
	for _, id := range s.ids() {
		if m := s.members[id]; m.Vacant && m.Role == r && (oldest == nil || m.died.Before(oldest.died)) {
			oldest = m
		}
	}
	return oldest
}

// recover assigns the place of a dead node to a successor. A ps-lite program asks only once, and may have asked before the
// death was known.
func (s *Scheduler) recover(now time.Time, node Member) {
	m := s.vacancy(node.Role)
	if m == nil {
		if len(s.applicants) < maxApplicants && !slices.ContainsFunc(s.applicants, func(a Member) bool { return sameAddress(a, node) }) {
			s.applicants = append(s.applicants, node)
		}
		return
	}
	node.ID, node.Customers, node.Recovered = m.ID, 1, true
	*m = member{Member: node, heard: now, beats: node.Protocol > 0}
	s.view = s.makeView()
	s.do(Recovered{View: s.view, ID: m.ID})
	for _, id := range s.ids() {
		if id != m.ID {
			s.send(id, addNodes(node))
		}
	}
	s.do(Connect{ID: m.ID, Host: m.Host, Port: m.Port})
	s.send(m.ID, addNodes(s.view.Members...))
}

// addNodes makes the announcement of new nodes.
func addNodes(members ...Member) *pspb.Meta {
	var all []*pspb.Node
	for _, m := range members {
		all = append(all, nodeOf(m))
	}
	return &pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.AddNode), Node: all}}
}

// tickVacancies ends the cluster if a place was vacant for too long.
func (s *Scheduler) tickVacancies(now time.Time) {
	for _, id := range s.ids() {
		m := s.members[id]
		if !m.Vacant || now.Sub(m.died) < s.c.RecoveryTimeout {
			continue
		}
		why := fmt.Sprintf("%s, and no other took its place within %v", m.why, s.c.RecoveryTimeout)
		s.state = ended
		for _, other := range s.ids() {
			s.sendOwn(other, lostNode(m.Member, why, false))
		}
		s.do(Failed{ID: id, Why: why})
		return
	}
}
