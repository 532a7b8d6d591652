package kv

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/store"
	"fptps/gocore/wire"
)

var plays = flag.Uint64("plays", 100, "clusters that TestPlansChangeBetweenRounds plays")

// office stands in for the scheduler: what it sends reaches each worker in order, but each at a time of its own.
type office struct {
	*cluster
	rng      *rand.Rand
	declares map[uint64]map[int]func(uint32, error) // by key and rank
	ids      uint32
	inboxes  []chan func() // by spy
	mortal   *mortal       // nil: nobody dies
	done     sync.WaitGroup
	mu       sync.Mutex
	changes  int // that were committed
}

// newOffice puts an office in the place of the cluster's scheduler. The workers play after that.
func newOffice(c *cluster, rng *rand.Rand) *office {
	o := &office{cluster: c, rng: rng, declares: map[uint64]map[int]func(uint32, error){}}
	for _, s := range c.spies {
		if s.Worker != nil {
			s.Worker.Declare = each(func(key uint64, _ wire.Tensor, done func(uint32, error)) { o.declare(s.Worker.Rank, key, done) })
		}
		o.inboxes = append(o.inboxes, inOrder(rand.New(rand.NewPCG(rng.Uint64(), 1)), &o.done))
	}
	return o
}

// inOrder calls the functions of a channel one after the other, each after some milliseconds, until it is closed.
func inOrder(rng *rand.Rand, running *sync.WaitGroup) chan func() {
	calls := make(chan func(), 1000)
	running.Go(func() {
		for call := range calls {
			time.Sleep(time.Duration(rng.IntN(5)) * time.Millisecond)
			call()
		}
	})
	return calls
}

// declare answers all workers at once, as the scheduler does.
func (o *office) declare(rank int, key uint64, done func(uint32, error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.declares[key] == nil {
		o.declares[key] = map[int]func(uint32, error){}
	}
	o.declares[key][rank] = done
	o.agree()
}

// agree gives ids to the keys that all living workers have declared.
func (o *office) agree() {
	for key, declares := range o.declares {
		if slices.ContainsFunc(o.alive(), func(rank int) bool { return declares[rank] == nil }) {
			continue
		}
		id := o.ids
		o.ids++
		for _, rank := range o.alive() {
			done := declares[rank]
			o.inboxOf(rank) <- func() { done(id, nil) }
		}
		delete(o.declares, key)
	}
}

// alive lists the workers without a verdict that they are dead.
func (o *office) alive() (ranks []int) {
	for rank := range o.workers {
		if o.mortal == nil || !o.mortal.state.verdicts[o.indexOf(rank)] {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// indexOf is the place of a worker among the spies, after the servers.
func (o *office) indexOf(rank int) int { return len(o.spies) - len(o.workers) + rank }

func (o *office) inboxOf(rank int) chan func() { return o.inboxes[o.indexOf(rank)] }

// send puts a message for each worker in its inbox; no other goes between them.
func (o *office) send(message func(w *Worker)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, rank := range o.alive() {
		o.inboxOf(rank) <- func() { message(o.workers[rank]) }
	}
}

// change introduces a plan, or withdraws it. If a node dies meanwhile, it withdraws the plan and returns the node.
func (o *office) change(number uint32, p *plan.Plan, abort bool, killed <-chan uint32) (victim uint32) {
	promises := make(chan wire.Rounds, len(o.workers))
	o.send(func(w *Worker) { promises <- w.Promise() })
	var all []wire.Rounds
	for len(all) < len(o.alive()) && victim == 0 {
		select {
		case promise := <-promises:
			all = append(all, promise)
		case victim = <-killed:
		}
	}
	if abort || victim != 0 {
		o.send((*Worker).Abort)
		return victim
	}
	first := wire.FirstRounds(all)
	o.send(func(w *Worker) { w.Commit(number, p, first) })
	o.changes++
	return victim
}

// changePlans introduces or withdraws one plan after the other until stop, with pauses of less than some milliseconds.
func (o *office) changePlans(rng *rand.Rand, servers, pause int, stop chan struct{}) {
	for number := uint32(1); ; number++ {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(rng.IntN(pause)) * time.Millisecond):
		}
		p, err := plan.New(randomShares(rng, len(o.workers), servers))
		if err != nil {
			o.t.Error(err)
		}
		o.change(number, p, rng.IntN(4) == 0, nil)
	}
}

// close ends the office after the last message has arrived.
func (o *office) close() {
	for _, inbox := range o.inboxes {
		close(inbox)
	}
	o.done.Wait()
}

func randomShares(rng *rand.Rand, workers, servers int) []plan.Share {
	var shares []plan.Share
	for rank := range servers {
		shares = append(shares, plan.Share{Node: serverID(rank), Share: rng.Uint32N(4)})
	}
	for rank := range workers {
		shares = append(shares, plan.Share{Node: workerID(rank), Share: rng.Uint32N(3)})
	}
	shares[rng.IntN(len(shares))].Share++
	return shares
}

// Plans change all the time while the workers play: every sum is right, no round has two plans, and no operation waits for ever.
func TestPlansChangeBetweenRounds(t *testing.T) {
	changes, moved := 0, 0
	for seed := range *plays {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 9))
			workers, servers := 1+rng.IntN(4), rng.IntN(3)
			scripts := newScripts(rng, workers, 2+rng.IntN(4), 8)
			plans := map[[2]uint64]uint16{} // by tensor and round
			var mu sync.Mutex
			c := newCluster(t, slices.Repeat([]uint32{1}, workers), slices.Repeat([]uint32{1}, servers), picker(rng), func(_ int, h *wire.Header) {
				time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond) // so that a play takes a while
				if h.Kind != wire.Contrib && h.Kind != wire.Empty {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				of := [2]uint64{uint64(h.Tensor), h.Round}
				if other, seen := plans[of]; seen && other != h.Plan {
					t.Errorf("seed %d: tensor %d round %d has the plans %d and %d", seed, h.Tensor, h.Round, other, h.Plan)
				}
				plans[of] = h.Plan
			})
			o := newOffice(c, rng)
			stop := make(chan struct{})
			var planning, players sync.WaitGroup
			planRNG := rand.New(rand.NewPCG(seed, 10))
			planning.Go(func() { o.changePlans(planRNG, servers, 20, stop) })
			for _, w := range c.workers {
				p := &player{cluster: c, Worker: w, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), scripts: scripts}
				players.Go(p.play)
			}
			players.Wait()
			close(stop)
			planning.Wait()
			o.close()
			c.close()
			changes += o.changes
			for _, n := range plans {
				if n > 0 {
					moved++
				}
			}
			if strings.Contains(c.log.String(), "no progress") {
				t.Error(c.log.String())
			}
		})
	}
	t.Logf("%d changes, %d rounds under later plans", changes, moved)
	if changes < 300 || moved < 300 {
		t.Errorf("only %d changes, and %d rounds under later plans", changes, moved)
	}
}

// deskWithRounds is a desk whose tensor 0 has begun round 1.
func deskWithRounds(t *testing.T, rank int) *desk {
	d := newDesk(t, rank)
	array := make([]byte, 4)
	d.must(d.Init(1, wire.Float32, wire.Sync, array))
	d.declare(0, nil)
	d.complete()
	d.must(d.Skip(1))
	return d
}

// complete completes the round that is under way.
func (d *desk) complete() {
	d.letGo()
	t := d.mu.byKey[1]
	d.Worker.sum(t.owner(0), &wire.Header{Kind: wire.Sum, DType: wire.Float32, Tensor: t.id, Round: t.round, RawLen: 4}, nil)
}

// A worker that has promised begins no round until it learns more.
func TestPromise(t *testing.T) {
	for _, end := range []func(d *desk){
		func(d *desk) { d.Abort() },
		func(d *desk) { d.Commit(1, d.Plan, wire.Rounds{Counts: []uint32{1}, Last: []uint64{2}}) },
	} {
		d := deskWithRounds(t, 0)
		if begun := d.Promise(); !slices.Equal(begun.Last, []uint64{1}) {
			t.Errorf("promised %v after round 1", begun)
		}
		held := d.must(d.Skip(1))
		d.complete()
		if t1 := d.mu.byKey[1]; t1.round != 1 || t1.active != nil {
			t.Errorf("round %d has begun", t1.round)
		}
		if text := held.Explain().Text; !strings.Contains(text, "round 2 waits for the scheduler to decide on a new plan") {
			t.Errorf("the held operation says %q", text)
		}
		end(d)
		if t1 := d.mu.byKey[1]; t1.round != 2 || t1.active == nil {
			t.Errorf("after the end of the promise round %d", t1.round)
		}
	}
}

// Tensors of which the aggregators keep more than a round keep their plan.
func TestTensorsThatKeepTheirPlan(t *testing.T) {
	moves := func(rank int, change func(t *tensor)) (now, later bool) {
		d := deskWithRounds(t, rank)
		change(d.mu.byKey[1])
		promise := d.Promise()
		return promise.Last[0] != wire.NoRound, promise.Unpushed == 1
	}
	for name, tc := range map[string]struct {
		change     func(t *tensor)
		rank, want [2]bool
		later      bool // on rank 0
	}{
		"a plain sum":    {change: func(*tensor) {}, want: [2]bool{true, true}},
		"async":          {change: func(t *tensor) { t.policy = wire.Async }},
		"a table":        {change: func(t *tensor) { t.table = &table{} }},
		"a set clock":    {change: func(t *tensor) { t.clockSet = true }, want: [2]bool{false, false}},
		"an optimiser":   {change: func(t *tensor) { t.rule = &store.Rule{} }, want: [2]bool{true, true}},
		"both":           {change: func(t *tensor) { t.rule, t.clockSet = &store.Rule{}, true }, want: [2]bool{true, true}},
		"no push so far": {change: func(t *tensor) { t.next = 1 }, want: [2]bool{false, true}, later: true},
		"async, no push": {change: func(t *tensor) { t.policy, t.next = wire.Async, 1 }},
	} {
		for rank, want := range tc.want {
			if now, later := moves(rank, tc.change); now != want || later != (rank == 0 && tc.later) {
				t.Errorf("%s, rank %d: moves now %v, later %v", name, rank, now, later)
			}
		}
	}
}

// A clock is right before, while and after a tensor moves, and cannot be set while it is about to.
func TestClockOfAMovedTensor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, []uint32{1, 0}, []uint32{1}, nil, func(int, *wire.Header) {})
		defer c.close()
		const size = 4 * wire.PacketBytes
		each := func(do func(w *Worker) (*Ticket, error)) {
			t.Helper()
			var tickets []*Ticket
			for _, w := range c.workers {
				ticket, err := do(w)
				if err != nil {
					t.Fatal(err)
				}
				tickets = append(tickets, ticket)
			}
			for rank, ticket := range tickets {
				if err := wait(t, c.workers[rank], ticket); err != nil {
					t.Fatal(err)
				}
			}
		}
		push := func() {
			t.Helper()
			each(func(w *Worker) (*Ticket, error) {
				return w.Push(6, wire.Float32, bytes.Repeat([]byte{0, 0, 0x80, 0x3f}, size/4), wire.OpSum, 0)
			})
		}
		wantClock := func(want byte) {
			t.Helper()
			for _, w := range c.workers {
				clock := make([]byte, 16)
				ticket, err := w.Clock(6, clock)
				if err == nil {
					err = wait(t, w, ticket)
				}
				if err != nil || clock[0] != want || clock[8] != want {
					t.Errorf("rank %d: the clock is %v, want %d (%v)", w.Rank, clock, want, err)
				}
			}
		}
		each(func(w *Worker) (*Ticket, error) { return w.Init(6, wire.Float32, wire.Sync, make([]byte, size)) })
		push()
		for number, shares := range [][]plan.Share{
			{{Node: serverID(0), Share: 0}, {Node: workerID(1), Share: 1}}, {{Node: serverID(0), Share: 3}, {Node: workerID(1), Share: 1}},
		} {
			p, _ := plan.New(shares)
			var all []wire.Rounds
			for _, w := range c.workers {
				all = append(all, w.Promise())
			}
			first := wire.FirstRounds(all)
			for _, w := range c.workers {
				w.Commit(uint32(number+1), p, first)
				if _, err := w.Resume(6, make([]byte, 16)); fault.CodeOf(err) != fault.Busy {
					t.Errorf("a clock was set in the middle: %v", err)
				}
			}
			for round := range byte(3) {
				wantClock(byte(number)*3 + round + 1)
				push()
			}
		}
		wantClock(7)
		if got := fmt.Sprint(c.workers[0].mu.byKey[6].runs); got != "[{8 0 3 0} {11 3 1 0}]" {
			t.Errorf("the last plan's runs are %s", got)
		}
	})
}

// A tensor that is declared after a Commit starts under the new plan.
func TestNewTensorsStartUnderTheNewPlan(t *testing.T) {
	d := newDesk(t, 0)
	p, _ := plan.New([]plan.Share{{Node: 8}, {Node: 10, Share: 1}})
	d.Commit(7, p, wire.Rounds{})
	d.must(d.Init(1, wire.Float32, wire.Sync, make([]byte, 4)))
	d.declare(0, nil)
	if s := d.Stats(); s.Plan != 7 || len(s.Shares) != 1 || s.Shares["server 1"] != 1 {
		t.Errorf("stats: plan %d, shares %v", s.Plan, s.Shares)
	}
	if m := d.sent[0]; m.node != 10 || m.Header.Plan != 7 {
		t.Errorf("round 0 goes to node %d under plan %d", m.node, m.Header.Plan)
	}
}

// All workers cut the tensors in the order of their ids, so an id that comes late is an error.
func TestIDsAscend(t *testing.T) {
	d := newDesk(t, 0)
	first := d.must(d.Init(1, wire.Float32, wire.Sync, make([]byte, 4)))
	second := d.must(d.Init(2, wire.Float32, wire.Sync, make([]byte, 4)))
	d.declare(6, nil)
	d.declare(5, nil)
	d.underWay(first)
	d.ended(second, fault.Internal)
}
