package kv

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/transport"
	"fptps/gocore/transport/mem"
	"fptps/gocore/wire"
)

// cluster is a whole cluster but for the scheduler's place, which tells ids once
// all workers have declared a key.
type cluster struct {
	t           *testing.T
	network     *mem.Network
	workers     []*Worker
	aggregators []*Aggregator
	log         *bytes.Buffer // of all nodes, complete once the network is closed

	mu       sync.Mutex
	declared map[uint64][]func(uint32, error)
	ids      uint32
}

// newCluster starts workers whose aggregators have the given shares, and servers.
func newCluster(t *testing.T, workerShares, serverShares []uint32, pick func(int) int, watch func(rank int, h *wire.Header)) *cluster {
	c := &cluster{t: t, network: mem.New(pick), log: &bytes.Buffer{}, declared: map[uint64][]func(uint32, error){}}
	log := slog.New(slog.NewTextHandler(c.log, nil)) // which locks
	var shares []plan.Share
	var ids []uint32
	for rank, share := range serverShares {
		shares = append(shares, plan.Share{Node: serverID(rank), Share: share})
	}
	for rank, share := range workerShares {
		ids = append(ids, workerID(rank))
		shares = append(shares, plan.Share{Node: workerID(rank), Share: share})
	}
	cut, err := plan.New(3, shares)
	if err != nil {
		t.Fatal(err)
	}
	attach := func(node uint32, w *Worker, plane *mem.Plane, watch func(h *wire.Header)) {
		a := NewAggregator(ids, plane, false, log)
		c.aggregators = append(c.aggregators, a)
		plane.Attach(&spy{watch, Handler{
			Self: node, Worker: w, Aggregator: a,
			OnLost:   func(node uint32, err error) { t.Errorf("lost node %d: %v", node, err) },
			OnFailed: func(err error) { t.Error(err) },
		}})
	}
	for rank := range serverShares {
		attach(serverID(rank), nil, c.network.Join(serverID(rank)), func(*wire.Header) {})
	}
	for rank := range workerShares {
		plane := c.network.Join(workerID(rank))
		w := NewWorker(WorkerConfig{
			Rank: rank, Plan: cut, Lanes: []DataPlane{plane}, Tickets: NewTickets(), Log: log, Declare: c.declare,
			Name: func(node uint32) string { return wire.NodeName(int(node)) },
		})
		c.workers = append(c.workers, w)
		attach(workerID(rank), w, plane, func(h *wire.Header) { watch(rank, h) })
	}
	return c
}

func serverID(rank int) uint32 { return uint32(wire.ServerID(rank)) }
func workerID(rank int) uint32 { return uint32(wire.WorkerID(rank)) }

func (c *cluster) declare(key uint64, _ wire.Tensor, done func(uint32, error)) {
	c.mu.Lock()
	all := append(c.declared[key], done)
	c.declared[key] = all
	complete := len(all) == len(c.workers)
	if complete {
		c.ids++
	}
	id := c.ids
	c.mu.Unlock()
	if complete {
		for _, done := range all {
			done(id, nil)
		}
	}
}

// close ends the cluster and checks that nothing is left over.
func (c *cluster) close() {
	c.network.Close()
	for i, a := range c.aggregators {
		if n := a.pool.Lent() - a.store.Held(); n != 0 {
			c.t.Errorf("aggregator %d: %d buffers are lent at the end", i, n)
		}
	}
	for rank, w := range c.workers {
		if n := len(w.mu.flights.list); n != 0 {
			c.t.Errorf("worker %d: %d arrays are in flight at the end", rank, n)
		}
		if n := len(w.Tickets.mu.open); n != 0 {
			c.t.Errorf("worker %d: %d tickets were never waited for", rank, n)
		}
	}
}

// wait waits for a ticket, at most a minute of virtual time.
func wait(t *testing.T, w *Worker, ticket *Ticket) error {
	t.Helper()
	explained := w.Tickets.Explain(ticket.ID)
	ended := make(chan struct{}, 1) // Tickets.Wait sleeps in the kernel, where no virtual time passes
	w.Tickets.Notify(func() {
		select {
		case ended <- struct{}{}:
		default:
		}
	})
	for minute := time.After(time.Minute); !ticket.Done(); {
		select {
		case <-ended:
			continue
		case <-minute:
		}
		break
	}
	done, err := w.Tickets.Wait(ticket.ID, 0)
	if !done {
		t.Errorf("rank %d waits for ever: %s (before: %s)", w.Rank, w.Tickets.Explain(ticket.ID), explained)
	}
	return err
}

// spy sees the headers of all packets that reach a node.
type spy struct {
	watch func(h *wire.Header)
	Handler
}

func (s *spy) Arrived(node uint32, h *wire.Header, l transport.Landing) error {
	s.watch(h)
	return s.Handler.Arrived(node, h, l)
}

func (s *spy) Local(h *wire.Header, payload []byte) error {
	s.watch(h)
	return s.Handler.Local(h, payload)
}

// script is what all ranks do with one tensor: round 0 is init.
type script struct {
	key      uint64
	dtype    wire.DType
	elements int
	rounds   []part
	priority [][]int32 // of a rank's push in a round
}

// newScripts makes tensors of one element to three packets and an odd tail.
func newScripts(rng *rand.Rand, workers, tensors, rounds int) []script {
	dtypes := supported()
	scripts := make([]script, tensors)
	for i := range scripts {
		s := &scripts[i]
		s.key = rng.Uint64() >> 1
		s.dtype = dtypes[rng.IntN(len(dtypes))]
		packet := wire.PacketBytes / s.dtype.Size()
		s.elements = []int{1, 1 + rng.IntN(300), packet, packet + 1, 3*packet + 1 + rng.IntN(100)}[rng.IntN(5)]
		s.priority = make([][]int32, workers)
		s.rounds = []part{{ranks: []int{0}}}
		for range rounds {
			p := part{}
			if canMean(s.dtype) && rng.IntN(3) == 0 {
				p.op = wire.OpMean
			}
			for rank := range workers {
				if rng.IntN(8) > 0 {
					p.ranks = append(p.ranks, rank)
				}
			}
			s.rounds = append(s.rounds, p)
		}
		for rank := range workers {
			s.priority[rank] = []int32{0}
			for _, p := range s.rounds[1:] {
				priority := int32(0)
				if p.has(rank) {
					priority = int32(rng.IntN(200) - 100)
				}
				s.priority[rank] = append(s.priority[rank], priority)
			}
		}
	}
	return scripts
}

func (p part) has(rank int) bool {
	for _, r := range p.ranks {
		if r == rank {
			return true
		}
	}
	return false
}

// urgency is the priority that the sums of a round must have.
func (s *script) urgency(round uint64) int32 {
	most := s.priority[0][round]
	for _, p := range s.priority {
		most = max(most, p[round])
	}
	return most
}

// player is one rank that plays its part of all scripts, in an order of its own,
// running ahead of the others as far as the Worker lets it.
type player struct {
	*cluster
	*Worker
	rng     *rand.Rand
	scripts []script
	at      []uint64 // round of a script that was started last
	whole   []bool   // that round was pushed with push_pull
	mine    [][]byte // the array that was pushed last, if a pull may land in it
	open    []promise
}

// promise is an open ticket and what holds when it has ended.
type promise struct {
	ticket *Ticket
	round  uint64
	array  []byte // nil: no result
	want   []byte
	what   string
}

func (p *player) play() {
	p.at, p.whole, p.mine = make([]uint64, len(p.scripts)), make([]bool, len(p.scripts)), make([][]byte, len(p.scripts))
	for _, i := range p.rng.Perm(len(p.scripts)) {
		s := &p.scripts[i]
		values := pushed(s.dtype, s.elements, len(p.workers), p.Rank, s.key, 0)
		p.promise(0, nil, nil, fmt.Sprintf("init of key %d", s.key))(p.Init(s.key, s.dtype, wire.Sync, values))
		clear(values) // init has copied them
	}
	for left := len(p.scripts) * len(p.scripts[0].rounds); left > 0; {
		i := p.rng.IntN(len(p.scripts))
		if _, err := p.TensorInfo(p.scripts[i].key); fault.CodeOf(err) == fault.Key { // not yet declared by all
			p.settle()
		}
		switch k := p.rng.IntN(10); {
		case k < 6 && p.at[i]+1 < uint64(len(p.scripts[i].rounds)):
			p.push(i)
			left--
		case k < 6 && p.at[i]+1 == uint64(len(p.scripts[i].rounds)):
			p.at[i]++ // to the end, where only pulls remain
			left--
		case k < 9:
			p.pull(i)
		default:
			p.settle()
		}
	}
	p.settle()
}

// last is the round of script i that was started last.
func (p *player) last(i int) uint64 {
	return min(p.at[i], uint64(len(p.scripts[i].rounds)-1))
}

// push plays the next round of script i.
func (p *player) push(i int) {
	s := &p.scripts[i]
	p.at[i]++
	round := p.at[i]
	what := fmt.Sprintf("round %d of key %d", round, s.key)
	part, priority := s.rounds[round], s.priority[p.Rank][round]
	p.whole[i], p.mine[i] = false, nil
	if !part.has(p.Rank) {
		p.promise(round, nil, nil, "skip of "+what)(p.Skip(s.key))
		return
	}
	array := pushed(s.dtype, s.elements, len(p.workers), p.Rank, s.key, round)
	want := part.expected(s.dtype, s.elements, len(p.workers), s.key, round)
	p.whole[i] = true
	switch p.rng.IntN(3) {
	case 0:
		p.whole[i], p.mine[i] = false, array
		p.promise(round, nil, nil, "push of "+what)(p.Push(s.key, s.dtype, array, part.op, priority))
	case 1:
		p.promise(round, array, want, "push_pull in place of "+what)(p.PushPull(s.key, s.dtype, array, array, part.op, priority))
	case 2:
		out := make([]byte, len(array))
		p.promise(round, out, want, "push_pull of "+what)(p.PushPull(s.key, s.dtype, array, out, part.op, priority))
	}
}

// pull pulls the last round of script i, sometimes into the array that it pushes.
func (p *player) pull(i int) {
	s := &p.scripts[i]
	round := p.last(i)
	array := make([]byte, s.elements*s.dtype.Size())
	if p.mine[i] != nil && p.rng.IntN(2) == 0 {
		array, p.mine[i] = p.mine[i], nil
	}
	ticket, err := p.Pull(s.key, s.dtype, array)
	if p.whole[i] {
		if err == nil {
			p.t.Errorf("rank %d pulled key %d round %d after a push_pull", p.Rank, s.key, round)
		}
		return
	}
	want := s.rounds[round].expected(s.dtype, s.elements, len(p.workers), s.key, round)
	p.promise(round, array, want, fmt.Sprintf("pull of key %d round %d", s.key, round))(ticket, err)
}

func (p *player) promise(round uint64, array, want []byte, what string) func(*Ticket, error) {
	return func(ticket *Ticket, err error) {
		if err != nil {
			p.t.Errorf("rank %d, %s: %v", p.Rank, what, err)
			return
		}
		p.open = append(p.open, promise{ticket, round, array, want, what})
	}
}

// settle waits for open tickets, in any order, and compares with the model: for
// those of rounds that this rank has started of every tensor, because ranks that
// wait for more in different orders may wait for each other.
func (p *player) settle() {
	p.rng.Shuffle(len(p.open), func(i, j int) { p.open[i], p.open[j] = p.open[j], p.open[i] })
	ready, later := slices.Min(p.at), []promise{}
	for _, o := range p.open {
		if o.round > ready {
			later = append(later, o)
			continue
		}
		if err := wait(p.t, p.Worker, o.ticket); err != nil {
			p.t.Errorf("rank %d, %s: %v", p.Rank, o.what, err)
		}
		if !bytes.Equal(o.array, o.want) {
			p.t.Errorf("rank %d, %s: not the sum that the model has", p.Rank, o.what)
		}
	}
	p.open = later
}

// picker chooses the next packet: any, mostly the newest, or mostly one run's.
func picker(from *rand.Rand) func(int) int {
	rng := rand.New(rand.NewPCG(from.Uint64(), 0)) // of its own: it is used on the network's goroutine
	style := rng.IntN(3)
	return func(n int) int {
		switch {
		case style == 1 && rng.IntN(4) > 0:
			return n - 1
		case style == 2 && rng.IntN(16) > 0:
			return n / 2
		}
		return rng.IntN(n)
	}
}

func TestClusters(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			synctest.Test(t, func(t *testing.T) { playCluster(t, rng) })
		})
	}
}

func playCluster(t *testing.T, rng *rand.Rand) {
	workerShares, serverShares := make([]uint32, 1+rng.IntN(5)), make([]uint32, rng.IntN(4))
	for i := range serverShares {
		serverShares[i] = 1 + rng.Uint32N(4)
	}
	for i := range workerShares {
		if len(serverShares) == 0 || rng.IntN(2) == 0 {
			workerShares[i] = 1 + rng.Uint32N(4)
		}
	}
	workers := len(workerShares)
	scripts := newScripts(rng, workers, 2+rng.IntN(8), 5)
	byID := make([]*script, len(scripts)+1)
	c := newCluster(t, workerShares, serverShares, picker(rng), func(rank int, h *wire.Header) {
		if h.Kind != wire.Sum {
			return
		}
		s := byID[h.Tensor]
		if s == nil {
			t.Errorf("a sum of tensor %d", h.Tensor)
		} else if want := s.urgency(h.Round); h.Priority != want || int(h.Contributors) != workers || h.Plan != 3 {
			t.Errorf("rank %d: the sum of key %d round %d has priority %d (expected %d), %d contributors, plan %d",
				rank, s.key, h.Round, h.Priority, want, h.Contributors, h.Plan)
		}
	})
	declare := c.workers[0].Declare
	c.workers[0].Declare = func(key uint64, t wire.Tensor, done func(uint32, error)) {
		declare(key, t, func(id uint32, err error) {
			for i := range scripts {
				if scripts[i].key == key {
					byID[id] = &scripts[i] // read once sums arrive, which this worker's contribution precedes
				}
			}
			done(id, err)
		})
	}
	var players sync.WaitGroup
	for _, w := range c.workers {
		p := &player{cluster: c, Worker: w, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), scripts: scripts}
		players.Go(p.play)
	}
	players.Wait()
	c.close()
	if strings.Contains(c.log.String(), "no progress") {
		t.Error(c.log.String())
	}
	for _, w := range c.workers {
		if got, want := w.Stats().Rounds, uint64(len(scripts)*len(scripts[0].rounds)); got != want {
			t.Errorf("rank %d has played %d rounds, expected %d", w.Rank, got, want)
		}
	}
}

// TestStallIsToldToThoseWhoWait: one rank keeps its push back; after some seconds
// of virtual time the others can say who it is, and the log too.
func TestStallIsToldToThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, []uint32{1, 0, 0}, []uint32{1}, nil, func(int, *wire.Header) {})
		defer c.close()
		const bytes = 4 * wire.PacketBytes // for every key both aggregators sum some of it
		var inits []*Ticket
		for _, w := range c.workers {
			ticket, err := w.Init(6, wire.Float32, wire.Sync, make([]byte, bytes))
			if err != nil {
				t.Fatal(err)
			}
			inits = append(inits, ticket)
		}
		for rank, w := range c.workers {
			if err := wait(t, w, inits[rank]); err != nil {
				t.Fatal(err)
			}
		}
		push := func(w *Worker) *Ticket {
			ticket, err := w.Push(6, wire.Float32, make([]byte, bytes), wire.OpSum, 0)
			if err != nil {
				t.Fatal(err)
			}
			return ticket
		}
		first, second := push(c.workers[0]), push(c.workers[2])
		next, err := c.workers[2].Skip(6)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * LogAfter) // virtual: the network's clock passes
		synctest.Wait()
		const text = "key 6 round 1: the sums of 0 of 4 packets are here; missing: worker 1"
		for _, e := range []struct {
			rank   int
			ticket *Ticket
			want   string
		}{{0, first, text}, {2, second, text}, {2, next, "waits for the round before it: " + text}} {
			if got := c.workers[e.rank].Tickets.Explain(e.ticket.ID); got != e.want {
				t.Errorf("rank %d: %q", e.rank, got)
			}
		}
		last := push(c.workers[1])
		for _, e := range []struct {
			rank   int
			ticket *Ticket
		}{{0, first}, {2, second}, {1, last}} {
			if err := wait(t, c.workers[e.rank], e.ticket); err != nil {
				t.Error(err)
			}
		}
		if text := c.workers[2].Tickets.Explain(next.ID); text != "key 6 round 2: the sums of 0 of 4 packets are here" {
			t.Errorf("the next round starts with %q", text)
		}
		first, last = push(c.workers[0]), push(c.workers[1])
		for rank, ticket := range []*Ticket{first, last, next} {
			if err := wait(t, c.workers[rank], ticket); err != nil {
				t.Error(err)
			}
		}
		if !strings.Contains(c.log.String(), `level=WARN msg="no progress for 5 s" key=6 round=1 missing="worker 1" other_keys=0`) {
			t.Errorf("the log is %q", c.log.String())
		}
	})
}
