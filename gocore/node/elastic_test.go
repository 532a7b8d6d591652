package node

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/plan"
	"fptps/gocore/transport"
	"fptps/gocore/transport/mem"
	"fptps/gocore/van"
	"fptps/gocore/van/memvan"
	"fptps/gocore/wire"
)

var changes = flag.Int("changes", 150, "clusters that TestWorkersComeAndGo plays")

// TestWorkersComeAndGo plays whole clusters on virtual time, with the real scheduler: workers and servers come and die at any moment. Each
// sum has the contributions of the workers of its epoch, each once; all agree on the epoch of each round; newcomers go on from the state of the others;
// and all that live reach the end.
func TestWorkersComeAndGo(t *testing.T) {
	for seed := range uint64(*changes) {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newCompany(t, seed).play() })
		})
		if !ok {
			return
		}
	}
}

const (
	companyKeys  = 3
	companySteps = 25
	longest      = 10 * time.Minute // of virtual time
)

// company is a cluster, and those who come to it.
type company struct {
	t       *testing.T
	rng     *rand.Rand // of the test's goroutine
	vans    *memvan.Network
	data    *mem.Network
	runner  *cluster.Runner
	config  cluster.Config
	members sync.WaitGroup // goroutines

	mu     sync.Mutex
	random *rand.Rand
	actors []*actor
	epochs map[string]map[int]int // of sums, by key and step, and by rank
	steps  int                    // the highest that a program has reached
	over   bool                   // nobody comes or dies any more
	trace  []string               // what the nodes have heard
	begin  time.Time
}

// note adds a line to the trace of a test that fails.
func (c *company) note(a *actor, format string, values ...any) {
	name := "a node"
	select {
	case <-a.ready:
		name = cluster.Name(a.post.View().Self)
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trace = append(c.trace, fmt.Sprintf("%v %s: %s", time.Since(c.begin), name, fmt.Sprintf(format, values...)))
}

func newCompany(t *testing.T, seed uint64) *company {
	c := &company{
		t: t, rng: rand.New(rand.NewPCG(seed, 21)), random: rand.New(rand.NewPCG(seed, 22)), epochs: map[string]map[int]int{},
		vans: memvan.New(seed, 5*time.Millisecond), begin: time.Now(),
	}
	pick := rand.New(rand.NewPCG(seed, 23))
	c.data = mem.New(func(n int) int { return pick.IntN(n) })
	c.config = cluster.Config{
		SchedulerHost: "sched", SchedulerPort: 9000, Workers: 1 + c.rng.IntN(3), Servers: c.rng.IntN(3), Share: cluster.Unset, Recovers: true, MinWorkers: 1,
		MaxWorkers: 6, HeartbeatInterval: 5 * time.Second, HeartbeatTimeout: 30 * time.Second, Log: slog.New(slog.DiscardHandler),
	}
	return c
}

// pause sleeps for up to so many milliseconds.
func (c *company) pause(most int) {
	c.mu.Lock()
	n := c.random.IntN(most + 1)
	c.mu.Unlock()
	time.Sleep(time.Duration(n) * time.Millisecond)
}

func (c *company) play() {
	config := c.config
	config.Role, config.Incarnation = cluster.RoleScheduler, 1
	runner, err := cluster.Serve(c.vans.Van("sched"), config, cluster.Events{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.runner = runner
	for range c.config.Workers {
		c.enter(cluster.RoleWorker)
	}
	for range c.config.Servers {
		c.enter(cluster.RoleServer)
	}
	<-runner.Joined()
	for range 4 + c.rng.IntN(8) {
		time.Sleep(time.Duration(c.rng.IntN(120)) * time.Millisecond)
		switch n := c.rng.IntN(10); {
		case n < 4:
			c.enter(cluster.RoleWorker)
		case n < 5:
			c.enter(cluster.RoleServer)
		default:
			c.kill()
		}
	}
	c.members.Wait()
	select {
	case <-runner.Done():
		if err := runner.Err(); err != nil {
			c.t.Errorf("the cluster ended by %v", err)
		}
	case <-time.After(longest):
		c.t.Error("the cluster does not end")
	}
	c.check()
	if c.t.Failed() {
		c.t.Log(strings.Join(c.trace, "\n"))
	}
	runner.Close()
	c.data.Close()
}

// check checks what the programs that live have found.
func (c *company) check() {
	finished := 0
	for _, a := range c.actors {
		if a.worker != nil && !a.isDead() && a.finished {
			finished++
		}
	}
	if finished == 0 {
		c.t.Error("no program has reached the end")
	}
	for name, epochs := range c.epochs {
		if distinct := slices.Compact(slices.Sorted(maps.Values(epochs))); len(distinct) > 1 {
			c.t.Errorf("%s: sums of the epochs %v", name, epochs)
		}
	}
}

// enter starts a node.
func (c *company) enter(role cluster.Role) {
	a := &actor{company: c, role: role, ready: make(chan struct{}), chain: make(chan func(), 1000)}
	c.mu.Lock()
	c.actors = append(c.actors, a)
	number := len(c.actors)
	c.mu.Unlock()
	a.van = c.vans.Van(fmt.Sprintf("host%d", number))
	config := c.config
	config.Role, config.Host, config.Incarnation = role, fmt.Sprintf("host%d", number), uint64(100+number)
	c.members.Go(func() {
		if err := a.live(config); err != nil && !a.isDead() && !strings.Contains(err.Error(), "have ended the training") {
			c.t.Errorf("%v %d: %v", role, number, err)
		}
	})
}

// kill kills a node, unless nobody would be left that has the state of the training.
func (c *company) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var victims []*actor
	full := 0
	for _, a := range c.actors {
		if a.dead || a.finished || !a.began {
			continue
		}
		victims = append(victims, a)
		if a.worker != nil && a.full {
			full++
		}
	}
	if c.over || len(victims) == 0 {
		return
	}
	victim := victims[c.random.IntN(len(victims))]
	if victim.worker != nil && victim.full && full < 2 {
		return
	}
	victim.dead = true
	c.vans.Isolate(victim.van)
	delay := time.Duration(c.random.IntN(20)) * time.Millisecond
	c.members.Go(func() {
		c.note(victim, "is dead")
		time.Sleep(delay)
		m := victim.post.View().Me()
		c.runner.Gone(m.ID, m.Incarnation, "killed")
		victim.post.Close()
		if victim.worker != nil {
			victim.worker.Fail(errors.New("killed"))
		}
	})
}

// actor is a node of a company. Its fields are under the company's lock once it is ready.
type actor struct {
	*company
	role       cluster.Role
	van        van.Van
	post       *cluster.Postoffice
	worker     *kv.Worker // nil: it is a server
	aggregator *kv.Aggregator
	ready      chan struct{} // closed when these are there
	chain      chan func()   // what follows from verdicts and admissions, in order
	cut        map[uint32]bool
	points     points
	began      bool // it is past the start, and may die
	full       bool // it has the state of the training
	dead       bool
	finished   bool
	failure    error
}

func (a *actor) isDead() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.dead
}

func (a *actor) isOver() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.over
}

// live is the life of a node.
func (a *actor) live(config cluster.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	post, err := cluster.Join(ctx, a.van, config, a.events())
	if a.isOver() || fault.CodeOf(err) == fault.Connect && strings.Contains(err.Error(), "up to FPTPS_MAX_WORKERS") {
		if err == nil {
			post.Close()
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer post.Close()
	view := post.View()
	members := aggregate.NewMembersAt(view.Epoch, ranksOf(view.Workers()))
	plane := a.data.Join(uint32(view.Self))
	shares, err := planOf(view)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.post, a.cut = post, map[uint32]bool{}
	a.aggregator = kv.NewAggregator(members, plane, false, a.config.Log)
	a.aggregator.Recover()
	if a.role == cluster.RoleWorker {
		create := kv.NewWorker
		if view.Me().Newcomer {
			create = kv.NewNewcomer
		}
		a.worker = create(kv.WorkerConfig{
			Rank: view.Rank(), Workers: ranksOf(view.Workers()), Epoch: view.Epoch, Plan: shares, Lanes: []kv.DataPlane{plane}, Tickets: kv.NewTickets(),
			Log: a.config.Log, Recovers: true, Aggregators: idsOf(append(view.Servers(), view.Workers()...)),
			Declare: func(list []kv.Declaration) {
				for _, d := range list {
					post.Declare([]cluster.Declaration{cluster.Declaration(d)})
				}
			},
			Name: func(node uint32) string { return cluster.Name(int(node)) },
		})
	}
	plane.Attach(&door{a, &kv.Handler{
		Self: uint32(view.Self), Worker: a.worker, Aggregator: a.aggregator, OnLost: func(uint32, error) {}, OnFailed: func(err error) { a.t.Errorf("%s: %v", cluster.Name(view.Self), err) },
	}})
	a.mu.Unlock()
	close(a.ready)
	a.members.Go(func() {
		for do := range a.chain {
			do()
		}
	})
	defer close(a.chain)
	if !view.Me().Newcomer {
		if err := a.barrier(func(done func(error)) { post.Barrier(0, cluster.AllGroup, done) }); err != nil {
			return err
		}
	}
	a.mu.Lock()
	a.began, a.full = true, a.worker != nil && !view.Me().Newcomer
	a.mu.Unlock()
	last := wire.Rounds{}
	if a.worker != nil {
		p := &program{actor: a, newcomer: view.Me().Newcomer}
		if err := p.train(); err != nil {
			if p.newcomer { // the others have ended the training, or nobody had its state
				<-post.Leave("it was not admitted: " + err.Error())
				return nil
			}
			return err
		}
		last = a.worker.Rounds()
		a.mu.Lock()
		a.finished, a.over = true, true
		a.mu.Unlock()
	}
	err = a.barrier(func(done func(error)) { post.End(last, done) })
	synctest.Wait() // what was queued before is handled
	return err
}

func (a *actor) barrier(enter func(done func(error))) error {
	done := make(chan error, 1)
	enter(func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-time.After(longest):
		return errors.New("waits in a barrier for ever")
	}
}

// door drops the packets of dead nodes, and of nodes whose connections have ended; of those that die it drops some.
type door struct {
	*actor
	handler *kv.Handler
}

func (d *door) closed(peer uint32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dead || d.cut[peer]
}

func (d *door) Place(peer uint32, h *wire.Header) (transport.Destination, error) {
	if d.closed(peer) {
		return transport.Destination{Bytes: make([]byte, h.WireLen)}, nil
	}
	return d.handler.Place(peer, h)
}

func (d *door) Arrived(peer uint32, h *wire.Header, l transport.Destination) error {
	if d.closed(peer) {
		if l.Owner != nil {
			l.Owner.Release()
		}
		return nil
	}
	if err := d.handler.Arrived(peer, h, l); err != nil {
		return fmt.Errorf("%s, a packet of %s: %w", cluster.Name(d.post.View().Self), cluster.Name(int(peer)), err)
	}
	return nil
}

func (d *door) Local(h *wire.Header, payload []byte) error { return d.handler.Local(h, payload) }
func (d *door) Lost(peer uint32, err error)                { d.handler.Lost(peer, err) }
func (d *door) Tick(now time.Time)                         { d.handler.Tick(now) }
func (d *door) Failed(err error)                           { d.handler.Failed(err) }

// inTurn does something after the verdicts and admissions before it, once the node is ready.
func (a *actor) inTurn(do func()) {
	a.chain <- func() {
		<-a.ready
		a.pause(3)
		do()
	}
}

// events are what the other files of this package do on verdicts and admissions, without sockets.
func (a *actor) events() cluster.Events {
	withWorker := func(do func(w *kv.Worker)) {
		select {
		case <-a.ready:
			if a.worker != nil {
				do(a.worker)
			}
		default:
		}
	}
	return cluster.Events{
		Lost: func(id int, why string) {
			go withWorker(func(w *kv.Worker) { w.Fail(fmt.Errorf("%s was lost: %s", cluster.Name(id), why)) })
		},
		Buried: func(id int, why string, epoch int) {
			a.note(a, "%s is buried, epoch %d", cluster.Name(id), epoch)
			a.mu.Lock()
			if a.cut != nil {
				a.cut[uint32(id)] = true
			}
			a.mu.Unlock()
			if epoch > 0 {
				withWorker((*kv.Worker).Freeze)
			}
			a.inTurn(func() {
				a.note(a, "buries %s", cluster.Name(id))
				a.mu.Lock()
				a.cut[uint32(id)] = true
				a.mu.Unlock()
				if epoch > 0 {
					a.aggregator.Bury(wire.RankOfWorker(id))
				}
				if a.worker != nil {
					a.worker.Bury(uint32(id))
				}
				a.survived(epoch)
			})
		},
		Settled: func(complete wire.Rounds) {
			a.inTurn(func() {
				a.note(a, "settled %v %v", complete.Counts, complete.Last)
				if err := a.worker.Settle(complete); err != nil {
					a.t.Error(err)
				}
				if !a.worker.Meeting() {
					a.mu.Lock()
					stood := a.points.admitted()
					a.mu.Unlock()
					a.finish(stood)
				}
			})
		},
		Came: func(m cluster.Member) {
			a.members.Go(func() {
				<-a.ready
				a.pause(5)
				a.post.Linked(m)
			})
		},
		Admitted: func(m cluster.Member, epoch int, points uint64) {
			a.inTurn(func() {
				a.note(a, "admits %s, epoch %d", cluster.Name(m.ID), epoch)
				rank := -1
				if m.Role == cluster.RoleWorker {
					rank = m.Rank()
					a.aggregator.Join(rank)
				}
				if a.worker != nil {
					a.worker.Join(uint32(m.ID), rank)
				}
				if m.ID == a.post.View().Self {
					a.mu.Lock()
					a.points.passed = points
					a.mu.Unlock()
				}
				a.survived(epoch)
			})
		},
		Gather: func() uint64 {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.points.gather()
		},
		Meet: func(point uint64) {
			a.mu.Lock()
			waited, stood := a.points.meetAt(point)
			a.mu.Unlock()
			a.finish(waited)
			if stood != nil {
				a.worker.Depart()
				a.finish(stood)
			}
		},
		Promise: func() (begun wire.Rounds) {
			withWorker(func(w *kv.Worker) { begun = w.Promise() })
			return begun
		},
		Commit: func(number uint32, p *plan.Plan, first wire.Rounds) {
			a.note(a, "plan %d %v from rounds %v %v", number, p.Shares(), first.Counts, first.Last)
			withWorker(func(w *kv.Worker) { w.Commit(number, p, first) })
		},
		Abort: func() { withWorker((*kv.Worker).Abort) },
		Closed: func(id int, last wire.Rounds) {
			withWorker(func(w *kv.Worker) {
				if err := w.Closed(id, last); err != nil {
					a.t.Error(err)
				}
			})
		},
		Failed: func(err error) { a.t.Error(err) },
	}
}

func (a *actor) survived(epoch int) {
	if epoch == 0 {
		return
	}
	complete, known := wire.Rounds{}, true
	if a.worker != nil {
		complete, known = a.worker.Complete()
	}
	a.note(a, "has settled epoch %d: %v %v %v", epoch, complete.Counts, complete.Last, known)
	a.post.Survived(epoch, complete, !known)
}

func (a *actor) finish(ticket *kv.Ticket) {
	if ticket != nil {
		a.worker.Tickets.Finish(ticket, nil)
	}
}

// program is the training of a worker.
type program struct {
	*actor
	newcomer bool
	step     int
}

// await waits for a ticket.
func (p *program) await(ticket *kv.Ticket) error {
	for begin := time.Now(); !ticket.Done(); time.Sleep(time.Millisecond) {
		if p.isDead() {
			return errors.New("dead")
		}
		if time.Since(begin) > longest {
			return fmt.Errorf("step %d: waits for ever: %s", p.step, ticket.Explain().Text)
		}
	}
	_, err := ticket.Wait(0)
	return err
}

func elements(key uint64) int { return []int{1, 5000, 9001}[key] } // one packet to three

func (p *program) train() error {
	for key := range uint64(companyKeys) {
		tickets, err := p.worker.InitAll([]kv.Init{{Key: key, DType: wire.Int32, Memory: make([]byte, 4*elements(key))}})
		if err != nil {
			return err
		}
		if err := p.await(tickets[0]); err != nil {
			return err
		}
	}
	for ; p.step < companySteps; p.step++ {
		if err := p.admit(); err != nil {
			return err
		}
		if err := p.rounds(); err != nil {
			return fmt.Errorf("rank %d: %w", p.worker.Rank, err)
		}
		p.pause(4)
	}
	return nil
}

// admit is what python/fptps/_admission.py does.
func (p *program) admit() error {
	for !p.newcomer {
		p.mu.Lock()
		come := p.points.come()
		var ticket *kv.Ticket
		if come == wait {
			ticket = p.worker.Tickets.New(nil)
			p.points.waiting = ticket
		}
		p.mu.Unlock()
		if come == pass {
			return nil
		}
		if come == stand {
			break
		}
		if err := p.await(ticket); err != nil {
			return err
		}
	}
	var complete wire.Rounds
	if !p.newcomer {
		var err error
		if complete, err = p.worker.Arrive([]byte{byte(p.step)}); err != nil {
			return err
		}
	}
	ticket := p.worker.Tickets.New(nil)
	p.mu.Lock()
	point := p.points.arrive(ticket)
	p.mu.Unlock()
	p.post.Arrived(point, complete)
	if err := p.await(ticket); err != nil || !p.newcomer {
		return err
	}
	err := errors.New("nobody has the state")
	for _, rank := range p.worker.Present(-1) {
		if rank == p.worker.Rank {
			continue
		}
		if err = p.await(p.worker.Fetch(uint32(wire.WorkerID(rank)))); err != nil {
			continue
		}
		p.note(p.actor, "has the state of rank %d", rank)
		p.step, p.newcomer = int(p.worker.ProgramState()[0]), false
		p.post.Fetched()
		p.mu.Lock()
		p.full = true
		p.mu.Unlock()
		return nil
	}
	return err
}

// pushed reports whether a rank pushes a key in a step, or skips it.
func pushed(rank int, key uint64, step int) bool { return (rank+3*int(key)+5*step)%7 > 0 }

func value(rank int, key uint64, step, element int) int32 {
	return int32((rank+1)*(1000*step+100*int(key)+7) + element%13)
}

// rounds pushes all keys, and checks the sums.
func (p *program) rounds() error {
	arrays, tickets := make([][]byte, companyKeys), make([]*kv.Ticket, companyKeys)
	rank, step := p.worker.Rank, p.step
	for key := range uint64(companyKeys) {
		var err error
		if !pushed(rank, key, step) {
			tickets[key], err = p.worker.Skip(key)
		} else {
			array := make([]byte, 4*elements(key))
			for i := range elements(key) {
				binary.LittleEndian.PutUint32(array[4*i:], uint32(value(rank, key, step, i)))
			}
			arrays[key] = array
			tickets[key], err = p.worker.PushPull(key, wire.Int32, array, array, wire.OpSum, 0)
		}
		if err != nil {
			return err
		}
	}
	for key := range uint64(companyKeys) {
		if err := p.await(tickets[key]); err != nil {
			return err
		}
		epoch := tickets[key].Epoch()
		if err := p.compare(arrays[key], key, epoch); err != nil {
			return err
		}
		name := fmt.Sprintf("key %d step %d", key, step)
		p.mu.Lock()
		if p.epochs[name] == nil {
			p.epochs[name] = map[int]int{}
		}
		if !p.dead {
			p.epochs[name][rank] = epoch
		}
		p.mu.Unlock()
	}
	return nil
}

// compare checks a sum against the values of the workers of its epoch.
func (p *program) compare(array []byte, key uint64, epoch int) error {
	workers := p.worker.Present(epoch)
	for i := 0; 4*i < len(array); i++ {
		want := int32(0)
		for _, rank := range workers {
			if pushed(rank, key, p.step) {
				want += value(rank, key, p.step, i)
			}
		}
		if got := int32(binary.LittleEndian.Uint32(array[4*i:])); got != want {
			return fmt.Errorf("key %d step %d element %d: %d, and %d of the workers %v of epoch %d", key, p.step, i, got, want, workers, epoch)
		}
	}
	return nil
}
