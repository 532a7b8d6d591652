package kv

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fptps/gocore/wire"
)

var deaths = flag.Int("deaths", 300, "schedules with deaths of servers that TestDeaths plays")

// gone is a node's knowledge of dead nodes, or that it is dead itself. Its methods run on the network's goroutine, the receive loop
// of all nodes, unless they say otherwise.
type gone struct {
	mu   sync.Mutex
	rng  *rand.Rand
	dead bool            // it is this node: it handles nothing more
	lost map[uint32]bool // nodes that are dead: their connections may break at any packet
	cut  map[uint32]bool // nodes whose connections have broken
}

func newGone(seed uint64) *gone {
	return &gone{rng: rand.New(rand.NewPCG(seed, 7)), lost: map[uint32]bool{}, cut: map[uint32]bool{}}
}

// drops reports whether a packet of node is not read at all.
func (g *gone) drops(node uint32) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dead || g.cut[node]
}

// cuts reports whether a packet, whose payload is in its place, is not handled: of a dead node it may be the last one, of which
// only a part was read.
func (g *gone) cuts(node uint32) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost[node] && !g.cut[node] && g.rng.IntN(2) == 0 {
		g.cut[node] = true
		return true
	}
	return g.dead || g.cut[node]
}

// end ends the connection with a node; from any goroutine.
func (g *gone) end(node uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cut[node] = true
}

// killer kills servers of a cluster after a number of packets, and lets each node hear of it after some more, or when all else
// waits.
type killer struct {
	*cluster
	rng     *rand.Rand
	servers []int // ranks of those that die, in order
	mu      sync.Mutex
	packets int
	killAt  []int   // packets
	hearAt  [][]int // by death and worker
	heard   [][]bool
	bury    []chan uint32 // by worker
	buried  sync.WaitGroup
}

func newKiller(c *cluster, rng *rand.Rand, servers []int, packets int) *killer {
	k := &killer{cluster: c, rng: rng, servers: servers}
	for i, s := range c.spies {
		s.gone = newGone(rng.Uint64() + uint64(i))
	}
	for range c.workers {
		k.bury = append(k.bury, make(chan uint32, len(servers)))
	}
	for range servers {
		at := rng.IntN(packets)
		k.killAt = append(k.killAt, at)
		hear := make([]int, len(c.workers))
		for i := range hear {
			hear[i] = at + rng.IntN(1+rng.IntN(packets))
		}
		k.hearAt = append(k.hearAt, hear)
		k.heard = append(k.heard, make([]bool, len(c.workers)))
	}
	slices.Sort(k.killAt)
	for rank, w := range c.workers {
		k.buried.Go(func() {
			for node := range k.bury[rank] {
				w.Bury(Death{Node: node})
			}
		})
	}
	return k
}

// count counts a packet that was delivered.
func (k *killer) count() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.packets++
	k.pass(false)
}

// pass kills and tells. idle: nothing else will happen before.
func (k *killer) pass(idle bool) {
	for i, rank := range k.servers {
		if k.packets < k.killAt[i] && !idle {
			return
		}
		k.kill(rank)
		for worker := range k.workers {
			if !k.heard[i][worker] && (idle || k.packets >= k.hearAt[i][worker]) && (i == 0 || k.heard[i-1][worker]) {
				k.heard[i][worker] = true
				k.spyOf(workerID(worker)).gone.end(serverID(rank))
				k.bury[worker] <- serverID(rank)
			}
		}
	}
}

func (k *killer) kill(rank int) {
	for _, s := range k.spies {
		s.gone.mu.Lock()
		s.gone.dead = s.gone.dead || s.Self == serverID(rank)
		s.gone.lost[serverID(rank)] = true
		s.gone.mu.Unlock()
	}
}

func (k *killer) spyOf(node uint32) *spy {
	return k.spies[slices.IndexFunc(k.spies, func(s *spy) bool { return s.Self == node })]
}

// haunt lets what is left of the deaths happen whenever all else waits, until done closes.
func (k *killer) haunt(done <-chan struct{}) {
	for {
		select {
		case <-done:
			k.mu.Lock()
			k.pass(true)
			k.mu.Unlock()
			for _, c := range k.bury {
				close(c)
			}
			k.buried.Wait()
			return
		case <-time.After(100 * time.Millisecond): // virtual: all other goroutines wait
			k.mu.Lock()
			k.pass(true)
			k.mu.Unlock()
		}
	}
}

// TestDeaths plays clusters in which servers die: whenever that happens, each sum is that of all contributions, each once.
func TestDeaths(t *testing.T) {
	for seed := range uint64(*deaths) {
		rng := rand.New(rand.NewPCG(seed, 9))
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { playDeaths(t, rng) })
		})
		if !ok {
			return
		}
	}
}

func playDeaths(t *testing.T, rng *rand.Rand) {
	workerShares, serverShares := make([]uint32, 1+rng.IntN(4)), make([]uint32, 1+rng.IntN(3))
	for i := range serverShares {
		serverShares[i] = 1 + rng.Uint32N(4)
	}
	for i := range workerShares {
		workerShares[i] = rng.Uint32N(3)
	}
	scripts := newScripts(rng, len(workerShares), 1+rng.IntN(5), 5)
	var k *killer
	plans := rng.IntN(2) == 0
	c := newCluster(t, workerShares, serverShares, picker(rng), func(int, *wire.Header) {
		if plans {
			time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond) // so that a play takes a while
		}
		k.count()
	})
	recovers(c)
	stop := func() {}
	if plans {
		stop = changePlans(c, rng, len(serverShares))
	}
	k = newKiller(c, rng, rng.Perm(len(serverShares))[:1+rng.IntN(len(serverShares))], 1+rng.IntN(400))
	done := make(chan struct{})
	var haunted, players sync.WaitGroup
	haunted.Go(func() { k.haunt(done) })
	for _, w := range c.workers {
		p := &player{cluster: c, Worker: w, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), scripts: scripts}
		p.mayLose = true
		players.Go(p.play)
	}
	players.Wait()
	stop()
	close(done)
	haunted.Wait()
	synctest.Wait()
	c.close()
	if strings.Contains(c.log.String(), "no progress") {
		t.Error(c.log.String())
	}
}

// changePlans has plans change all the time until stop is called; some of them name dead servers.
func changePlans(c *cluster, rng *rand.Rand, servers int) (stop func()) {
	o := newOffice(c, rng)
	ended := make(chan struct{})
	var planning sync.WaitGroup
	own := rand.New(rand.NewPCG(rng.Uint64(), 10))
	planning.Go(func() { o.changePlans(own, servers, 20, ended) })
	return func() {
		close(ended)
		planning.Wait()
		o.close()
	}
}

// recovers makes a cluster, before its first packet, one that survives the deaths of servers.
func recovers(c *cluster) {
	var ids []uint32
	for _, s := range c.spies {
		ids = append(ids, s.Self)
	}
	for _, a := range c.aggregators {
		a.Recover()
	}
	for _, w := range c.workers {
		w.Recovers, w.Aggregators = true, ids
	}
}
