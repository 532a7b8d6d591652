package cluster

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"fptps/gocore/wire/pspb"
)

// finalBarriers of everyone make the life of a cluster: one at the start, one at the end.
const finalBarriers = 2

// barrier is a meeting of a group's nodes that some have come to. A scheduler without
// a program counts itself as there, always: whoever asks has its connection to it.
type barrier struct {
	group, customer int32
	app             int32
	arrived         map[arrival]bool // never empty
	since           time.Time        // since when somebody has waited who did not expect to; zero: nobody
	told            time.Time
}

// arrival is a customer of a node that has come to a barrier.
type arrival struct {
	id       int
	customer int32
}

func (s *Scheduler) stepBarrier(now time.Time, from *member, m *pspb.Meta) {
	group, customer := m.GetControl().GetBarrierGroup(), m.GetCustomerId()
	if group < 1 || group > AllGroup || !inGroup(from.Role, int(group)) {
		s.stray(Name(from.ID), fmt.Sprintf("it asks for a barrier of group %d", group))
		return
	}
	came := arrival{from.ID, customer}
	if group == AllGroup || from.Customers > 1 {
		customer = 0 // all customers of all nodes meet in one
	}
	b := s.barrier(group, customer, m.GetAppId())
	if b == nil || b.arrived[came] {
		s.stray(Name(from.ID), fmt.Sprintf("it asks twice for a barrier of group %d, or for too many", group))
		return
	}
	b.arrived[came] = true
	if b.since.IsZero() && (from.Role == RoleWorker || !inGroup(RoleWorker, int(group))) {
		// Servers go to the last barrier as soon as they are up: theirs is no wait.
		b.since, b.told = now, now
	}
	if len(s.absent(b)) == 0 {
		s.complete(b)
	}
}

// Arrive says that this node's own program has come to a barrier.
func (s *Scheduler) Arrive(group int) []Action {
	if b := s.barrier(int32(group), 0, 0); b != nil && s.state == running {
		b.arrived[arrival{s.self.ID, 0}] = true
		if len(s.absent(b)) == 0 {
			s.complete(b)
		}
	}
	return s.take()
}

// barrier finds the group's barrier, or opens it; nil when there are too many.
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

// forget takes a node that has died out of the barriers that it has come to. They wait for who takes its place.
func (s *Scheduler) forget(id int) {
	for _, b := range s.barriers {
		maps.DeleteFunc(b.arrived, func(a arrival, _ bool) bool { return a.id == id })
	}
	s.barriers = slices.DeleteFunc(s.barriers, func(b *barrier) bool { return len(b.arrived) == 0 })
}

// maxBarriers bounds the barriers open at a time: groups times the customers of ps-lite's programs.
const maxBarriers = 1024

// absent lists the nodes that b waits for.
func (s *Scheduler) absent(b *barrier) []int {
	absent := slices.DeleteFunc(s.ids(), func(id int) bool {
		return !inGroup(s.members[id].Role, int(b.group)) || b.came(id) >= s.members[id].Customers
	})
	if s.c.Attends && inGroup(RoleScheduler, int(b.group)) && b.came(s.self.ID) == 0 {
		absent = append(absent, s.self.ID)
	}
	return absent
}

// came counts the customers of a node that have come.
func (b *barrier) came(id int) int {
	n := 0
	for a := range b.arrived {
		if a.id == id {
			n++
		}
	}
	return n
}

// complete answers everyone of the group, servers first.
func (s *Scheduler) complete(b *barrier) {
	s.barriers = slices.DeleteFunc(s.barriers, func(o *barrier) bool { return o == b })
	for _, id := range s.ids() {
		if b.came(id) > 0 {
			s.send(id, barrierMessage(b.group, b.app, b.customer, false))
		}
	}
	if b.came(s.self.ID) > 0 {
		s.do(Passed{Group: int(b.group)})
	}
	if b.group == AllGroup && b.customer == 0 {
		s.finals++
		if s.finals == finalBarriers {
			s.state = ended
			s.do(Finished{})
		}
	}
}

// tickBarriers tells those who wait in a barrier whom for.
func (s *Scheduler) tickBarriers(now time.Time) {
	for _, b := range s.barriers {
		if s.state != running || b.since.IsZero() || now.Sub(b.told) < noticeTime {
			continue
		}
		b.told = now
		s.tellWaiting("barrier", s.absent(b), func(id int) bool { return b.came(id) > 0 })
	}
}

// tellWaiting names the missing nodes to those who wait.
func (s *Scheduler) tellWaiting(what string, missing []int, waits func(id int) bool) {
	names := make([]string, len(missing))
	for i, id := range missing {
		names[i] = Name(id)
	}
	for _, id := range s.ids() {
		if waits(id) {
			s.tell(id, waitingMessage(what, names))
		}
	}
	s.do(Waited{What: what, Missing: names, Level: slog.LevelWarn})
}
