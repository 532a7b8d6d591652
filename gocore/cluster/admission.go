package cluster

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// Workers are admitted in one place of the program, to which all workers come again and again, at each step or epoch of the training. There the
// program can hand over its state. While nobody waits, coming there costs nothing. When newcomers wait,
// the scheduler asks all workers how often they have passed the place (GATHER, PASSED), and names the first time that is to come for all (MEET). Each waits
// there, without a round under way, and says so (ARRIVED). Then an epoch begins for each newcomer (ADMITTED): as after a death, all nodes report
// that they know (SURVIVED), so that no contribution reaches one that does not, before the workers go on (SETTLED).

// admission gathers the workers.
type admission struct {
	passed   map[int]uint64 // by worker
	meet     uint64         // 0: not all have answered
	arrived  map[int]wire.Rounds
	reported time.Time // when the missing workers were last named
}

// candidates lists the newcomers that could be admitted now.
func (s *Scheduler) candidates() (list []*member) {
	for _, id := range s.ids() {
		if m := s.members[id]; m.Newcomer && m.Role == RoleWorker && m.ready && s.linked(m) {
			list = append(list, m)
		}
	}
	return list
}

// admitNewcomers goes on with the admission of newcomers where that is possible: after a report, a death or a settlement.
func (s *Scheduler) admitNewcomers(now time.Time) {
	if s.state != running || s.settling != nil {
		return
	}
	s.admitServers(now)
	ready := s.candidates()
	a := s.admission
	switch {
	case len(ready) == 0:
		s.callOff("")
	case a == nil && !s.closing && s.planner.change == nil && !s.blank():
		s.admission = &admission{passed: map[int]uint64{}, arrived: map[int]wire.Rounds{}, reported: now}
		s.toWorkers(&pspb.Meta{Own: &pspb.Meta_Gather{Gather: &pspb.Gather{}}})
	case a != nil && a.meet == 0 && len(without(s.workers(), a.passed)) == 0:
		for _, points := range a.passed {
			a.meet = max(a.meet, points+1)
		}
		s.toWorkers(&pspb.Meta{Own: &pspb.Meta_Meet{Meet: &pspb.Meet{Points: proto.Uint64(a.meet)}}})
	case a != nil && a.meet > 0 && len(without(s.workers(), a.arrived)) == 0:
		s.admitAll(now, ready)
	}
}

// admitAll admits newcomers, for whom all workers wait.
func (s *Scheduler) admitAll(now time.Time, ready []*member) {
	var one wire.Rounds
	for i, id := range s.workers() {
		its := s.admission.arrived[id]
		if i > 0 && (!slices.Equal(its.Counts, one.Counts) || !slices.Equal(its.Last, one.Last)) {
			s.callOff(fmt.Sprintf("%s and %s have come to admit() with different numbers of pushes: every program has to call it at the same place", Name(s.workers()[0]), Name(id)))
			return
		}
		one = its
	}
	meet := s.admission.meet
	s.admission = nil
	for _, m := range ready {
		s.beginSettlement(now)
		m.blank = true
		s.ledger.join(m.Rank())
		s.admitOne(m, s.epoch, meet)
	}
}

// callOff ends an admission. The workers go on; if there is a reason, the newcomers end with it.
func (s *Scheduler) callOff(why string) {
	if s.admission == nil {
		return
	}
	s.admission = nil
	s.toWorkers(&pspb.Meta{Own: &pspb.Meta_Meet{Meet: &pspb.Meet{}}})
	for _, m := range s.candidates() {
		if why != "" {
			s.verdict(s.ticked, m.ID, why, true)
		}
	}
}

// blank reports whether a worker was admitted that does not know the rounds yet.
func (s *Scheduler) blank() bool {
	return slices.ContainsFunc(s.workers(), func(id int) bool { return s.members[id].blank })
}

func (s *Scheduler) stepPassed(now time.Time, from *member, own *pspb.Passed) {
	if s.admission != nil && !from.Newcomer {
		s.admission.passed[from.ID] = own.GetPoints()
		s.admitNewcomers(now)
	}
}

func (s *Scheduler) stepArrived(now time.Time, from *member, own *pspb.Arrived) {
	switch {
	case from.Newcomer:
		from.ready = true
	case s.admission != nil && own.GetPoints() == s.admission.meet:
		s.admission.arrived[from.ID] = wire.Rounds{Counts: own.GetCounts(), Last: own.GetRounds()}
	}
	s.admitNewcomers(now)
}

// stepFetched gives a worker that was admitted its share of the summing.
func (s *Scheduler) stepFetched(now time.Time, from *member) {
	if from.blank {
		from.blank = false
		s.planner.join(now, from.ID)
		s.admitNewcomers(now)
	}
}

// tickAdmission names the workers for which newcomers wait.
func (s *Scheduler) tickAdmission(now time.Time) {
	s.admitNewcomers(now)
	if a := s.admission; a != nil && now.Sub(a.reported) >= noticeTime {
		a.reported = now
		s.reportMissing(wire.Admissions, without(s.workers(), a.arrived), func(id int) bool {
			_, arrived := a.arrived[id]
			return arrived || s.members[id].Newcomer && s.members[id].ready
		})
	}
}

// Arrived reports that this node's program waits to admit newcomers, or is a newcomer that is ready; and how many rounds of each tensor have ended here.
func (p *Postoffice) Arrived(points uint64, complete wire.Rounds) {
	p.loop.do(func() {
		p.pending.ready = true
		p.send(&pspb.Meta{Own: &pspb.Meta_Arrived{Arrived: &pspb.Arrived{Points: proto.Uint64(points), Counts: complete.Counts, Rounds: complete.Last}}})
	})
}

// Fetched reports that this worker, which was admitted lately, knows the rounds.
func (p *Postoffice) Fetched() {
	p.loop.do(func() {
		p.pending.fetched = true
		p.send(fetchedMessage())
	})
}

func fetchedMessage() *pspb.Meta {
	return &pspb.Meta{Own: &pspb.Meta_Fetched{Fetched: &pspb.Fetched{}}}
}
