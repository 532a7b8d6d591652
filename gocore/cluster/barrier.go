package cluster

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"fptps/gocore/wire/pspb"
)

// finalBarriers is the number of barriers of all nodes in the life of a cluster: one at the start, one at the end.
const finalBarriers = 2

// barrier is an open barrier of a group: at least one node has entered it. A scheduler
// without a program always counts as present.
type barrier struct {
	group, customer int32
	app             int32
	arrived         map[arrival]bool // never empty
	since           time.Time        // start of the first unexpected wait; zero: none
	reported        time.Time
}

// arrival is a customer of a node that has entered a barrier.
type arrival struct {
	id       int
	customer int32
}

func (s *Scheduler) stepBarrier(now time.Time, from *member, m *pspb.Meta) {
	group, customer := m.GetControl().GetBarrierGroup(), m.GetCustomerId()
	if group < 1 || group > AllGroup || !inGroup(from.Role, int(group)) || from.Newcomer && from.Role == RoleWorker {
		s.stray(Name(from.ID), fmt.Sprintf("it asks for a barrier of group %d", group))
		return
	}
	came := arrival{from.ID, customer}
	if group == AllGroup || from.Customers > 1 {
		customer = 0 // one barrier for all customers of all nodes
	}
	b := s.barrier(group, customer, m.GetAppId())
	if b != nil && b.arrived[came] && s.history != nil {
		return // it has said so again, as it took this scheduler for dead
	}
	if b == nil || b.arrived[came] {
		s.stray(Name(from.ID), fmt.Sprintf("it asks twice for a barrier of group %d, or for too many", group))
		return
	}
	b.arrived[came] = true
	if b.since.IsZero() && (from.Role == RoleWorker || !inGroup(RoleWorker, int(group))) {
		// Servers enter the last barrier as soon as they run; that is not an unexpected wait.
		b.since, b.reported = now, now
	}
	if len(s.absent(b)) == 0 {
		s.complete(b)
	} else if group == AllGroup && s.finals > 0 && b.came(from.ID) >= from.Customers {
		s.stepClosed(from, m.GetClosed())
	}
}

// stepWithdraw removes a customer from a barrier that has not been passed, and confirms it.
// Nobody can leave the last barrier.
func (s *Scheduler) stepWithdraw(from *member, m *pspb.Meta) {
	group, customer := m.GetControl().GetBarrierGroup(), m.GetCustomerId()
	gone := arrival{from.ID, customer}
	for _, b := range s.barriers {
		if b.group == group && group != AllGroup && b.arrived[gone] {
			delete(b.arrived, gone)
			s.closeEmptyBarriers()
			reply := barrierMessage(group, b.app, customer, false)
			reply.Own = &pspb.Meta_Withdraw{Withdraw: &pspb.Withdraw{}}
			s.sendOwn(from.ID, reply)
			return
		}
	}
}

// Arrive records that this node's own program has entered a barrier.
func (s *Scheduler) Arrive(group int) []Action {
	if b := s.barrier(int32(group), 0, 0); b != nil && s.state == running {
		b.arrived[arrival{s.self.ID, 0}] = true
		if len(s.absent(b)) == 0 {
			s.complete(b)
		}
	}
	return s.take()
}

// barrier finds or opens the barrier of a group; nil if too many are open.
func (s *Scheduler) barrier(group, customer, app int32) *barrier {
	for _, b := range s.barriers {
		if b.group == group && b.customer == customer {
			return b
		}
	}
	if len(s.barriers) >= maxBarriers {
		return nil
	}
	b := &barrier{group: group, customer: customer, app: app, arrived: map[arrival]bool{}}
	s.barriers = append(s.barriers, b)
	return b
}

// forget removes a dead node from the barriers that it has entered. They wait for its successor.
func (s *Scheduler) forget(id int) {
	for _, b := range s.barriers {
		maps.DeleteFunc(b.arrived, func(a arrival, _ bool) bool { return a.id == id })
	}
	s.closeEmptyBarriers()
}

func (s *Scheduler) closeEmptyBarriers() {
	s.barriers = slices.DeleteFunc(s.barriers, func(b *barrier) bool { return len(b.arrived) == 0 })
}

// maxBarriers bounds the open barriers: groups times the customers of ps-lite programs.
const maxBarriers = 1024

// absent lists the nodes that b waits for.
func (s *Scheduler) absent(b *barrier) []int {
	absent := slices.DeleteFunc(s.ids(), func(id int) bool {
		return !inGroup(s.members[id].Role, int(b.group)) || s.members[id].Newcomer || b.came(id) >= s.members[id].Customers
	})
	if s.c.Attends && inGroup(RoleScheduler, int(b.group)) && b.came(s.self.ID) == 0 {
		absent = append(absent, s.self.ID)
	}
	return absent
}

// came is the number of customers of a node that have entered.
func (b *barrier) came(id int) int {
	n := 0
	for a := range b.arrived {
		if a.id == id {
			n++
		}
	}
	return n
}

// complete sends all nodes of the group, servers first, the answer that the barrier is passed.
func (s *Scheduler) complete(b *barrier) {
	s.barriers = slices.DeleteFunc(s.barriers, func(o *barrier) bool { return o == b })
	s.decide(barrierMessage(b.group, b.app, b.customer, false), slices.DeleteFunc(s.ids(), func(id int) bool { return b.came(id) == 0 }))
	if b.came(s.self.ID) > 0 {
		s.do(Passed{Group: int(b.group)})
	}
	if b.group == AllGroup && b.customer == 0 {
		s.finals++
		if s.finals == finalBarriers {
			s.dismiss(b)
			s.state = ended
			s.do(Finished{})
		}
	}
}

// tickBarriers sends the nodes in a barrier the names of the missing ones.
func (s *Scheduler) tickBarriers(now time.Time) {
	for _, b := range s.barriers {
		if s.state != running || b.since.IsZero() || now.Sub(b.reported) < noticeTime {
			continue
		}
		b.reported = now
		s.reportMissing("barrier", s.absent(b), func(id int) bool { return b.came(id) > 0 })
	}
}

// reportMissing sends the names of the missing nodes to the waiting ones.
func (s *Scheduler) reportMissing(event string, missing []int, waits func(id int) bool) {
	names := make([]string, len(missing))
	for i, id := range missing {
		names[i] = Name(id)
	}
	for _, id := range s.ids() {
		if waits(id) {
			s.sendOwn(id, waitingMessage(event, names))
		}
	}
	s.do(Waited{What: event, Missing: names, Level: slog.LevelWarn})
}
