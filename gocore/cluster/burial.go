package cluster

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/plan"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// With FPTPS_RECOVERY=1 the death of a server or a worker does not end a training: the scheduler's verdict says that the cluster goes on
// without it, and each worker divides its packets among the nodes that are left (kv.Worker.Bury). That is possible as long as
// aggregators have nothing that no worker has. After the death of a worker the others have to agree on rounds: see settling.go.

// goesOnWithout reports whether a cluster goes on after the death of a node.
func (s *Scheduler) goesOnWithout(id int) bool {
	return s.view.Recovers && s.finals > 0 && s.lacks(id) == ""
}

// lacks says what a cluster that recovers would lack without a node; "" if nothing.
func (s *Scheduler) lacks(id int) string {
	worker, kept := s.members[id].Role == RoleWorker, s.kept()
	left := len(s.workers()) - 1
	switch {
	case s.members[id].Newcomer:
		return ""
	case worker && left == 0:
		return "It was the last worker"
	case worker && left < s.c.MinWorkers:
		return fmt.Sprintf("It leaves %s, and FPTPS_MIN_WORKERS=%d", count(left, "worker"), s.c.MinWorkers)
	case kept == "" || s.heir(id) != 0:
		return ""
	case worker:
		return "The rounds that it had begun cannot be repeated without it, as the aggregators keep " + kept
	}
	return "Nobody else has its part of " + kept
}

// kept names what the aggregators keep and no worker has; "" if there is nothing.
func (s *Scheduler) kept() string {
	if s.stateful != "" {
		return s.stateful
	}
	return s.ledger.stateful()
}

// stateful names the first declared tensor whose pushes live on aggregators, "" if there is none.
func (l *ledger) stateful() string {
	keys := make([]uint64, 0, len(l.agreed))
	for key, a := range l.agreed {
		if a.Row > 0 || a.Policy.Applied() != wire.Sync {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return ""
	}
	key := slices.Min(keys)
	a := l.agreed[key]
	if a.Row > 0 {
		return "the table of " + wire.KeyText(key, a.Name)
	}
	return fmt.Sprintf("the %v values of %s", a.Policy.Applied(), wire.KeyText(key, a.Name))
}

// settles reports whether an epoch begins with the death of a node.
func (s *Scheduler) settles(id int) bool {
	m := s.members[id]
	return !m.Newcomer && (m.Role == RoleWorker || s.view.Replicates)
}

// bury removes a dead node from the cluster.
func (s *Scheduler) bury(now time.Time, id int, why string) {
	rank, settles, heir := wire.RankOfWorker(id), s.settles(id), s.heir(id)
	delete(s.members, id)
	s.buried[id] = true
	s.detach(id)
	s.do(Buried{View: s.view, ID: id, Why: why})
	if rank >= 0 {
		s.answer(s.ledger.bury(rank))
	}
	if settles {
		s.beginSettlement(now)
	}
	s.backups.bury(id, heir, s.epoch)
	s.settle(now)
	if c := s.planner.bury(now, id, inherits(heir, s.takesPart())); c != nil {
		s.abort(c)
	}
	s.admitNewcomers(now)
	for _, b := range slices.Clone(s.barriers) {
		if len(s.absent(b)) == 0 {
			s.complete(b)
		}
	}
}

// bury divides the share of a dead node among its heirs, as the workers do. A change that is being introduced may give that node a
// share: bury returns it, and the caller withdraws it.
func (p *planner) bury(now time.Time, id int, heirs []int) (withdrawn *change) {
	delete(p.reports, id)
	withdrawn, p.change = p.change, nil
	if withdrawn != nil && withdrawn.again {
		p.again = now.Add(retryTime)
	}
	if withdrawn != nil {
		p.joined = append(p.joined, withdrawn.joined...)
	}
	p.joined = slices.DeleteFunc(p.joined, func(other int) bool { return other == id })
	p.shares = inherited(p.shares, uint32(id), heirs)
	if p.active {
		p.looks, p.lookTime = looks, now.Add(observeTime)
	}
	return withdrawn
}

// inherited are the shares after the heirs have got equal parts of a dead node's share.
func inherited(shares []plan.Share, dead uint32, heirs []int) (list []plan.Share) {
	n, part, most := uint64(len(heirs)), uint64(0), uint64(1)
	of := map[uint32]uint64{}
	for _, s := range shares {
		if s.Node == dead {
			part = uint64(s.Share)
		} else {
			of[s.Node] = uint64(s.Share) * n
		}
	}
	for _, id := range heirs {
		of[uint32(id)] += part
	}
	for _, share := range of {
		most = max(most, share)
	}
	for id, share := range of {
		if most > wire.MaxShare {
			share = share * wire.MaxShare / most
		}
		list = append(list, plan.Share{Node: id, Share: uint32(share)})
	}
	slices.SortFunc(list, func(a, b plan.Share) int { return int(a.Node) - int(b.Node) })
	return list
}

// buried handles the verdict that a node is dead while the cluster goes on.
func (p *Postoffice) buried(b Burial) {
	id := b.ID
	m := p.View().Member(id)
	if m.ID == 0 || m.Role == RoleScheduler {
		return
	}
	delete(p.closed, id)
	delete(p.pending.linked, id)
	p.suspects = slices.DeleteFunc(p.suspects, func(o suspicion) bool { return o.id == id })
	p.mail.change(p.View().Without(id), id)
	p.events.buried(b)
}

// Stateful tells the scheduler that the aggregators will hold something that nobody else has.
func (p *Postoffice) Stateful(what string) {
	p.loop.do(func() {
		if p.pending.stateful == "" {
			p.pending.stateful = what
		}
		p.send(statefulMessage(what))
	})
}

func statefulMessage(what string) *pspb.Meta {
	return &pspb.Meta{Own: &pspb.Meta_Stateful{Stateful: &pspb.Stateful{What: proto.String(what)}}}
}
