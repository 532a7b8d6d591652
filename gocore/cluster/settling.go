package cluster

import (
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// After the death of a worker all other nodes end their connections with it, and report that (SURVIVED), each worker with the rounds that have
// ended there: no other ends until it hears more (kv.Worker.Freeze). Once all have reported, every worker receives the largest number of
// rounds of each tensor (SETTLED): these stand, the later ones are repeated without the dead. So no contribution
// of the new epoch reaches a node that does not know of the death, and no worker repeats a round that has ended on another.
// Another death in the meantime begins a new settlement in the place of this one. The admission of a worker is settled alike, but no
// round has to be repeated for it.

// settlement waits for the reports about an epoch.
type settlement struct {
	epoch    int
	reports  map[int]report
	reported time.Time // when the missing nodes were last named
}

// report has the rounds that have ended on a node; blank: it does not know them.
type report struct {
	wire.Rounds
	blank bool
}

func (s *Scheduler) beginSettlement(now time.Time) {
	s.epoch++
	s.settling = &settlement{epoch: s.epoch, reports: map[int]report{}, reported: now}
}

func (s *Scheduler) stepSurvived(now time.Time, from *member, own *pspb.Survived) {
	if from.Newcomer {
		from.knows = int(own.GetEpoch())
		s.admitNewcomers(now)
		return
	}
	if s.settling == nil || int(own.GetEpoch()) != s.settling.epoch { // another death came meanwhile, about which it will report too
		return
	}
	s.settling.reports[from.ID] = report{wire.Rounds{Counts: own.GetCounts(), Last: own.GetRounds()}, own.GetBlank()}
	s.settle(now)
}

// settle ends a settlement if all nodes have reported.
func (s *Scheduler) settle(now time.Time) {
	if s.settling == nil || len(s.unsettled()) > 0 {
		return
	}
	var all []wire.Rounds
	for _, id := range s.workers() {
		if r := s.settling.reports[id]; !r.blank {
			all = append(all, r.Rounds)
		}
	}
	s.settling = nil
	most := wire.MostRounds(all)
	s.toWorkers(&pspb.Meta{Own: &pspb.Meta_Settled{Settled: &pspb.Settled{Counts: most.Counts, Rounds: most.Last}}})
	s.admitNewcomers(now)
}

// unsettled lists the nodes whose reports are missing.
func (s *Scheduler) unsettled() []int { return without(s.takesPart(), s.settling.reports) }

// without lists those of some ids, or ranks, that have nothing in a map.
func without[V any](ids []int, has map[int]V) (missing []int) {
	for _, id := range ids {
		if _, found := has[id]; !found {
			missing = append(missing, id)
		}
	}
	return missing
}

// tickSettlement tells the workers which nodes are missing.
func (s *Scheduler) tickSettlement(now time.Time) {
	if s.settling == nil || now.Sub(s.settling.reported) < noticeTime {
		return
	}
	s.settling.reported = now
	s.reportMissing(wire.Deaths, s.unsettled(), func(id int) bool { return s.members[id].Role == RoleWorker })
}

// Survived reports that this node has handled a death or an admission, with which an epoch begins, and how many rounds of each tensor have ended
// there; blank: it does not know them.
func (p *Postoffice) Survived(epoch int, complete wire.Rounds, blank bool) {
	own := &pspb.Survived{Epoch: proto.Uint32(uint32(epoch)), Counts: complete.Counts, Rounds: complete.Last}
	if blank {
		own.Blank = proto.Bool(true)
	}
	p.loop.do(func() {
		p.pending.survived = own
		p.send(&pspb.Meta{Own: &pspb.Meta_Survived{Survived: own}})
	})
}

func (p *Postoffice) settled(own *pspb.Settled) {
	p.endStall(wire.Deaths)
	p.events.settled(wire.Rounds{Counts: own.GetCounts(), Last: own.GetRounds()})
}
