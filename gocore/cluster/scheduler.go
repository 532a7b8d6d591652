package cluster

import (
	"crypto/subtle"
	"fmt"
	"slices"
	"time"

	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

const (
	// noticeTime is how long something may wait before those who wait are told whom
	// for, and again after the same time.
	noticeTime = 5 * time.Second
	// startTime is what processes may take from their start to their join (imports,
	// data sets) before it is a warning that some have not come.
	startTime = 15 * time.Second
	// tickTime is the longest time between two calls of Tick.
	tickTime = time.Second
	// stallTime without a Tick is this process's own standstill (a stopped process,
	// a suspended machine), which says nothing about the others.
	stallTime = 3 * time.Second
	// suspectTime is what a dead process's connection to the scheduler gets to end
	// by itself before a broken connection between two nodes is a verdict.
	suspectTime = 200 * time.Millisecond
	// maxStrays bounds the senders whose nonsense is noted, and the memory of them.
	maxStrays = 100
)

// Scheduler is the state machine of a cluster: no IO, no clock, no goroutine.
// Each call gives what is to be done, in order.
type Scheduler struct {
	c     Config
	self  Member
	token [16]byte
	state state
	out   []Action

	ticked time.Time // last Tick

	// gathering
	joiners []*joiner // in the order they came; never more than make the cluster
	guests  int       // ids given to guests so far: -1, -2, ...
	asked   int       // refusals sent since the last Tick
	noticed time.Time // last Waiting "join"
	noted   time.Time // last Note of who is missing
	since   time.Time // when the oldest joiner came

	// running
	view       View
	applicants []Member        // ps-lite programs that wait for a place to become free
	members    map[int]*member // all but the scheduler
	barriers   []*barrier      // those that somebody waits in, oldest first
	finals     int             // completed barriers of everyone: the first is the start, the second the end
	ledger     *ledger
	suspects   []suspicion

	strays map[string]bool // senders that have been noted
	counts SchedulerCounts
}

// SchedulerCounts are counts since the start.
type SchedulerCounts struct {
	Refused uint64 // joiners turned away
	Strays  uint64 // messages that no node of this cluster sends
}

type state uint8

const (
	gathering state = iota // ADD_NODE
	running
	ended // in good order or by a verdict; whatever comes is ignored
)

// member is a node that has its id.
type member struct {
	Member
	heard time.Time
	beats bool // silence counts: a ps-lite program's only after its first heartbeat

	died time.Time // of a Vacant one
	why  string
}

// suspicion is a node's word that its data connection to another one broke.
type suspicion struct {
	id, by int
	why    string
	at     time.Time
}

// judged is when a node that has heard no verdict judges the suspicion itself.
func (o suspicion) judged() time.Time {
	if o.id == wire.SchedulerID {
		return o.at.Add(lastWordTime)
	}
	return o.at.Add(verdictTime)
}

// NewScheduler makes the machine of a cluster of c.Workers and c.Servers. The
// token has to be random, another one in every run.
func NewScheduler(c Config, token [16]byte) *Scheduler {
	self := Member{
		ID: wire.SchedulerID, Role: RoleScheduler, Host: c.SchedulerHost, Port: c.SchedulerPort,
		DataPort: c.DataPort, Incarnation: c.Incarnation, Protocol: Protocol, Customers: 1,
	}
	return &Scheduler{
		c: c, self: self, token: token, members: map[int]*member{}, strays: map[string]bool{},
		ledger: newLedger(c.Workers),
	}
}

// Counts gives the counters.
func (s *Scheduler) Counts() SchedulerCounts { return s.counts }

// Step takes a message. from is the id that its sender claims, 0 for none.
func (s *Scheduler) Step(now time.Time, from int, m *pspb.Meta) []Action {
	s.step(now, from, m)
	return s.take()
}

func (s *Scheduler) step(now time.Time, from int, m *pspb.Meta) {
	if s.state == ended {
		return
	}
	if m.GetControl().GetCmd() == pspb.AddNode {
		s.stepAddNode(now, from, m)
		return
	}
	sender := s.members[from]
	if sender == nil || sender.Vacant {
		s.stray(fmt.Sprintf("node %d", from), "no node of this cluster has this id")
		return
	}
	if sender.Protocol > 0 && subtle.ConstantTimeCompare(m.GetToken(), s.token[:]) == 0 {
		s.stray(Name(from), "a message without this cluster's token: a process of an earlier run?")
		return
	}
	sender.heard = now
	if IsMail(m) {
		s.do(Deliver{From: sender.Member})
		return
	}
	switch own := m.GetOwn().(type) {
	case *pspb.Meta_Declare:
		s.stepDeclare(now, sender, own.Declare)
		return
	case *pspb.Meta_Suspect:
		s.stepSuspect(now, sender, own.Suspect)
		return
	}
	switch {
	case m.GetControl().GetCmd() == pspb.Barrier && m.GetRequest():
		s.stepBarrier(now, sender, m)
	case m.GetControl().GetCmd() == pspb.Heartbeat:
		sender.beats = true
		s.send(from, heartbeat(s.self))
	default:
		s.stray(Name(from), "a message that means nothing to the scheduler")
	}
}

// Gone says that the process of a node has certainly ended, or has left without
// waiting for the others.
func (s *Scheduler) Gone(now time.Time, id int, why string) []Action {
	if m := s.members[id]; m != nil && !m.Vacant && s.state == running {
		s.verdict(now, id, why, false)
	}
	return s.take()
}

// Tick lets time pass; to be called every second, and at Due.
func (s *Scheduler) Tick(now time.Time) []Action {
	if gap := now.Sub(s.ticked); !s.ticked.IsZero() && gap > stallTime {
		s.forgive(gap)
	}
	s.ticked = now
	switch s.state {
	case gathering:
		s.tickJoin(now)
	case running:
		s.tickSuspects(now)
		s.tickHeartbeats(now)
		s.tickVacancies(now)
		s.tickBarriers(now)
		s.tickDeclarations(now)
	}
	return s.take()
}

// Due is when Tick has something to do before its usual second is over; zero: nothing.
func (s *Scheduler) Due() time.Time {
	var due time.Time
	if s.state == running {
		for _, suspect := range s.suspects {
			if at := suspect.at.Add(suspectTime); due.IsZero() || at.Before(due) {
				due = at
			}
		}
	}
	return due
}

// forgive takes the time in which this process stood still off everyone's silence.
func (s *Scheduler) forgive(gap time.Duration) {
	for _, m := range s.members {
		m.heard = m.heard.Add(gap)
	}
	for _, j := range s.joiners {
		j.heard = j.heard.Add(gap)
	}
}

// tickHeartbeats finds the node that has been silent for longest, and too long.
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
	if m := s.members[id]; m != nil && m.Vacant {
		return // it is known
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

// verdict declares a node dead: the end of the cluster, or a place to be taken by another. One that may still live is
// told too.
func (s *Scheduler) verdict(now time.Time, id int, why string, mayLive bool) {
	vacant := s.mayRecover(id)
	for _, other := range s.ids() {
		if other != id || mayLive {
			s.tell(other, lostNode(id, why, vacant))
		}
	}
	s.do(Disconnect{ID: id, Now: !mayLive})
	if vacant {
		s.vacate(now, id, why)
		return
	}
	s.state = ended
	s.do(Failed{ID: id, Why: why})
}

// ids lists the members: servers by rank, then workers by rank. Servers are told
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

// send takes a message of ps-lite's to a member that lives.
func (s *Scheduler) send(id int, m *pspb.Meta) {
	if s.members[id].Vacant {
		return
	}
	m.Token = s.token[:]
	s.do(Send{ID: id, Meta: m})
}

// tell takes a message of fptps's own to a member, if it speaks that.
func (s *Scheduler) tell(id int, m *pspb.Meta) {
	if s.members[id].Protocol > 0 {
		s.send(id, m)
	}
}

// stray counts a message that no node of this cluster sends, and notes the first of a sender.
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

// clip bounds a text that came from a peer.
func clip(text string) string {
	const most = 500
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}
