package cluster

import (
	"cmp"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire/pspb"
)

const (
	// silentJoiner is how long a joiner that no longer asks keeps its place.
	silentJoiner = 5 * time.Second
	// orphanTime is how long a scheduler of a cluster that may outlive its scheduler waits, once something has come, before it makes a cluster of the nodes that ask:
	// nodes of a cluster that has lost its scheduler may be about to announce themselves, and some of those that ask wait to be admitted there.
	orphanTime = time.Second
	// maxRefusals bounds the connections per second that are made only to send a refusal.
	maxRefusals = 32
)

// joiner is a node that has asked to join and has no id yet, or another customer of its
// process. host:port and customer identify a joiner, also when it asks again.
type joiner struct {
	Member
	guest int // id of the connection to it, 0: none (a ps-lite program, or a node that may not be answered)
	heard time.Time
}

// asksAgain reports whether the joiner asks every second. One that may meet a scheduler of ps-lite does once it is answered.
func (j *joiner) asksAgain() bool { return j.guest != 0 || j.Protocol > 0 && !j.Classic }

// stepAddNode handles a node's request to join.
func (s *Scheduler) stepAddNode(now time.Time, from int, host string, m *pspb.Meta) {
	nodes := m.GetControl().GetNode()
	if from != 0 || len(nodes) != 1 {
		s.stray(fmt.Sprintf("node %d", from), fmt.Sprintf("ADD_NODE of %d nodes", len(nodes)))
		return
	}
	node, err := memberOf(nodes[0])
	if err != nil {
		s.stray("a joiner", "ADD_NODE of a "+err.Error())
		return
	}
	if s.isMember(node) { // it asked again before the answer arrived
		return
	}
	if s.state == resuming {
		s.resumption.noteAsking(node)
	}
	if s.state == resuming || s.state == gathering && now.Before(s.mayAssign()) && s.isFull(node) {
		return // it asks again, and may be a newcomer then
	}
	answer := s.mayAnswer(node, host, m.GetJoin())
	if reason := s.refusal(node, m.GetJoin()); reason != "" {
		s.refuse(node, reason, answer)
		return
	}
	switch {
	case s.state == running && s.view.Recovers:
		s.come(now, node)
		return
	case s.state == running:
		s.recover(now, node)
		return
	}
	if !answer && node.Protocol > 0 {
		s.noteSilence(node, host)
	}
	s.admit(now, node, answer)
	s.assign(now)
}

// mayAnswer reports whether the scheduler may connect to a node that is no member. A node without a proof of the
// secret gets an answer at the address that it connects from, or none: a stranger must not make the scheduler connect
// to other hosts or look up names.
func (s *Scheduler) mayAnswer(node Member, host string, join *pspb.Join) bool {
	return s.c.Secret != "" && s.knowsSecret(join) || host != "" && node.Host == host
}

func (s *Scheduler) knowsSecret(join *pspb.Join) bool {
	return subtle.ConstantTimeCompare([]byte(join.GetSecret()), []byte(s.c.Secret)) == 1
}

func (s *Scheduler) isMember(node Member) bool {
	for _, m := range s.members {
		if !m.Vacant && sameAddress(m.Member, node) && m.Incarnation == node.Incarnation {
			return true
		}
	}
	return false
}

func sameJoiner(a, b Member) bool { return sameAddress(a, b) && a.Customer == b.Customer }

func sameAddress(a, b Member) bool { return a.Host == b.Host && a.Port == b.Port }

// refusal returns why node cannot join, "" if it can.
func (s *Scheduler) refusal(node Member, join *pspb.Join) string {
	workers, servers := int(join.GetWorkers()), int(join.GetServers())
	switch {
	case !s.knowsSecret(join):
		return "it has another FPTPS_TOKEN than the scheduler: set the same one everywhere"
	case node.Protocol != 0 && node.Protocol != Protocol:
		return fmt.Sprintf("it speaks version %d of fptps's protocol, the scheduler version %d: install the same fptps everywhere", node.Protocol, Protocol)
	case node.Role == RoleScheduler:
		return "it is a scheduler: the cluster has one already"
	case workers != 0 && (workers != s.c.Workers || servers != s.c.Servers):
		return fmt.Sprintf("it expects DMLC_NUM_WORKER=%d and DMLC_NUM_SERVER=%d, the scheduler %d and %d: set the same everywhere",
			workers, servers, s.c.Workers, s.c.Servers)
	case s.state == running && s.view.Classic() && (s.vacancy(node.Role) != nil || node.PSLite()):
		if !node.Classic && !node.PSLite() {
			return "the place that is free in this cluster is one of ps-lite's classes: use fptps.ps"
		}
	case s.state == running && s.view.Recovers:
		return s.refusalOfNewcomer(node)
	case s.state == running:
		return fmt.Sprintf("the cluster is complete already, with %s and %s: start another cluster with a scheduler of its own",
			count(s.c.Workers, "worker"), count(s.c.Servers, "server"))
	case s.isFull(node):
		return fmt.Sprintf("%s asked to join before it, all that DMLC_NUM_%s allows",
			count(s.room(node.Role), node.Role.String()), strings.ToUpper(node.Role.String()))
	}
	return ""
}

// room is the number of nodes of a role with which the cluster begins.
func (s *Scheduler) room(r Role) int {
	return map[Role]int{RoleWorker: s.c.Workers, RoleServer: s.c.Servers}[r]
}

// isFull reports whether so many others have asked.
func (s *Scheduler) isFull(node Member) bool {
	others := slices.DeleteFunc(slices.Clone(s.joiners), func(j *joiner) bool { return j.Role != node.Role || sameJoiner(j.Member, node) })
	return len(others) >= s.room(node.Role)
}

// refuse sends a refusal to a joiner, if it may be answered; a ps-lite program cannot receive one.
func (s *Scheduler) refuse(node Member, reason string, answer bool) {
	s.counts.Refused++
	name := fmt.Sprintf("%v at %s:%d", node.Role, node.Host, node.Port)
	if key := "refused " + node.Host; !s.strays[key] && len(s.strays) < maxStrays {
		s.strays[key] = true
		s.do(Note{Text: fmt.Sprintf("refused the %s: %s (more refusals of that host are counted only)", name, reason)})
	}
	if !answer || node.Protocol == 0 || s.asked >= maxRefusals {
		return
	}
	s.asked++
	guest := s.guest(node)
	s.do(Send{ID: guest, Meta: &pspb.Meta{Own: &pspb.Meta_Refused{Refused: &pspb.Refused{
		Reason: proto.String(reason), Incarnation: proto.Uint64(node.Incarnation),
	}}}})
	s.do(Disconnect{ID: guest})
}

// noteSilence logs, once for each host, that a joiner gets no answer before the cluster is complete.
func (s *Scheduler) noteSilence(node Member, host string) {
	if key := "unanswered " + node.Host; !s.strays[key] && len(s.strays) < maxStrays {
		s.strays[key] = true
		s.do(Note{Text: fmt.Sprintf("the %v at %s:%d connects from %s: without FPTPS_TOKEN it gets no answer at another address before the cluster is complete",
			node.Role, node.Host, node.Port, cmp.Or(host, "an unknown address"))})
	}
}

// guest connects to a node without an id.
func (s *Scheduler) guest(node Member) int {
	s.guests++
	s.do(Connect{ID: -s.guests, Host: node.Host, Port: node.Port})
	return -s.guests
}

// admit records a new joiner, or that a known one has asked again. One that may not be answered learns nothing before the
// cluster is complete.
func (s *Scheduler) admit(now time.Time, node Member, answer bool) {
	i := slices.IndexFunc(s.joiners, func(j *joiner) bool { return sameJoiner(j.Member, node) })
	if i < 0 {
		if len(s.joiners) == 0 {
			s.noted, s.since = now, now
		}
		i = len(s.joiners)
		s.joiners = append(s.joiners, &joiner{Member: node})
		s.do(Asked{Member: node, Missing: s.missingJoiners()})
	}
	j := s.joiners[i]
	j.Member, j.heard = node, now
	// The last joiner gets its id at once, over a connection with the scheduler's identity.
	if answer && j.guest == 0 && node.Protocol > 0 && s.missingJoiners() != nil {
		j.guest = s.guest(node)
		s.sendMissing(j)
	}
}

// missingJoiners lists the nodes that the cluster still lacks, nil if it is complete.
func (s *Scheduler) missingJoiners() []string {
	workers, servers := s.c.Workers, s.c.Servers
	for _, j := range s.joiners {
		if j.Role == RoleWorker {
			workers--
		} else {
			servers--
		}
	}
	var missing []string
	if workers > 0 {
		missing = append(missing, count(workers, "worker"))
	}
	if servers > 0 {
		missing = append(missing, count(servers, "server"))
	}
	return missing
}

func (s *Scheduler) sendMissing(j *joiner) {
	s.do(Send{ID: j.guest, Meta: &pspb.Meta{Own: &pspb.Meta_Waiting{Waiting: &pspb.Waiting{
		What: proto.String("join"), Missing: s.missingJoiners(), Incarnation: proto.Uint64(j.Incarnation),
	}}}})
}

// tickJoin removes joiners that no longer ask, and sends the names of the missing nodes to the others.
func (s *Scheduler) tickJoin(now time.Time) {
	s.asked = 0
	s.joiners = slices.DeleteFunc(s.joiners, func(j *joiner) bool {
		silent := j.asksAgain() && now.Sub(j.heard) > silentJoiner
		if silent {
			s.do(Note{Text: fmt.Sprintf("forgot the %v at %s:%d: it does not answer. It ended, or cannot be reached at that address (DMLC_NODE_HOST)",
				j.Role, j.Host, j.Port)})
			if j.guest != 0 {
				s.do(Disconnect{ID: j.guest, Now: true})
			}
		}
		return silent
	})
	if len(s.joiners) == 0 {
		return
	}
	if s.assign(now); s.state != gathering {
		return
	}
	if now.Sub(s.noticed) >= tickTime {
		s.noticed = now
		for _, j := range s.joiners {
			if j.guest != 0 {
				s.sendMissing(j)
			}
		}
	}
	if now.Sub(s.noted) >= noticeTime {
		s.noted = now
		s.do(Waited{What: "join", Missing: s.missingJoiners(), Level: joinLevel(now.Sub(s.since))})
	}
}

// joinLevel is the log level of the report of missing nodes after such a wait.
func joinLevel(waited time.Duration) slog.Level {
	if waited < startTime {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// assign assigns ids to all joiners once the cluster is complete, and sends them the list of
// nodes. Joiners with a requested rank come first, in that order; the others follow by host
// and port, as in ps-lite. Further customers of a process have the same id, and each takes
// up a rank.
func (s *Scheduler) assign(now time.Time) {
	if s.missingJoiners() != nil || now.Before(s.mayAssign()) {
		return
	}
	slices.SortFunc(s.joiners, func(a, b *joiner) int {
		// Place 0 means any; minus 1 it wraps to the largest number, which sorts last.
		return cmp.Or(cmp.Compare(a.Place-1, b.Place-1), strings.Compare(a.Host, b.Host), a.Port-b.Port, a.Customer-b.Customer)
	})
	var all []*pspb.Node
	for i, j := range s.joiners {
		if i > 0 && sameAddress(j.Member, s.joiners[i-1].Member) {
			j.ID = s.joiners[i-1].ID
			s.members[j.ID].Customers++
		} else {
			j.ID, j.Customers = s.next[j.Role], 1
			s.members[j.ID] = &member{Member: j.Member, heard: now, beats: j.Protocol > 0}
		}
		s.next[j.Role] += 2
	}
	s.divideSumming()
	for _, m := range s.members {
		s.fastest = max(s.fastest, m.LinkRate)
	}
	for _, j := range s.joiners {
		j.Share = s.members[j.ID].Share
		all = append(all, nodeOf(j.Member))
	}
	all = append(all, nodeOf(s.self))
	s.state = running
	s.view = s.makeView()
	s.beginBackups()
	s.planner.shares = s.view.Shares()
	if s.outlives() {
		s.history = newHistory(s.next, s.planner.shares, s.ledger.agreed)
		s.history.replicates, s.history.backups = s.view.Replicates, s.backups.clone()
	}
	s.do(Identify{ID: s.self.ID})
	s.do(Joined{View: s.view})
	if s.c.Recovers && !s.view.Recovers {
		s.do(Note{Text: "FPTPS_RECOVERY=1 has no effect in a cluster of ps-lite's classes: the place of a dead node is kept for a successor (FPTPS_RECOVERY_TIMEOUT)"})
	}
	if s.c.Replicas > 0 && !s.view.Recovers {
		s.do(Note{Text: fmt.Sprintf("FPTPS_REPLICAS=%d has no effect without FPTPS_RECOVERY=1: the first death ends the cluster", s.c.Replicas)})
	}
	if s.c.MinWorkers > 1 && !s.view.Recovers {
		s.do(Note{Text: fmt.Sprintf("FPTPS_MIN_WORKERS=%d has no effect without FPTPS_RECOVERY=1: the first death ends the cluster", s.c.MinWorkers)})
	}
	if s.c.MaxWorkers > s.c.Workers && !s.view.Recovers {
		s.do(Note{Text: fmt.Sprintf("FPTPS_MAX_WORKERS=%d has no effect without FPTPS_RECOVERY=1: no further workers can come", s.c.MaxWorkers)})
	}
	for _, id := range s.ids() {
		m := s.members[id]
		s.do(Connect{ID: id, Host: m.Host, Port: m.Port})
		s.send(id, s.list(all))
	}
	for _, j := range s.joiners {
		if j.guest != 0 {
			s.do(Disconnect{ID: j.guest})
		}
	}
	s.joiners = nil
}

// mayAssign is when ids may be given.
func (s *Scheduler) mayAssign() time.Time {
	if s.mayOutlive() {
		return s.first.Add(orphanTime)
	}
	return s.first
}

// list makes the answer to nodes that have joined: all nodes, and what holds for the cluster.
func (s *Scheduler) list(all []*pspb.Node) *pspb.Meta {
	list := &pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.AddNode), Node: all}, Epoch: positive(uint32(s.epoch)), FastestLink: positive(s.fastest)}
	if s.view.Replans {
		list.Replans = proto.Bool(true)
	}
	if s.view.Recovers {
		list.Recovers = proto.Bool(true)
	}
	if s.view.Replicates {
		list.Replicates = proto.Bool(true)
	}
	if s.history != nil {
		list.SchedulerTimeout = proto.Uint64(uint64(s.c.SchedulerTimeout.Milliseconds()))
		list.Known = s.history.encode(s.finals > 0)
	}
	return list
}

// outlives reports whether the cluster goes on after the death of its scheduler, once another is started. What a program of the scheduler has done
// in barriers another one cannot know.
func (s *Scheduler) outlives() bool {
	return s.view.Recovers && s.mayOutlive()
}

// mayOutlive reports whether its settings permit that.
func (s *Scheduler) mayOutlive() bool {
	return s.c.Recovers && s.c.SchedulerTimeout > 0 && !s.c.Attends
}

func (s *Scheduler) makeView() View {
	v := View{Self: s.self.ID, Token: s.token, Epoch: s.epoch, Replans: s.planner.active}
	for _, id := range s.ids() {
		v.Members = append(v.Members, s.members[id].Member)
	}
	v.Members = append(v.Members, s.self)
	v.Recovers = s.c.Recovers && !v.Classic() && !v.PSLite()
	v.Replicates = v.Recovers && s.c.Replicas > 0
	return v
}
