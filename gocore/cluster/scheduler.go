package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

const (
	// noticeTime is how long a barrier or a declaration may wait before the waiting nodes
	// receive the names of the missing ones, and the time until they receive them again.
	noticeTime = 5 * time.Second
	// startTime is how long processes may take from their start to their join (imports,
	// data sets) before the scheduler warns that some are missing.
	startTime = 15 * time.Second
	// tickTime is the longest time between two calls of Tick.
	tickTime = time.Second
	// stallTime without a Tick means that this process stood still (it was stopped, or
	// its machine suspended), so that it cannot conclude that the others were silent.
	stallTime = 3 * time.Second
	// suspectTime is how long the scheduler waits after a suspicion for its own connection
	// with the suspect to end, before it passes a verdict on the suspicion alone.
	suspectTime = 200 * time.Millisecond
	// maxStrays bounds the senders of strays that are remembered, each of which is logged once.
	maxStrays = 100
)

// Scheduler is the state machine of a cluster: no IO, no clock, no goroutine.
// Each call returns the actions to carry out, in order.
type Scheduler struct {
	c     Config
	self  Member
	token [16]byte
	state state
	out   []Action

	ticked time.Time // last Tick

	// gathering
	joiners []*joiner // in the order in which they came; never more than the cluster has nodes
	guests  int       // ids given to guests so far: -1, -2, ...
	asked   int       // refusals sent since the last Tick
	first   time.Time // when the first message came, or the first Tick
	noticed time.Time // last Waiting "join"
	noted   time.Time // last Note that names the missing nodes
	since   time.Time // when the oldest joiner came

	// running
	view       View
	applicants []Member        // ps-lite programs that wait for a place to become free
	members    map[int]*member // all but the scheduler
	barriers   []*barrier      // open ones, oldest first
	finals     int             // completed barriers of all nodes: the first is at the start, the second at the end
	ledger     *ledger
	suspects   []suspicion
	acks       *acks
	planner    planner
	backups    backups      // see backup.go
	stateful   string       // what only the aggregators have, "": nothing; see burial.go
	buried     map[int]bool // the dead nodes without which the cluster goes on
	history    *history     // of the decisions; nil: the cluster ends with its scheduler
	resumption *resumption  // while state is resuming
	epoch      int          // workers that have died or were admitted so far, with replicas also servers that have died
	settling   *settlement  // after the last of these; nil: it is settled
	fastest    uint64       // see View.FastestLink
	next       map[Role]int // the id of the next node: none is used twice
	admission  *admission   // of newcomers; nil: none is under way
	closing    bool         // a worker waits in the last barrier

	progress map[int]*reports // by node
	past     Totals           // of nodes that have died
	died     uint64           // how many have
	deaths   []Death          // the last of them
	answers  answers          // to those that ask for the status

	strays map[string]bool // senders that have been noted
	counts SchedulerCounts
}

// SchedulerCounts are counts since the start.
type SchedulerCounts struct {
	Refused uint64 // joiners that were refused
	Strays  uint64 // messages that no node of this cluster sends
}

type state uint8

const (
	gathering state = iota // ADD_NODE
	resuming               // a cluster whose scheduler has died: see resume.go
	running
	ended // in good order or by a verdict; all later messages are ignored
)

// member is a node that has its id.
type member struct {
	Member
	heard time.Time
	beats bool // it sends heartbeats, so that silence means death; of a ps-lite program known only from its first one

	given int          // the share of the summing that it has set; Unset: none
	links map[int]bool // of a newcomer: the nodes that have their connections with it
	knows int          // a newcomer: the last epoch that it has reported, or with which it came
	ready bool         // a newcomer: its program waits to be admitted
	blank bool         // it was admitted, and does not know the rounds yet
	has   uint64       // the last decision that it has handled
	away  bool         // it has not announced itself to this scheduler: nothing can be sent to it

	died time.Time // when a Vacant member was declared dead
	why  string    // and the reason
}

// suspicion is a node's report that its data connection with another one broke.
type suspicion struct {
	id, by int
	why    string
	at     time.Time
}

// NewScheduler makes the scheduler of a cluster of c.Workers and c.Servers. The
// token has to be random, and new in every run.
func NewScheduler(c Config, token [16]byte) *Scheduler {
	self := Member{
		ID: wire.SchedulerID, Role: RoleScheduler, Host: c.SchedulerHost, Port: c.SchedulerPort,
		DataPort: c.DataPort, Incarnation: c.Incarnation, Protocol: Protocol, Customers: 1,
	}
	return &Scheduler{
		c: c, self: self, token: token, members: map[int]*member{}, strays: map[string]bool{}, progress: map[int]*reports{},
		buried: map[int]bool{}, next: map[Role]int{RoleServer: wire.ServerID(0), RoleWorker: wire.WorkerID(0)}, ledger: newLedger(c.Workers), acks: newAcks(c.Resend, self.ID), planner: planner{reports: map[int]Capacity{}}, backups: noBackups(),
	}
}

// Counts returns the counters.
func (s *Scheduler) Counts() SchedulerCounts { return s.counts }

// Step handles a message. from is the id that its sender states, 0 for none; host is the
// address of its connection.
func (s *Scheduler) Step(now time.Time, from int, host string, m *pspb.Meta) []Action {
	s.step(now, from, host, m)
	return s.take()
}

func (s *Scheduler) step(now time.Time, from int, host string, m *pspb.Meta) {
	if ask := m.GetStatusAsk(); ask != nil {
		s.stepStatusAsk(now, ask)
		return
	}
	if s.state == ended {
		return
	}
	if s.first.IsZero() {
		s.first = now
	}
	if m.GetControl().GetCmd() == pspb.AddNode {
		s.stepAddNode(now, from, host, m)
		return
	}
	if own := m.GetAnnounce(); own != nil {
		s.stepAnnounce(now, from, host, m)
		return
	}
	sender := s.members[from]
	if s.buried[from] {
		return // it may have lived on for a while
	}
	if sender == nil || sender.Vacant {
		s.stray(fmt.Sprintf("node %d", from), "no node of this cluster has this id")
		return
	}
	if sender.Protocol > 0 && !isOf(m, s.token, sender.Member) {
		s.stray(Name(from), "it is not this cluster's process of that name: one of an earlier run, or one that was given up as dead?")
		return
	}
	sender.heard = now
	answer, done := s.acks.take(sender.Member, m)
	if answer != nil {
		s.send(from, answer)
	}
	if done {
		return
	}
	if IsMail(m) {
		s.do(Deliver{From: sender.Member})
		return
	}
	if s.history != nil {
		if m.GetTerm() != s.history.term() {
			return // it was for the scheduler before this one; what its sender waits for it says again
		}
		sender.has = max(sender.has, min(m.GetDecision(), s.history.number))
	}
	switch own := m.GetOwn().(type) {
	case *pspb.Meta_Declare:
		s.stepDeclare(now, sender, own.Declare)
		return
	case *pspb.Meta_Batch:
		var list []*pspb.Declare
		for _, m := range own.Batch.GetMessage() {
			if d, ok := m.GetOwn().(*pspb.Meta_Declare); ok {
				list = append(list, d.Declare)
			}
		}
		s.stepDeclare(now, sender, list...)
		return
	case *pspb.Meta_Suspect:
		s.stepSuspect(now, sender, own.Suspect)
		return
	case *pspb.Meta_Leave:
		s.stepLeave(now, sender, own.Leave)
		return
	case *pspb.Meta_Withdraw:
		s.stepWithdraw(sender, m)
		return
	case *pspb.Meta_Capacity:
		s.stepCapacity(now, sender, own.Capacity)
		return
	case *pspb.Meta_Progress:
		s.stepProgress(now, sender, own.Progress)
		return
	case *pspb.Meta_Promise:
		s.stepPromise(now, sender, own.Promise)
		return
	case *pspb.Meta_Survived:
		s.stepSurvived(now, sender, own.Survived)
		return
	case *pspb.Meta_Linked:
		s.stepLinked(now, sender, own.Linked)
		return
	case *pspb.Meta_Passed:
		s.stepPassed(now, sender, own.Passed)
		return
	case *pspb.Meta_Arrived:
		s.stepArrived(now, sender, own.Arrived)
		return
	case *pspb.Meta_Fetched:
		s.stepFetched(now, sender)
		return
	case *pspb.Meta_BackedUp:
		s.stepBackedUp(sender, own.BackedUp)
		return
	case *pspb.Meta_Doing:
		s.stepDoing(now, sender, own.Doing)
		return
	case *pspb.Meta_Stateful:
		if s.stateful == "" {
			s.stateful = clip(own.Stateful.GetWhat())
			if s.history != nil {
				s.decide(statefulMessage(s.stateful), nil)
			}
		}
		return
	}
	switch {
	case m.GetControl().GetCmd() == pspb.Barrier && m.GetRequest():
		s.stepBarrier(now, sender, m)
	case m.GetControl().GetCmd() == pspb.Heartbeat:
		sender.beats = true
		answer := heartbeat(s.self)
		if m.GetClock() != nil && s.c.Trace != nil {
			clock(answer, m.GetClock().GetSent(), s.c.Trace.Now())
		}
		s.send(from, answer)
	default:
		s.stray(Name(from), "a message that means nothing to the scheduler")
	}
}

// Gone handles the certain end of a process, or its leaving without waiting for the
// others. It ignores a process whose successor has already joined.
func (s *Scheduler) Gone(now time.Time, id int, incarnation uint64, why string) []Action {
	return s.gone(now, id, incarnation, why, false)
}

// Unreachable is Gone for a process that may still live: it hears that it was given up.
func (s *Scheduler) Unreachable(now time.Time, id int, incarnation uint64, why string) []Action {
	return s.gone(now, id, incarnation, why, true)
}

func (s *Scheduler) gone(now time.Time, id int, incarnation uint64, why string, mayLive bool) []Action {
	if m := s.members[id]; m != nil && !m.Vacant && m.Incarnation == incarnation && s.state == running {
		s.verdict(now, id, why, mayLive)
	}
	return s.take()
}

// incarnation returns the incarnation of the member with an id, 0 if there is none.
func (s *Scheduler) incarnation(id int) uint64 {
	if m := s.members[id]; m != nil {
		return m.Incarnation
	}
	return 0
}

// Tick lets time pass; the caller calls it every second, and at Due.
func (s *Scheduler) Tick(now time.Time) []Action {
	if gap := now.Sub(s.ticked); !s.ticked.IsZero() && gap > stallTime {
		s.forgive(gap)
	}
	s.ticked = now
	if s.first.IsZero() {
		s.first = now
	}
	switch s.state {
	case gathering:
		s.tickJoin(now)
	case resuming:
		s.tickResumption(now)
	case running:
		s.settleHistory()
		s.tickSuspects(now)
		s.tickHeartbeats(now)
		s.tickVacancies(now)
		s.tickSettlement(now)
		s.tickAdmission(now)
		s.tickBarriers(now)
		s.tickDeclarations(now)
		s.tickPlans(now)
	}
	return s.take()
}

// Due is when Tick has something to do before its usual second is over; the zero time if nothing.
func (s *Scheduler) Due() time.Time {
	var due time.Time
	if s.state == gathering && len(s.joiners) > 0 && s.missingJoiners() == nil {
		return s.mayAssign()
	}
	if s.state == running {
		if s.finals > 0 && (s.planner.change != nil || s.mayReplan()) {
			due = s.planner.due()
		}
		for _, suspect := range s.suspects {
			if at := suspect.at.Add(suspectTime); due.IsZero() || at.Before(due) {
				due = at
			}
		}
	}
	return due
}

// forgive subtracts the time in which this process stood still from the silence of all others.
func (s *Scheduler) forgive(gap time.Duration) {
	for _, m := range s.members {
		m.heard = m.heard.Add(gap)
	}
	for _, j := range s.joiners {
		j.heard = j.heard.Add(gap)
	}
	if s.resumption != nil {
		s.resumption.since = s.resumption.since.Add(gap)
	}
}

// tickHeartbeats passes the verdict on the node that has been silent for longest, if that is too long.
func (s *Scheduler) tickHeartbeats(now time.Time) {
	if !s.c.beats() || s.state != running {
		return
	}
	var dead *member
	for _, id := range s.ids() {
		m := s.members[id]
		if m.beats && !m.Vacant && now.Sub(m.heard) > s.c.HeartbeatTimeout && (dead == nil || m.heard.Before(dead.heard)) {
			dead = m
		}
	}
	if dead != nil {
		s.verdict(now, dead.ID, fmt.Sprintf("it was silent for %v", now.Sub(dead.heard).Round(time.Second)), true)
	}
}

func (s *Scheduler) stepSuspect(now time.Time, by *member, m *pspb.Suspect) {
	id := int(m.GetId())
	if o := s.members[id]; s.buried[id] || o != nil && (o.Vacant || o.Incarnation != m.GetIncarnation()) {
		return // that process is known to be dead
	}
	if s.members[id] == nil || id == by.ID {
		s.stray(Name(by.ID), fmt.Sprintf("it suspects %s", Name(id)))
		return
	}
	if !slices.ContainsFunc(s.suspects, func(o suspicion) bool { return o.id == id }) {
		s.suspects = append(s.suspects, suspicion{id: id, by: by.ID, why: clip(m.GetWhy()), at: now})
	}
}

func (s *Scheduler) tickSuspects(now time.Time) {
	for _, o := range s.suspects {
		if now.Sub(o.at) >= suspectTime {
			why := fmt.Sprintf("the connection between %s and %s broke: %s", Name(o.by), Name(o.id), o.why)
			s.verdict(now, o.id, why, true)
			return
		}
	}
}

// verdict declares a node dead. The cluster ends, goes on, or waits for a successor. A node that may still live (mayLive) receives
// its own verdict too.
func (s *Scheduler) verdict(now time.Time, id int, why string, mayLive bool) {
	goesOn := s.goesOnWithout(id)
	if what := s.lacks(id); s.view.Recovers && what != "" {
		why += ". " + what
	}
	vacant := s.mayRecover(id)
	for _, other := range s.ids() {
		if other == id && mayLive || other != id && !goesOn {
			s.sendOwn(other, lostNode(s.members[id].Member, why, vacant))
		}
	}
	if goesOn {
		lost := lostNode(s.members[id].Member, why, false)
		lost.GetLost().Buried = proto.Bool(true)
		if s.settles(id) {
			lost.GetLost().Epoch = proto.Uint32(uint32(s.epoch + 1))
		}
		if heir := s.heir(id); heir != 0 {
			lost.GetLost().Heir = proto.Int32(int32(heir))
		}
		s.decide(lost, slices.DeleteFunc(s.ids(), func(other int) bool { return other == id }))
	}
	s.noteDeath(now, id, why)
	s.do(Disconnect{ID: id, Now: !mayLive})
	switch {
	case goesOn:
		s.bury(now, id, why)
		return
	case vacant:
		s.vacate(now, id, why)
		return
	}
	s.state = ended
	s.do(Failed{ID: id, Why: why})
}

// ids lists the members: servers by rank, then workers by rank. Messages go to servers
// first, so that they are ready before a worker's first request reaches them.
func (s *Scheduler) ids() []int {
	ids := make([]int, 0, len(s.members))
	for id := range s.members {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b int) int {
		if a%2 != b%2 {
			return a%2 - b%2
		}
		return a - b
	})
	return ids
}

// workers lists the workers that take part.
func (s *Scheduler) workers() (ids []int) {
	for _, id := range s.ids() {
		if m := s.members[id]; m.Role == RoleWorker && !m.Newcomer {
			ids = append(ids, id)
		}
	}
	return ids
}

// send sends a message to a member, unless that is dead.
func (s *Scheduler) send(id int, m *pspb.Meta) {
	if s.members[id].Vacant || s.members[id].away {
		return
	}
	m.Token, m.Incarnation = s.token[:], proto.Uint64(s.self.Incarnation)
	if s.history != nil {
		m.Stable = positive(s.history.stable)
	}
	s.acks.stamped(s.members[id].Member, m)
	s.do(Send{ID: id, Meta: m})
}

// sendOwn sends a message that only fptps knows to a member, unless that is a ps-lite program.
func (s *Scheduler) sendOwn(id int, m *pspb.Meta) {
	if s.members[id].Protocol > 0 {
		s.send(id, m)
	}
}

// stray counts a message that no node of this cluster sends, and logs the first of each sender.
func (s *Scheduler) stray(sender, why string) {
	s.counts.Strays++
	if !s.strays[sender] && len(s.strays) < maxStrays {
		s.strays[sender] = true
		s.do(Note{Text: fmt.Sprintf("dropped a message of %s: %s (more of them are counted only)", sender, why)})
	}
}

func (s *Scheduler) do(a Action) { s.out = append(s.out, a) }

func (s *Scheduler) take() []Action {
	out := s.out
	s.out = nil
	return out
}

// clip makes one line of bounded length from a text of a peer, or for one.
func clip(text string) string { return line(text, 500) }

// line is clip with another bound, in bytes.
func line(text string, most int) string {
	short := text[:min(len(text), most)]
	one := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(short, ""))
	if len(text) > most {
		one += "..."
	}
	return strings.TrimSpace(one)
}
