package cluster

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/plan"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// A scheduler that is started at the address of a dead one does not know whether there is a cluster. Nodes that know one announce themselves, and it
// resumes that cluster instead of gathering another:
//
//  1. It gathers the announcements, until all members have come that the longest history names, or the time is over. From then on
//     a node that has announced itself handles no decision of the scheduler before.
//  2. It goes on from the longest history, in a term of its own. Decisions that no node has heard were never made.
//  3. It tells all nodes (RESUMED), sends each the decisions that it lacks, and passes the verdict on the members that have not come.
//  4. It withdraws what only the dead scheduler could have ended: a plan without its COMMIT, a meeting without its ADMITTED.
//  5. The nodes say again what they wait for: barriers, declarations, suspicions, SURVIVED, LINKED, ARRIVED, FETCHED.
const (
	// resumeTime is how long all members have to announce themselves after the first one has, and brokenTime if others say that
	// their connections with them broke. A node notices the death of its scheduler within a second, and looks for another one all the time.
	resumeTime = 15 * time.Second
	brokenTime = 2 * time.Second
	// maxResumeBytes bounds what announcements may bring.
	maxResumeBytes = 256 << 20
)

// resumption gathers the announcements of the members of a cluster.
type resumption struct {
	token     [16]byte // of the cluster
	since     time.Time
	reported  time.Time // when the missing members were last named
	came      map[int]*announcement
	asking    map[int]bool  // members that ask to join
	best      *announcement // that with the longest history
	decisions map[uint64]pastDecision
	tensors   map[uint64]pastTensor // by key
	bytes     int                   // of both
}

// pastDecision is a decision that a node has kept, with the term in which it was made.
type pastDecision struct {
	term uint32
	meta *pspb.Meta
}

// pastTensor is a tensor that had an id.
type pastTensor struct {
	agreement
	term uint32
}

// announcement is what a member has said.
type announcement struct {
	Member
	terms    []term
	number   uint64 // of the last decision that it has handled
	suspects []int
	blank    bool

	// Of the longest history alone.
	history *history
	members []Member
	replans bool
	fastest uint64
}

func (a *announcement) term() uint32 { return a.terms[len(a.terms)-1].number }

// longer reports whether a has a longer history than b.
func (a *announcement) longer(b *announcement) bool {
	return b == nil || a.term() > b.term() || a.term() == b.term() && a.number > b.number
}

// stepAnnounce handles one part of an announcement.
func (s *Scheduler) stepAnnounce(now time.Time, from int, host string, m *pspb.Meta) {
	own := m.GetAnnounce()
	terms := termsOf(own.GetTerm())
	if terms == nil || len(m.GetToken()) != len(s.token) || from < wire.ServerID(0) {
		s.stray(fmt.Sprintf("node %d", from), "an announcement that makes no sense")
		return
	}
	if own.Node == nil {
		if s.mayResume(m) == "" {
			s.gather(now, m, terms)
		}
		return
	}
	node, err := memberOf(own.GetNode())
	node.ID, node.Customers = from, 1
	if err != nil || !fits(from, node.Role) || node.Role == RoleScheduler || node.Incarnation != m.GetIncarnation() {
		s.stray(Name(from), "an announcement that makes no sense")
		return
	}
	answer := s.mayAnswer(node, host, &pspb.Join{Secret: own.Secret})
	if s.state == running {
		s.welcomeBack(now, node, m, terms, answer)
		return
	}
	reason := s.mayResume(m)
	if reason == "" && !own.GetKnown().GetBegun() {
		reason = "the scheduler was lost before all nodes had met: start the cluster again"
	}
	if reason != "" {
		s.refuse(node, reason, answer)
		return
	}
	if !answer {
		s.noteSilence(node, host)
		return
	}
	s.gather(now, m, terms)
	s.announced(node, own, terms)
	if len(s.resumption.missing()) == 0 {
		s.resume(now)
	}
}

// mayResume returns why this scheduler does not resume the cluster of an announcement, "" if it does.
func (s *Scheduler) mayResume(m *pspb.Meta) string {
	switch {
	case s.c.Secret != "" && !s.knowsSecret(&pspb.Join{Secret: m.GetAnnounce().Secret}):
		return "it has another FPTPS_TOKEN than the scheduler: set the same one everywhere"
	case !s.mayOutlive():
		return "the scheduler that was started in the place of the lost one does not go on with its cluster: start it with the same settings, FPTPS_RECOVERY=1 among them"
	case s.state == running || s.state == resuming && string(m.GetToken()) != string(s.resumption.token[:]):
		return "the scheduler has another cluster now, and the one that it was in has lost its own"
	}
	return ""
}

// gather keeps the tensors and decisions of an announcement. The first one decides which cluster is resumed.
func (s *Scheduler) gather(now time.Time, m *pspb.Meta, terms []term) {
	if s.state == gathering {
		for _, j := range s.joiners { // they ask again
			if j.guest != 0 {
				s.do(Disconnect{ID: j.guest})
			}
		}
		s.joiners, s.state = nil, resuming
		s.resumption = &resumption{since: now, reported: now, came: map[int]*announcement{}, asking: map[int]bool{}, decisions: map[uint64]pastDecision{}, tensors: map[uint64]pastTensor{}}
		copy(s.resumption.token[:], m.GetToken())
		s.do(Note{Text: "nodes of a cluster have announced themselves, whose scheduler has ended: it goes on with this one"})
	}
	r := s.resumption
	for _, decision := range m.GetAnnounce().GetDecision() {
		n := decision.GetDecision()
		at := termAt(terms, n)
		if old, known := r.decisions[n]; (!known || old.term < at) && r.takes(proto.Size(decision)) {
			r.decisions[n] = pastDecision{at, decision}
		}
	}
	for _, t := range m.GetAnnounce().GetTensor() {
		at := termAt(terms, t.GetDecision())
		old, known := r.tensors[t.GetKey()]
		if (!known || old.term < at) && len(r.tensors) < maxKeys && r.takes(proto.Size(t)) {
			r.tensors[t.GetKey()] = pastTensor{agreement{tensorIn(t.GetTensor()), t.GetId(), t.GetDecision()}, at}
		}
	}
}

// takes counts so many bytes, if there is room for them.
func (r *resumption) takes(bytes int) bool {
	if r.bytes+bytes > maxResumeBytes {
		return false
	}
	r.bytes += bytes
	return true
}

// announced notes that a member has come.
func (s *Scheduler) announced(node Member, own *pspb.Announce, terms []term) {
	a := &announcement{Member: node, terms: terms, number: own.GetKnown().GetDecision(), blank: own.GetBlank()}
	for _, id := range own.GetSuspect() {
		if len(a.suspects) < 2*wire.MaxWorkers {
			a.suspects = append(a.suspects, int(id))
		}
	}
	r := s.resumption
	if r.best != nil && r.best.ID == a.ID && r.best.Incarnation != a.Incarnation {
		s.stray(Name(a.ID), "it announces itself, and another process of that name has done so before")
		return
	}
	if a.longer(r.best) || r.best.ID == a.ID {
		members, h := membersOf(own.GetMember()), historyOf(own.GetKnown())
		if h == nil || members == nil {
			s.stray(Name(a.ID), "an announcement that makes no sense")
			return
		}
		if r.best != nil {
			r.best.history, r.best.members = nil, nil
		}
		a.history, a.members, a.replans, a.fastest = h, members, own.GetReplans(), own.GetFastestLink()
		r.best = a
	}
	r.came[a.ID] = a
}

// membersOf decodes the members that a node knows; nil if they make no sense.
func membersOf(nodes []*pspb.Node) (members []Member) {
	seen := map[int]bool{}
	for _, n := range nodes {
		m, err := memberOf(n)
		m.ID, m.Customers = int(n.GetId()), 1
		if err != nil || !fits(m.ID, m.Role) || m.Role == RoleScheduler || seen[m.ID] || m.Protocol != Protocol {
			return nil
		}
		seen[m.ID] = true
		members = append(members, m)
	}
	return members
}

// missing lists the members that have not come.
func (r *resumption) missing() (ids []int) {
	for _, m := range r.best.members {
		if !r.has(m) {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// has reports whether a member has come, and can go on from the longest history.
func (r *resumption) has(m Member) bool {
	a := r.came[m.ID]
	return a != nil && a.Incarnation == m.Incarnation && sameAddress(a.Member, m)
}

// comesNot reports whether a missing member will not come: another says that their connection broke, or it asks to join.
func (r *resumption) comesNot(id int) bool {
	if r.asking[id] {
		return true
	}
	for _, a := range r.came {
		if slices.Contains(a.suspects, id) {
			return true
		}
	}
	return false
}

// noteAsking notes that a node asks to join which others take for a member: it has not heard of it.
func (r *resumption) noteAsking(node Member) {
	if r.best == nil {
		return
	}
	for _, m := range r.best.members {
		if sameAddress(m, node) && m.Incarnation == node.Incarnation {
			r.asking[m.ID] = true
		}
	}
}

// tickResumption resumes the cluster without the members that do not come in time.
func (s *Scheduler) tickResumption(now time.Time) {
	r := s.resumption
	if r.best == nil { // only parts of announcements have come
		if now.Sub(r.since) >= resumeTime {
			s.state, s.resumption = gathering, nil
		}
		return
	}
	missing := r.missing()
	broken := !slices.ContainsFunc(missing, func(id int) bool { return !r.comesNot(id) })
	waits := resumeTime
	if broken {
		waits = brokenTime
	}
	if now.Sub(r.since) >= min(waits, s.c.SchedulerTimeout/2) { // else they would give up
		s.resume(now)
		return
	}
	if now.Sub(r.reported) >= noticeTime {
		r.reported = now
		var names []string
		for _, id := range missing {
			names = append(names, Name(id))
		}
		s.do(Waited{What: "resume", Missing: names, Level: slog.LevelWarn})
	}
}

// resume goes on from the longest history.
func (s *Scheduler) resume(now time.Time) {
	r := s.resumption
	best := r.best
	s.token, s.state, s.resumption = r.token, running, nil
	s.history = best.history
	for n, past := range r.decisions {
		if n <= best.number && termAt(best.terms, n) == past.term {
			s.history.keep(past.meta)
		}
	}
	s.rebuild(now, r)
	s.history.begin(best.term()+1, best.number)
	s.do(Identify{ID: s.self.ID})
	s.do(Joined{View: s.view})
	var lost []int
	for _, id := range s.ids() {
		m := s.members[id]
		if m.away {
			lost = append(lost, id)
			continue
		}
		s.do(Connect{ID: id, Host: m.Host, Port: m.Port})
		s.sendHistory(m, best.number)
	}
	s.do(Note{Text: fmt.Sprintf("goes on with a cluster of %s and %s, whose scheduler has ended", count(len(s.view.Workers()), "worker"), count(len(s.view.Servers()), "server"))})
	if s.history.preparing {
		s.decide(&pspb.Meta{Own: &pspb.Meta_Abort{Abort: &pspb.Abort{Plan: proto.Uint32(s.history.plan)}}}, nil)
	}
	if s.history.admitting {
		s.decide(&pspb.Meta{Own: &pspb.Meta_Meet{Meet: &pspb.Meet{}}}, nil)
	}
	for _, id := range lost {
		if s.state == running {
			s.verdict(now, id, "it did not announce itself to the scheduler that was started in the place of the lost one", false)
		}
	}
}

// sendHistory tells a member that this scheduler is the cluster's, and sends it the decisions that it lacks. The member says again what it waits
// for when it has handled decision last.
func (s *Scheduler) sendHistory(m *member, last uint64) {
	s.send(m.ID, &pspb.Meta{Own: &pspb.Meta_Resumed{Resumed: &pspb.Resumed{
		Node: nodeOf(s.self), Term: proto.Uint32(s.history.term()), Decision: proto.Uint64(last), Incarnation: proto.Uint64(m.Incarnation),
	}}})
	decisions, _ := s.history.after(m.has)
	for _, decision := range decisions {
		s.send(m.ID, decision)
	}
}

// rebuild makes the state of this scheduler from the longest history and what the members have said of themselves.
func (s *Scheduler) rebuild(now time.Time, r *resumption) {
	best := r.best
	h := s.history
	s.backups, s.c.Replicas = h.backups.clone(), 0
	if h.replicates { // the nodes go on as they have begun
		s.c.Replicas = 1
	}
	s.epoch, s.stateful, s.next, s.finals, s.fastest = h.epoch, h.stateful, maps.Clone(h.next), 1, best.fastest
	for _, base := range best.members {
		m := &member{Member: base, heard: now, beats: true, given: base.Share, links: map[int]bool{}, knows: -1, away: true}
		if a := r.came[base.ID]; r.has(base) && h.isPrefix(a.terms, a.number) {
			_, whole := h.after(a.number)
			m.away, m.has, m.given = !whole, a.number, a.Share
			m.blank = a.blank && !base.Newcomer && base.Role == RoleWorker
		}
		s.members[m.ID] = m
		s.next[m.Role] = max(s.next[m.Role], m.ID+2)
	}
	for role, first := range map[Role]int{RoleServer: wire.ServerID(0), RoleWorker: wire.WorkerID(0)} {
		for id := first; id < s.next[role]; id += 2 {
			s.buried[id] = s.members[id] == nil
		}
	}
	s.rebuildLedger(r)
	if h.settling {
		s.settling = &settlement{epoch: h.epoch, reports: map[int]report{}, reported: now}
	}
	s.planner.resume(now, h, best.replans, s.inOrder())
	s.view = s.makeView()
}

// rebuildLedger enters the tensors whose ids belong to the longest history.
func (s *Scheduler) rebuildLedger(r *resumption) {
	s.ledger = newLedger(0)
	for _, id := range s.workers() {
		s.ledger.ranks = append(s.ledger.ranks, s.members[id].Rank())
	}
	for key, t := range r.tensors {
		if t.decision <= r.best.number && t.term == termAt(r.best.terms, t.decision) {
			s.ledger.agreed[key] = t.agreement
		}
	}
	s.history.agreed = s.ledger.agreed
	for _, decision := range s.history.kept() { // of which only servers may have heard, that keep no tensors
		s.history.learnTensors(decision)
	}
	for _, a := range s.ledger.agreed {
		s.ledger.ids = max(s.ledger.ids, a.id+1)
	}
}

// resume makes the planner of a cluster that has a plan. What it knew of links the nodes report again.
func (p *planner) resume(now time.Time, h *history, active bool, members []*member) {
	p.active, p.shares, p.number, p.kept = active, h.shares, h.plan, true
	for _, m := range members {
		if !m.blank && !slices.ContainsFunc(h.shares, func(s plan.Share) bool { return int(s.Node) == m.ID }) {
			p.join(now, m.ID)
		}
	}
	if h.plan > 0 { // it may leave out tensors that had not been pushed
		p.unpushed, p.again, p.pause = math.MaxUint32, now.Add(againTime), againTime
	}
}

// welcomeBack answers the announcement of a node to a scheduler that runs. It is a member that has taken this scheduler for dead, or has not heard its
// answer; or it came too late.
func (s *Scheduler) welcomeBack(now time.Time, node Member, m *pspb.Meta, terms []term, answer bool) {
	member := s.members[node.ID]
	switch {
	case s.history == nil || string(m.GetToken()) != string(s.token[:]):
		s.refuse(node, s.mayResume(m), answer)
	case member == nil || member.Incarnation != node.Incarnation:
		s.refuse(node, "it was given up as dead: the cluster has gone on without it", answer)
	case terms[len(terms)-1].number > s.history.term():
		s.state = ended
		s.do(Failed{ID: s.self.ID, Why: "another scheduler goes on with its cluster"})
	case !s.history.isPrefix(terms, m.GetAnnounce().GetKnown().GetDecision()) || !s.keeps(m.GetAnnounce().GetKnown().GetDecision()):
		s.verdict(now, node.ID, "it has missed too much while it had no connection with the scheduler", true)
	default:
		member.heard, member.has = now, m.GetAnnounce().GetKnown().GetDecision()
		s.sendHistory(member, s.history.number)
	}
}

// keeps reports whether all decisions after one are kept.
func (s *Scheduler) keeps(n uint64) bool {
	_, whole := s.history.after(n)
	return whole
}
