package cluster

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

var everyPoint = flag.Bool("every-point", false, "TestResumeAtEveryPoint leaves out no point")

// robot responds to the scheduler as package node does, at once.
type robot struct {
	p      *Postoffice
	joined chan struct{} // closed when p is set
}

func (r *robot) later(do func(p *Postoffice)) {
	go func() {
		<-r.joined
		do(r.p)
	}()
}

func (r *robot) events(e Events) Events {
	buried, came, admitted, settled, meet := e.Buried, e.Came, e.Admitted, e.Settled, e.Meet
	survived := func(epoch int) {
		if epoch > 0 {
			r.later(func(p *Postoffice) {
				p.Survived(epoch, wire.Rounds{Counts: []uint32{1}, Last: []uint64{uint64(p.View().Self)}}, false)
			})
		}
	}
	e.Buried = func(b Burial) {
		buried(b)
		survived(b.Epoch)
	}
	e.Came = func(m Member) {
		came(m)
		r.later(func(p *Postoffice) { p.Linked(m) })
	}
	e.Admitted = func(m Member, epoch int, points uint64) {
		admitted(m, epoch, points)
		survived(epoch)
	}
	e.Settled = func(complete wire.Rounds) {
		settled(complete)
		r.later(func(p *Postoffice) {
			if p.view.Me().Newcomer {
				p.Fetched()
			}
		})
	}
	e.Meet = func(point uint64) {
		meet(point)
		if point > 0 {
			r.later(func(p *Postoffice) { p.Arrived(point, wire.Rounds{}) })
		}
	}
	e.Promise = func() wire.Rounds { return wire.Rounds{} }
	e.Commit = func(uint32, *plan.Plan, wire.Rounds) {}
	return e
}

// replaceScheduler kills the scheduler, has the living nodes notice, and starts another one.
func (b *bench) replaceScheduler(nodes ...*Postoffice) {
	b.t.Helper()
	b.net.Isolate(b.sched)
	b.runner.Close()
	for _, p := range nodes {
		suspect(p, wire.SchedulerID, "it was killed")
	}
	time.Sleep(500 * time.Millisecond)
	b.config.Incarnation++
	b.serve(b.config.Workers, b.config.Servers)
}

// known is what a node knows of the decisions.
func known(p *Postoffice) string {
	text := make(chan string, 1)
	p.loop.do(func() {
		h := p.history
		tensors := []string{}
		for _, key := range slices.Sorted(maps.Keys(h.agreed)) {
			tensors = append(tensors, fmt.Sprint(key, h.agreed[key]))
		}
		if p.c.Role == RoleServer {
			tensors = nil
		}
		text <- fmt.Sprintf("orphan %t decision %d term %d epoch %d settling %t plan %d %v preparing %t admitting %t %q %v", p.orphan != nil,
			h.number, h.term(), h.epoch, h.settling, h.plan, h.shares, h.preparing, h.admitting, h.stateful, tensors)
	})
	return <-text
}

// company is what the nodes of a procedure are.
type company struct {
	w, s []*Postoffice

	mu   sync.Mutex
	late *Postoffice // a newcomer
	dead map[*Postoffice]bool
}

func (c *company) living() (list []*Postoffice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range append(append(slices.Clone(c.w), c.s...), c.late) {
		if p != nil && !c.dead[p] {
			list = append(list, p)
		}
	}
	return list
}

// die ends a node; the others notice.
func (c *company) die(b *bench, p *Postoffice) {
	c.mu.Lock()
	c.dead[p] = true
	c.mu.Unlock()
	b.mu.Lock()
	b.net.Isolate(b.vans[p])
	b.mu.Unlock()
	m := p.View().Me()
	for _, other := range c.living() {
		other.Suspect(m.ID, m.Incarnation, "it was killed")
	}
}

// each has the living workers do something at the same time; end waits for them.
func (c *company) each(b *bench, do func(p *Postoffice) error) (end func()) {
	results := map[*Postoffice]chan error{}
	for _, p := range c.w {
		result := make(chan error, 1)
		results[p] = result
		go func() { result <- do(p) }()
	}
	return func() {
		for p, result := range results {
			if c.dead[p] {
				continue
			}
			select {
			case err := <-result:
				if err != nil {
					b.t.Errorf("%s: %v", Name(p.View().Self), err)
				}
			case <-time.After(time.Minute):
				b.t.Errorf("%s waits for ever", Name(p.View().Self))
			}
		}
	}
}

func declareKey(p *Postoffice, key uint64, bytes uint64) (id uint32, err error) {
	done := make(chan bool)
	declareTo(p, key, wire.Tensor{Bytes: bytes, DType: wire.Int32}, func(got uint32, failure error) {
		id, err = got, failure
		close(done)
	})
	<-done
	return id, err
}

// comes starts a newcomer. One that dies with its scheduler before it knows the cluster is started again, as any that asks too early.
func (c *company) comes(b *bench, role Role) (end func()) {
	joined := make(chan bool)
	set := func(p *Postoffice) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.late = p
	}
	go func() {
		defer close(joined)
		for i := 0; ; i++ {
			p, err := b.join(context.Background(), role, fmt.Sprintf("n%02d", i), nil)
			if err != nil {
				b.t.Error(err)
				return
			}
			set(p)
			if role == RoleWorker {
				p.Arrived(0, wire.Rounds{})
			}
			for p.failed() == nil && p.View().Me().Newcomer {
				time.Sleep(10 * time.Millisecond)
			}
			if p.failed() == nil {
				return
			}
			set(nil)
			for _, other := range c.living() { // its process has ended
				other.Suspect(p.View().Self, p.View().Me().Incarnation, "it has ended")
			}
		}
	}()
	return func() {
		<-joined
		time.Sleep(10 * time.Second) // its share
	}
}

func (p *Postoffice) failed() error {
	failure := make(chan error, 1)
	if !p.loop.do(func() { failure <- p.failure }) {
		return fault.New(fault.Closed, "closed")
	}
	return <-failure
}

// procedures are what a cluster of 3 workers and 2 servers does.
func procedures() map[string]func(b *bench, c *company) (end func()) {
	return map[string]func(b *bench, c *company) (end func()){
		"barrier": func(b *bench, c *company) func() {
			return c.each(b, func(p *Postoffice) error { return awaitBarrier(p, WorkerGroup) })
		},
		"declarations": func(b *bench, c *company) func() {
			return c.each(b, func(p *Postoffice) error {
				for key := range uint64(3) {
					if id, err := declareKey(p, 70-key, 8+4*key); err != nil || id != uint32(key) {
						return fmt.Errorf("key %d: id %d, %v", 70-key, id, err)
					}
				}
				return nil
			})
		},
		"disagreement": func(b *bench, c *company) func() {
			return c.each(b, func(p *Postoffice) error {
				if _, err := declareKey(p, 5, uint64(4*p.View().Self)); fault.CodeOf(err) != fault.Mismatch {
					return fmt.Errorf("no disagreement: %v", err)
				}
				return awaitBarrier(p, WorkerGroup)
			})
		},
		"death of a server": func(b *bench, c *company) func() {
			c.die(b, c.s[0])
			return c.each(b, func(p *Postoffice) error { return awaitBarrier(p, WorkerGroup) })
		},
		"death of a worker": func(b *bench, c *company) func() {
			c.die(b, c.w[1])
			return c.each(b, func(p *Postoffice) error { return awaitBarrier(p, WorkerGroup) })
		},
		"a server comes": func(b *bench, c *company) func() { return c.comes(b, RoleServer) },
		"a worker comes": func(b *bench, c *company) func() { return c.comes(b, RoleWorker) },
		"state": func(b *bench, c *company) func() {
			c.w[2].Stateful("the optimiser of key 3")
			return func() {
				time.Sleep(30 * time.Second)
				if got := known(c.w[0]); !strings.Contains(got, `"the optimiser of key 3"`) {
					b.t.Errorf("worker 0 knows %s", got)
				}
			}
		},
	}
}

// After each message that it sends in a procedure the scheduler is killed, and so is the one after it, also together with a node. Every procedure
// ends as without that, and all nodes know the same.
func TestResumeAtEveryPoint(t *testing.T) {
	for name, begin := range procedures() {
		for i, with := range []string{"", "worker 0", "server 1"} {
			for j, second := range []int{-1, 0, 6, 12, 20} {
				step := 1
				if !*everyPoint {
					step += 4*i + 3*j
				}
				if name == "state" && with != "" { // that would be lost
					continue
				}
				t.Run(fmt.Sprintf("%s, with %s, again after %d", name, cmp.Or(with, "nobody"), second), func(t *testing.T) {
					for first, more := (i+j)%step, true; more && !t.Failed(); first += step {
						inBubble(t, uint64(first), func(b *bench) { more = b.resumeAt(begin, with, first, second) })
						if t.Failed() {
							t.Errorf("it was killed after %d messages", first)
						}
					}
				})
			}
		}
	}
}

// resumeAt plays a procedure; false: the scheduler sends fewer than first messages in it.
func (b *bench) resumeAt(begin func(b *bench, c *company) func(), with string, first, second int) (more bool) {
	b.respond, b.config.MaxWorkers = true, 4
	c := &company{dead: map[*Postoffice]bool{}}
	c.w, c.s = b.begun(3, 2)
	time.Sleep(10 * time.Second) // the first heartbeats
	left := b.net.KillAfter(b.sched, first)
	end := begin(b, c)
	time.Sleep(2 * time.Second)
	more = left() == 0
	if p := map[string]*Postoffice{"worker 0": c.w[0], "server 1": c.s[1]}[with]; p != nil {
		c.die(b, p)
	}
	b.replaceScheduler(c.living()...)
	if second >= 0 {
		b.net.KillAfter(b.sched, second)
		time.Sleep(4 * time.Second)
		b.replaceScheduler(c.living()...)
	}
	end()
	time.Sleep(time.Minute)
	synctest.Wait()
	want := known(c.living()[len(c.living())-1])
	for _, p := range c.living() {
		if err := p.failed(); err != nil {
			b.t.Errorf("%s has failed: %v", Name(p.View().Self), err)
		}
	}
	workers := ""
	for _, p := range c.living() {
		got := known(p)
		if p.c.Role == RoleWorker {
			workers = cmp.Or(workers, got)
			want = workers
		}
		if p.c.Role == RoleServer && got[:len(got)-len("[]")] != workers[:min(len(workers), len(got)-len("[]"))] || p.c.Role == RoleWorker && got != want {
			b.t.Errorf("%s knows %s\nand another node %s", Name(p.View().Self), got, workers)
		}
	}
	checked := make(chan string, 1)
	b.runner.loop.do(func() {
		s := b.runner.scheduler
		checked <- fmt.Sprintf("state %d settling %v admission %v change %v barriers %d members %d", s.state, s.settling, s.admission, s.planner.change, len(s.barriers), len(s.members))
	})
	members := len(c.living())
	if got, want := <-checked, fmt.Sprintf("state %d settling <nil> admission <nil> change <nil> barriers 0 members %d", running, members); got != want {
		b.t.Errorf("the scheduler has %s, want %s", got, want)
	}
	return more
}

// A node obeys the scheduler that it has lost until it has announced itself to another; then that one alone.
func TestOneSchedulerIsObeyed(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, _ := b.begun(2, 0)
		p := w[0]
		decide := func(number uint64) *pspb.Meta {
			return &pspb.Meta{Decision: proto.Uint64(number), Own: &pspb.Meta_Meet{Meet: &pspb.Meet{}}}
		}
		asked := make(chan []bool, 1)
		p.loop.do(func() {
			n := p.history.number
			p.orphan = &orphan{}
			before := p.obey(decide(n + 1))
			p.orphan.made = 1
			after := p.obey(decide(n + 2))
			p.orphan = nil
			asked <- []bool{before, after, p.history.number == n+1}
		})
		if got := <-asked; !slices.Equal(got, []bool{true, false, true}) {
			t.Errorf("obeyed %v", got)
		}
	})
}

// A scheduler that was only silent goes on with its nodes, which have taken it for dead; one whose nodes obey another ends.
func TestASchedulerThatComesBack(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, s := b.begun(2, 1)
		for _, p := range append(w, s...) {
			suspect(p, wire.SchedulerID, "it seems dead")
		}
		b.each(2, func(i int) error { return awaitBarrier(w[i], WorkerGroup) })
		later := make(chan bool)
		b.runner.loop.do(func() {
			m := Member{ID: wire.WorkerID(0), Role: RoleWorker, Host: "w00", Port: 1, Incarnation: w[0].View().Me().Incarnation, Protocol: Protocol}
			terms := []*pspb.Known_Term{{Number: proto.Uint32(1)}, {Number: proto.Uint32(2), Start: proto.Uint64(1)}}
			own := &pspb.Announce{Node: nodeOf(m), Term: terms, Known: &pspb.Known{Decision: proto.Uint64(2), Begun: proto.Bool(true)}}
			token := w[0].View().Token
			b.runner.perform(b.runner.scheduler.Step(time.Now(), m.ID, "w00", &pspb.Meta{Own: &pspb.Meta_Announce{Announce: own}, Token: token[:], Incarnation: proto.Uint64(m.Incarnation)}))
			close(later)
		})
		<-later
		<-b.runner.Done()
		wantError(t, b.runner.Err(), fault.NodeLost, "another scheduler goes on with its cluster")
	})
}
