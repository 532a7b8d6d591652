package cluster

import (
	"errors"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/plan"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// A new plan takes three messages, in each worker's order: PREPARE from the scheduler, the worker's promise to begin no
// further round of any tensor, and COMMIT with each tensor's first round under the new plan, or
// ABORT. Tensors are declared in the same order: one that is declared after COMMIT starts under the new plan on all workers.

var errNoSuchNode = errors.New("a node of it is not in the cluster")

// stepCapacity takes a node's report.
func (s *Scheduler) stepCapacity(now time.Time, from *member, c *pspb.Capacity) {
	s.planner.report(now, from.ID, Capacity{
		Up: sensible(c.GetUp()), Down: sensible(c.GetDown()), Carried: sensible(c.GetCarried()),
		Processor: sensible(c.GetProcessor()), Paths: s.sensiblePaths(from.ID, c.GetPath()),
	})
}

// sensiblePaths are the paths to a node from others of the cluster, the first one from each.
func (s *Scheduler) sensiblePaths(to int, list []*pspb.Capacity_Path) map[uint32]float64 {
	paths := map[uint32]float64{}
	for _, path := range list {
		id, rate := int(path.GetNode()), sensible(path.GetRate())
		_, twice := paths[uint32(id)]
		if rate > 0 && !twice && id != to && s.members[id] != nil && s.members[id].Role != RoleScheduler {
			paths[uint32(id)] = rate
		}
	}
	return paths
}

// sensible is a rate in bytes per second that a link may have, else 0: not known.
func sensible(rate float64) float64 {
	if rate >= 1e3 && rate <= 1e12 {
		return rate
	}
	return 0
}

// tickPlans announces a better plan, and withdraws one whose promises do not come.
func (s *Scheduler) tickPlans(now time.Time) {
	if s.finals == 0 { // a node may still be connecting
		return
	}
	if c := s.planner.overdue(now); c != nil {
		s.abort(c)
		s.do(Note{Text: "a new plan was withdrawn: " + s.unpromised(c)})
	}
	if !s.mayReplan() {
		return
	}
	if c := s.planner.look(now, s.inOrder()); c != nil {
		s.toWorkers(&pspb.Meta{Own: &pspb.Meta_Prepare{Prepare: &pspb.Prepare{Plan: proto.Uint32(c.number)}}})
	}
	if s.planner.stays() {
		s.do(Kept{})
	}
}

// mayReplan reports whether a new plan can be introduced: workers hold rounds back during an admission, and new ones do not know the rounds yet.
func (s *Scheduler) mayReplan() bool { return s.admission == nil && !s.blank() }

// abort withdraws a plan.
func (s *Scheduler) abort(c *change) {
	s.toWorkers(&pspb.Meta{Own: &pspb.Meta_Abort{Abort: &pspb.Abort{Plan: proto.Uint32(c.number)}}})
}

// unpromised names the workers that have not promised.
func (s *Scheduler) unpromised(c *change) string {
	var missing []string
	for _, m := range s.inOrder() {
		if _, promised := c.promises[m.ID]; m.Role == RoleWorker && !m.Newcomer && !promised {
			missing = append(missing, Name(m.ID))
		}
	}
	return shorten(missing) + " did not answer within " + promiseTime.String()
}

func (s *Scheduler) stepPromise(now time.Time, from *member, own *pspb.Promise) {
	if from.Role != RoleWorker {
		return
	}
	begun := wire.Rounds{Counts: own.GetCounts(), Last: own.GetRounds(), Unpushed: min(own.GetUnpushed(), wire.MaxTensors)}
	c := s.planner.promised(now, from.ID, own.GetPlan(), begun, len(s.workers()))
	if c == nil {
		return
	}
	if c.vain {
		s.abort(c)
		return
	}
	all := make([]wire.Rounds, 0, len(c.promises))
	for _, promise := range c.promises {
		all = append(all, promise)
	}
	first := wire.FirstRounds(all)
	commit := &pspb.Commit{Plan: proto.Uint32(c.number), Counts: first.Counts, Rounds: first.Last}
	commit.Share = encodeShares(c.shares)
	s.toWorkers(&pspb.Meta{Own: &pspb.Meta_Commit{Commit: commit}})
	s.do(Planned{Number: c.number, Why: c.why})
}

// toWorkers sends the workers that take part a decision.
func (s *Scheduler) toWorkers(m *pspb.Meta) { s.decide(m, s.workers()) }

// inOrder lists the members that take part, as ids does.
func (s *Scheduler) inOrder() []*member {
	members := make([]*member, 0, len(s.members))
	for _, id := range s.takesPart() {
		members = append(members, s.members[id])
	}
	return members
}

// takesPart lists all nodes but newcomers.
func (s *Scheduler) takesPart() []int {
	return slices.DeleteFunc(s.ids(), func(id int) bool { return s.members[id].Newcomer })
}

// Report tells the scheduler what this node has found out about itself, its link and the paths to it.
func (p *Postoffice) Report(c Capacity) {
	var paths []*pspb.Capacity_Path
	for _, id := range slices.Sorted(maps.Keys(c.Paths)) {
		paths = append(paths, &pspb.Capacity_Path{Node: proto.Int32(int32(id)), Rate: proto.Float64(c.Paths[id])})
	}
	p.loop.do(func() {
		p.pending.capacity = &pspb.Capacity{
			Up: positive(c.Up), Down: positive(c.Down), Carried: positive(c.Carried),
			Path: paths, Processor: positive(c.Processor),
		}
		p.send(&pspb.Meta{Own: &pspb.Meta_Capacity{Capacity: p.pending.capacity}})
	})
}

// positive is a message's field, left out if x is 0.
func positive[T float64 | uint32 | uint64](x T) *T {
	if x == 0 {
		return nil
	}
	return &x
}

func (p *Postoffice) prepare(own *pspb.Prepare) {
	begun := p.events.promise()
	p.send(&pspb.Meta{Own: &pspb.Meta_Promise{Promise: &pspb.Promise{Plan: own.Plan, Counts: begun.Counts, Rounds: begun.Last, Unpushed: positive(begun.Unpushed)}}})
}

func (p *Postoffice) commit(own *pspb.Commit) {
	shares := decodeShares(own.GetShare())
	next, err := plan.New(shares)
	for _, s := range shares {
		if m := p.View().Member(int(s.Node)); m.ID == 0 || m.Role == RoleScheduler {
			err = errNoSuchNode
		}
	}
	if err != nil {
		p.lose(wire.SchedulerID, "it sent a plan that makes no sense: "+err.Error())
		return
	}
	p.events.commit(own.GetPlan(), next, wire.Rounds{Counts: own.GetCounts(), Last: own.GetRounds()})
}
