package cluster

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/wire"
)

// begun starts a cluster that recovers, past its first barrier.
func (b *bench) begun(workers, servers int) (w, s []*Postoffice) {
	b.t.Helper()
	b.config.Recovers = true
	w, s = b.start(workers, servers)
	b.each(workers+servers, func(i int) error { return awaitBarrier(append(w, s...)[i], AllGroup) })
	return w, s
}

// come has a newcomer join, and all others report their connections with it.
func (b *bench) come(role Role, host string, others ...*Postoffice) *Postoffice {
	b.t.Helper()
	p, err := b.join(context.Background(), role, host, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	time.Sleep(time.Second)
	for _, other := range others {
		m := other.View().Member(p.View().Self)
		if !m.Newcomer || m.Incarnation != p.View().Me().Incarnation {
			b.t.Errorf("%s knows %+v", Name(other.View().Self), m)
		}
		other.Linked(m)
	}
	time.Sleep(time.Second)
	return p
}

func (b *bench) hears(p *Postoffice, want ...string) {
	b.t.Helper()
	synctest.Wait()
	if got := b.records[p].changes; fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		b.t.Errorf("%s hears %q, expected %q", Name(p.View().Self), got, want)
	}
}

// settledAt is what was decided about rounds, as a node has heard.
func (b *bench) settledAt(p *Postoffice) []string {
	synctest.Wait()
	return b.records[p].settled
}

// A server that comes is a member once all others have their connections with it.
func TestAServerComes(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		b.config.LinkRate = 5e9
		w, s := b.begun(2, 1)
		b.config.LinkRate = 9e9
		late := b.come(RoleServer, "s9", w[0], w[1])
		for _, p := range []*Postoffice{w[0], late} { // the number of lanes follows from it
			if fastest := p.View().FastestLink; fastest != 5e9 {
				t.Errorf("the fastest link of the start has %d bit/s", fastest)
			}
		}
		if late.View().Me().Rank() != 1 || !late.View().Me().Newcomer || len(w[0].View().Servers()) != 1 {
			t.Fatalf("view %+v", late.View().Me())
		}
		b.hears(w[0], "server 1 came")
		s[0].Linked(s[0].View().Member(wire.ServerID(1)))
		time.Sleep(time.Second)
		for _, p := range append(w, s[0]) {
			b.hears(p, "server 1 came", "server 1 is admitted in epoch 0")
		}
		b.hears(late, "server 1 is admitted in epoch 0")
		if len(w[0].View().Servers()) != 2 || len(late.View().Servers()) != 2 {
			t.Errorf("view %+v", w[0].View())
		}
		ends := make(chan error, 4)
		b.end(ends, append(w, s[0], late)...)
	})
}

// TestAWorkerIsAdmitted: the workers meet at the first point that is to come for all, whatever order they answer in. A death meanwhile changes
// nothing but the epoch.
func TestAWorkerIsAdmitted(t *testing.T) {
	for _, dies := range []bool{false, true} {
		inBubble(t, 1, func(b *bench) {
			b.config.MaxWorkers = 4
			w, _ := b.begun(3, 0)
			b.records[w[0]].passed, b.records[w[1]].passed, b.records[w[2]].passed = 4, 6, 5
			late := b.come(RoleWorker, "w9", w...)
			b.hears(w[1], "worker 3 came")
			late.Arrived(0, wire.Rounds{})
			time.Sleep(time.Second)
			b.hears(w[1], "worker 3 came", "all meet at 7")
			rounds := wire.Rounds{Counts: []uint32{3}, Last: []uint64{8}}
			w[1].Arrived(7, rounds)
			w[2].Arrived(6, wire.Rounds{}) // which is not that point
			w[2].Arrived(7, rounds)
			want := []string{"worker 3 came", "all meet at 7"}
			epoch := 1
			if dies {
				b.die(w[0])
				time.Sleep(2 * verdictTime)
				want = append(want, "worker 0 is buried: its connection was reset")
				for _, p := range w[1:] {
					p.Survived(1, rounds, false)
				}
				epoch = 2
			} else {
				w[0].Arrived(7, rounds)
			}
			time.Sleep(time.Second)
			b.hears(w[1], append(want, fmt.Sprintf("worker 3 is admitted in epoch %d, point 7", epoch))...)
			left := w
			if dies {
				left = w[1:]
			}
			for _, p := range left {
				p.Survived(epoch, rounds, false)
			}
			time.Sleep(time.Second)
			if got := b.settledAt(late); len(got) != 0 {
				t.Errorf("settled before all have reported: %q", got)
			}
			late.Survived(epoch, wire.Rounds{}, true) // it knows no rounds, which makes nobody repeat any
			time.Sleep(time.Second)
			if got := b.settledAt(late); !slices.Equal(got, []string{"[3] [8]"}) {
				t.Errorf("settled %q", got)
			}
			ends := make(chan error, len(left)+1)
			b.end(ends, append(slices.Clone(left), late)...)
		})
	}
}

// An admission is called off if the newcomer dies, if a worker closes, or if the programs differ.
func TestAnAdmissionIsCalledOff(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(b *bench, w []*Postoffice, late *Postoffice)
		lost string // what the newcomer hears
	}{
		"the newcomer dies": {func(b *bench, _ []*Postoffice, late *Postoffice) { b.die(late) }, ""},
		"a worker closes":   {func(b *bench, w []*Postoffice, _ *Postoffice) { w[1].End(wire.Rounds{}, func(error) {}) }, ""},
		"their pushes differ": {func(b *bench, w []*Postoffice, _ *Postoffice) {
			w[0].Arrived(1, wire.Rounds{Counts: []uint32{3}, Last: []uint64{8}})
			w[1].Arrived(1, wire.Rounds{Counts: []uint32{3}, Last: []uint64{9}})
		}, "worker 2: worker 0 and worker 1 have come to admit() with different numbers of pushes: every program has to call it at the same place"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(b *bench) {
				b.config.MaxWorkers = 3
				w, _ := b.begun(2, 0)
				late := b.come(RoleWorker, "w9", w...)
				late.Arrived(0, wire.Rounds{})
				time.Sleep(time.Second)
				tc.do(b, w, late)
				time.Sleep(2 * verdictTime)
				synctest.Wait()
				if got := b.records[w[0]].changes; !slices.Contains(got, "all meet at 0") {
					t.Errorf("a worker hears %q", got)
				}
				if tc.lost != "" {
					b.wantLost(late, tc.lost)
				}
				b.wantLost(w[0])
			})
		})
	}
}

// A newcomer that was not admitted is no part of barriers and declarations, and hears of the end.
func TestANewcomerIsNotWaitedFor(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		b.config.MaxWorkers = 3
		w, _ := b.begun(2, 0)
		done := make(chan error, 2)
		declareTo(w[0], 5, wire.Tensor{Bytes: 4, DType: wire.Int32}, func(_ uint32, err error) { done <- err })
		late := b.come(RoleWorker, "w9", w...)
		otherwise := make(chan error, 1)
		declareTo(late, 5, wire.Tensor{Bytes: 8, DType: wire.Int32}, func(_ uint32, err error) { otherwise <- err })
		time.Sleep(time.Second)
		declareTo(w[1], 5, wire.Tensor{Bytes: 4, DType: wire.Int32}, func(_ uint32, err error) { done <- err })
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if err := <-otherwise; fault.CodeOf(err) != fault.Mismatch {
			t.Errorf("declared otherwise: %v", err)
		}
		declareTo(late, 5, wire.Tensor{Bytes: 4, DType: wire.Int32}, func(id uint32, err error) {
			if id != 0 || err != nil {
				t.Errorf("id %d, %v", id, err)
			}
		})
		b.each(2, func(i int) error { return awaitBarrier(w[i], WorkerGroup) })
		b.end(make(chan error, 2), w...)
		time.Sleep(time.Second)
		b.wantLost(late, "worker 2: the others have ended the training before it was admitted")
	})
}

// After a node has come the plan is that of a cluster which began with it.
func TestPlanWithAServerThatCame(t *testing.T) {
	members := onHosts("a", "a")
	p := planner{reports: map[int]Capacity{}, shares: []plan.Share{{Node: 9, Share: 1}, {Node: 11, Share: 1}}}
	for _, m := range members {
		m.given = Unset
	}
	server := &member{Member: Member{ID: 8, Role: RoleServer, Host: "a"}, given: Unset}
	now := time.Now()
	p.join(now, 8)
	c := p.look(now, append([]*member{server}, members...))
	if want := []plan.Share{{Node: 8, Share: 1}, {Node: 9}, {Node: 11}}; c == nil || !slices.Equal(c.shares, want) || c.why != "server 0 came" {
		t.Fatalf("plan %+v", c)
	}
	p.overdue(now.Add(promiseTime)) // nobody promises in time
	if again := p.look(now.Add(promiseTime+retryTime), append([]*member{server}, members...)); again == nil || !slices.Equal(again.shares, c.shares) {
		t.Errorf("no second attempt: %+v", again)
	}
	server.given, members[0].given = 3, 2
	p.change, p.joined = nil, []int{8}
	if c := p.look(now.Add(time.Minute), append([]*member{server}, members...)); !slices.Equal(c.shares, []plan.Share{{Node: 8, Share: 3}, {Node: 9, Share: 2}, {Node: 11}}) {
		t.Errorf("shares that were set: %+v", c.shares)
	}
}

// A server that comes while a worker dies is a member when it knows of that, too: contributions of the new epoch may reach it then.
func TestAServerComesWhileAWorkerDies(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, _ := b.begun(3, 0)
		late := b.come(RoleServer, "s9", w[0], w[1]) // worker 2 makes no connection
		b.die(w[2])
		time.Sleep(2 * verdictTime)
		w[0].Survived(1, wire.Rounds{}, false)
		w[1].Survived(1, wire.Rounds{}, false)
		time.Sleep(time.Second)
		if got := b.settledAt(w[0]); len(got) != 1 || !late.View().Me().Newcomer {
			t.Errorf("settled %q; the server %+v", got, late.View().Me())
		}
		late.Survived(1, wire.Rounds{}, false)
		time.Sleep(time.Second)
		if late.View().Me().Newcomer {
			t.Error("the server is no member, although it knows of the death")
		}
	})
}

// A tensor whose aggregators have a clock of each worker can be declared whoever has died and come.
func TestAClockAfterChanges(t *testing.T) {
	l, async := newLedger(2), wire.Tensor{Bytes: 4, DType: wire.Int32, Policy: wire.Async}
	l.bury(0)
	l.join(3)
	l.declare(time.Time{}, 1, 5, async)
	if replies, _ := l.declare(time.Time{}, 3, 5, async); len(replies) != 1 || replies[0].meta.GetDeclared() == nil {
		t.Errorf("the answer: %v", replies)
	}
}
