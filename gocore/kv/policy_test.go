package kv

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/store"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// What each consistency promises, in whole clusters whose connections delay what they carry, each for itself, and carry some
// contributions twice.

// slowPlane is a node's way into such a network.
type slowPlane struct {
	DataPlane
	rng   *rand.Rand
	mu    sync.Mutex
	lanes map[uint32]chan transport.Outgoing
	ended sync.WaitGroup
}

func (p *slowPlane) Send(node uint32, m transport.Outgoing) {
	owner := m.Owner
	m.Data, m.Owner = slices.Clone(m.Data), nil // whoever sends may go on at once
	p.mu.Lock()
	lane := p.lanes[node]
	if lane == nil {
		lane = make(chan transport.Outgoing, 10000)
		p.lanes[node] = lane
		rng := rand.New(rand.NewPCG(p.rng.Uint64(), 0))
		p.ended.Go(func() { p.carry(node, lane, rng) })
	}
	p.mu.Unlock()
	lane <- m
	if owner != nil {
		owner.Release()
	}
}

func (p *slowPlane) carry(node uint32, lane chan transport.Outgoing, rng *rand.Rand) {
	var again []transport.Outgoing
	for m := range lane {
		time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
		p.DataPlane.Send(node, m)
		if contributes := m.Header.Kind == wire.Contrib || m.Header.Kind == wire.Empty; contributes && rng.IntN(3) == 0 {
			again = append(again, m)
		}
		if len(again) > 0 && rng.IntN(2) == 0 { // at once, or much later
			p.DataPlane.Send(node, again[0])
			again = again[1:]
		}
	}
}

// slow has all that a cluster sends delayed; the function that it gives ends that.
func (c *cluster) slow(rng *rand.Rand) (end func()) {
	var planes []*slowPlane
	wrap := func(plane DataPlane) DataPlane {
		planes = append(planes, &slowPlane{DataPlane: plane, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), lanes: map[uint32]chan transport.Outgoing{}})
		return planes[len(planes)-1]
	}
	for _, a := range c.aggregators {
		a.plane = wrap(a.plane)
	}
	for _, w := range c.workers {
		w.Lanes[0] = wrap(w.Lanes[0])
	}
	return func() {
		for _, p := range planes {
			for _, lane := range p.lanes {
				close(lane)
			}
			p.ended.Wait()
		}
	}
}

// ledger is a tensor of int64, from each of whose packets a test can read which pushes are in it: a push of worker w in a round adds 1 to
// element w, and a number that only this push has to element workers+w.
type ledger struct {
	t                *testing.T
	packets, workers int
}

const perPacket = wire.PacketBytes / 8

func (l ledger) bytes() int { return (l.packets-1)*wire.PacketBytes + 16*l.workers }

func once(packet, rank int, round uint64) int64 { return int64(mix(packet, rank, int(round)) >> 20) }

func (l ledger) push(rank int, round uint64) []byte {
	array := make([]byte, l.bytes())
	for p := range l.packets {
		at := array[8*perPacket*p:]
		binary.LittleEndian.PutUint64(at[8*rank:], 1)
		binary.LittleEndian.PutUint64(at[8*(l.workers+rank):], uint64(once(p, rank, round)))
	}
	return array
}

// clocks gives the rounds of each worker that are in each packet of a value: the first so many, each once.
func (l ledger) clocks(array []byte) [][]uint64 {
	l.t.Helper()
	all := make([][]uint64, l.packets)
	for p := range all {
		at := array[8*perPacket*p:]
		for rank := range l.workers {
			rounds, sum := binary.LittleEndian.Uint64(at[8*rank:]), int64(0)
			for round := range min(rounds, 100) { // nonsense may be large
				sum += once(p, rank, round+1)
			}
			if got := int64(binary.LittleEndian.Uint64(at[8*(l.workers+rank):])); got != sum {
				l.t.Errorf("packet %d: %d rounds of worker %d, but not its first ones, each once", p, rounds, rank)
			}
			all[p] = append(all[p], rounds)
		}
	}
	return all
}

func TestPolicies(t *testing.T) {
	for _, policy := range []wire.Policy{wire.Async, wire.Bounded(0), wire.Bounded(1), wire.Bounded(3)} {
		for seed := range uint64(8) {
			t.Run(fmt.Sprintf("%v %d", policy, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { playPolicy(t, policy, rand.New(rand.NewPCG(seed, 21))) })
			})
		}
	}
}

func playPolicy(t *testing.T, policy wire.Policy, rng *rand.Rand) {
	const rounds = 8
	shares, servers := make([]uint32, 1+rng.IntN(4)), make([]uint32, 1+rng.IntN(2))
	for i := range servers {
		servers[i] = 1
	}
	for i := range shares {
		shares[i] = rng.Uint32N(2)
	}
	l := ledger{t, 3, len(shares)}
	c := newCluster(t, shares, servers, nil, func(int, *wire.Header) {})
	c.initAll(wire.Int64, policy, make([]byte, l.bytes()))
	end := c.slow(rng)
	var mu sync.Mutex
	begun := make([]uint64, l.workers) // rounds

	var players sync.WaitGroup
	for rank, w := range c.workers {
		pause := rng.IntN(60) // some are slow
		players.Go(func() {
			for round := uint64(1); round <= rounds; round++ {
				time.Sleep(time.Duration(pause) * time.Millisecond)
				mu.Lock()
				begun[rank] = round
				mu.Unlock()
				out := l.push(rank, round)
				ticket, err := w.PushPull(6, wire.Int64, out, out, wire.OpSum, int32(rank))
				if err == nil {
					err = wait(t, w, ticket)
				}
				if err != nil {
					t.Errorf("rank %d round %d: %v", rank, round, err)
					return
				}
				mu.Lock()
				slowest := slices.Min(begun)
				mu.Unlock()
				if round > slowest && round-slowest > policy.Delay() {
					t.Errorf("rank %d ends its round %d while another has only begun %d", rank, round, slowest)
				}
				for p, clock := range l.clocks(out) {
					if clock[rank] != round || slices.Max(clock)-slices.Min(clock) > policy.Delay() {
						t.Errorf("rank %d round %d packet %d: the value has the rounds %v", rank, round, p, clock)
					}
				}
			}
		})
	}
	players.Wait()
	c.all(func(w *Worker) (*Ticket, error) { return w.Skip(6) }) // which brings the value as it is when all are through
	for rank, w := range c.workers {
		out := make([]byte, l.bytes())
		pull, err := w.Pull(6, wire.Int64, out)
		if err == nil {
			err = wait(t, w, pull)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, clock := range l.clocks(out) {
			if !slices.Equal(clock, slices.Repeat([]uint64{rounds}, l.workers)) {
				t.Errorf("rank %d, at the end: %v", rank, clock)
			}
		}
	}
	end()
	c.close()
}

// TestFastWorkerWaitsNoLonger: where nothing takes time but one worker's pushes, the fast one's rounds end at the very moment
// at which the slow one's round allows it.
func TestFastWorkerWaitsNoLonger(t *testing.T) {
	const delay, pause, rounds = 2, 10 * time.Second, 6
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, []uint32{1, 0}, []uint32{1}, nil, func(int, *wire.Header) {})
		defer c.close()
		c.initAll(wire.Float32, wire.Bounded(delay), make([]byte, 3*wire.PacketBytes))
		start := time.Now()
		run := func(w *Worker, before time.Duration, check func(round int)) func() {
			return func() {
				array := make([]byte, 3*wire.PacketBytes)
				for round := 1; round <= rounds; round++ {
					time.Sleep(before)
					ticket, err := w.PushPull(6, wire.Float32, array, array, wire.OpSum, 0)
					if err == nil {
						err = wait(t, w, ticket)
					}
					if err != nil {
						t.Error(err)
					}
					check(round)
				}
			}
		}
		var both sync.WaitGroup
		both.Go(run(c.workers[0], 0, func(round int) {
			if got, want := time.Since(start), time.Duration(max(0, round-delay))*pause; got != want {
				t.Errorf("round %d of the fast worker ends after %v, expected %v", round, got, want)
			}
		}))
		both.Go(run(c.workers[1], pause, func(round int) {
			if got, want := time.Since(start), time.Duration(round)*pause; got != want {
				t.Errorf("round %d of the slow worker ends after %v, expected %v", round, got, want)
			}
		}))
		both.Wait()
	})
}

// TestBoundedStallIsReported: whoever waits for a slower worker can say which, and the end of a node ends the wait.
func TestBoundedStallIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, []uint32{1, 0, 0}, []uint32{1}, nil, func(int, *wire.Header) {})
		c.initAll(wire.Float32, wire.Bounded(0), make([]byte, 4*wire.PacketBytes))
		var tickets []*Ticket
		for _, w := range c.workers[:2] {
			ticket, err := w.Push(6, wire.Float32, make([]byte, 4*wire.PacketBytes), wire.OpSum, 0)
			if err != nil {
				t.Fatal(err)
			}
			tickets = append(tickets, ticket)
		}
		time.Sleep(2 * LogAfter)
		synctest.Wait()
		for rank, ticket := range tickets {
			const want = "key 6 round 1: the sums of 0 of 4 packets are here; missing: worker 2"
			if got := ticket.Explain().Text; got != want {
				t.Errorf("rank %d: %q", rank, got)
			}
		}
		c.network.Close()
		for rank, w := range c.workers {
			w.Fail(fault.New(fault.NodeLost, "worker 2 was lost"))
			if rank < 2 {
				if err := wait(t, w, tickets[rank]); fault.CodeOf(err) != fault.NodeLost {
					t.Errorf("rank %d: error %v", rank, err)
				}
			}
		}
		c.close()
		if !strings.Contains(c.log.String(), `level=WARN msg="no progress for 5 s" key=6 round=1 missing="worker 2" other_keys=0`) {
			t.Errorf("the log is %q", c.log.String())
		}
	})
}

// TestSyncEqualsOneProcess: weights that workers train together are, bit by bit, those of one worker that has all the
// gradients, whatever the network does. The gradients are small whole numbers, so that their sum does not depend on the order.
func TestSyncEqualsOneProcess(t *testing.T) {
	const rounds, elements = 6, 3*wire.PacketBytes/4 - 100
	gradient := func(ranks []int, round int) []byte {
		array := make([]byte, 0, 4*elements)
		for i := range elements {
			sum := 0
			for _, rank := range ranks {
				sum += int(mix(rank, round, i)>>30) % 100
			}
			array = appendElement(array, wire.Float32, sum)
		}
		return array
	}
	train := func(t *testing.T, c *cluster, rule store.Rule, ranks func(rank int) []int) [][]byte {
		c.initAll(wire.Float32, wire.Sync, make([]byte, 4*elements))
		c.one(func(w *Worker) (*Ticket, error) { return w.SetRule(nil, rule) })
		weights := make([][]byte, len(c.workers))
		var workers sync.WaitGroup
		for rank, w := range c.workers {
			workers.Go(func() {
				for round := range rounds {
					if round == 3 {
						if err := c.workers[rank].SetLearningRate(nil, 0.01); err != nil {
							t.Error(err)
						}
					}
					weights[rank] = gradient(ranks(rank), round)
					ticket, err := w.PushPull(6, wire.Float32, weights[rank], weights[rank], wire.OpSum, 0)
					if err == nil {
						err = wait(t, w, ticket)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		workers.Wait()
		return weights
	}
	for _, rule := range []store.Rule{
		{Kind: store.SGD, Rate: 0.1, Momentum: 0.9, WeightDecay: 0.01}, {Kind: store.Adam, Rate: 0.1, Betas: [2]float64{0.9, 0.99}, Eps: 1e-8},
	} {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(8, 8))
			one := newCluster(t, []uint32{1}, nil, nil, func(int, *wire.Header) {})
			want := train(t, one, rule, func(int) []int { return []int{0, 1, 2} })[0]
			one.close()
			c := newCluster(t, []uint32{1, 0, 0}, []uint32{1, 2}, picker(rng), func(int, *wire.Header) {})
			end := c.slow(rng)
			for rank, got := range train(t, c, rule, func(rank int) []int { return []int{rank} }) {
				if !bytes.Equal(got, want) {
					t.Errorf("%s: rank %d has other weights than one process", rule.Kind, rank)
				}
			}
			end()
			c.close()
		})
	}
}
