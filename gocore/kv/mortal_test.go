package kv

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fptps/gocore/plan"
	"fptps/gocore/wire"
)

// mortal is an office whose nodes die, workers too. It decides about rounds as the scheduler does.
type mortal struct {
	*office
	chains  []chan func() // by spy: what follows a death on that node, in order
	working sync.WaitGroup

	backups *backups // nil: there are none

	state struct {
		sync.Mutex
		killed   []bool                 // by spy
		verdicts []bool                 // by spy
		deaths   []int                  // ranks of dead workers, by verdict
		reports  map[int]wire.Rounds    // by spy, of the last of these
		epochs   map[string]map[int]int // of sums, by script and round, and by rank
	}
}

// newMortal makes the office of a cluster that recovers. Workers play after that.
func newMortal(c *cluster, rng *rand.Rand) *mortal {
	m := &mortal{office: newOffice(c, rng)}
	for i, s := range c.spies {
		s.gone = newGone(rng.Uint64() + uint64(i))
		m.chains = append(m.chains, inOrder(rand.New(rand.NewPCG(rng.Uint64(), 2)), &m.working))
	}
	m.office.mortal = m
	m.state.killed, m.state.verdicts = make([]bool, len(c.spies)), make([]bool, len(c.spies))
	m.state.epochs = map[string]map[int]int{}
	return m
}

// dead reports whether a worker was killed.
func (m *mortal) dead(rank int) bool {
	m.state.Lock()
	defer m.state.Unlock()
	return m.state.killed[m.indexOf(rank)]
}

func (m *mortal) placeOf(node uint32) int {
	return slices.IndexFunc(m.spies, func(s *spy) bool { return s.Self == node })
}

// absent are the ranks that are missing from a sum.
func (m *mortal) absent(rank int, o promise) []int {
	m.state.Lock()
	defer m.state.Unlock()
	name, epoch := fmt.Sprintf("key %d round %d", o.script.key, o.round), o.ticket.Epoch()
	if m.state.epochs[name] == nil {
		m.state.epochs[name] = map[int]int{}
	}
	m.state.epochs[name][rank] = epoch
	return m.state.deaths[:epoch]
}

// check checks that all workers that live at the end have had sums of the same epochs. Of the others only the dead one itself may have
// had a sum.
func (m *mortal) check() {
	for name, epochs := range m.state.epochs {
		for rank := range m.workers {
			if m.state.killed[m.indexOf(rank)] {
				delete(epochs, rank)
			}
		}
		for rank, epoch := range epochs {
			for other, its := range epochs {
				if its != epoch {
					m.t.Errorf("%s: a sum of epoch %d on rank %d, of epoch %d on rank %d", name, epoch, rank, its, other)
				}
			}
		}
	}
}

// kill ends a node, on the goroutine of the network.
func (m *mortal) kill(node uint32) {
	victim := m.placeOf(node)
	m.state.Lock()
	m.state.killed[victim] = true
	m.state.Unlock()
	for i, s := range m.spies {
		s.gone.mu.Lock()
		s.gone.dead = s.gone.dead || i == victim
		s.gone.lost[node] = true
		s.gone.mu.Unlock()
	}
	if w := m.spies[victim].Worker; w != nil {
		go w.Fail(fmt.Errorf("killed"))
	}
}

// judge is the scheduler's verdict on a dead node.
func (m *mortal) judge(node uint32) {
	victim, rank := m.placeOf(node), -1
	if w := m.spies[victim].Worker; w != nil {
		rank = w.Rank
	}
	m.office.mu.Lock()
	defer m.office.mu.Unlock()
	m.state.Lock()
	defer m.state.Unlock()
	m.state.verdicts[victim] = true
	settles, heir := rank >= 0 || m.backups != nil, m.backups.succeed(node, len(m.state.deaths)+1)
	if settles {
		m.state.deaths, m.state.reports = append(m.state.deaths, rank), map[int]wire.Rounds{}
	}
	epoch := len(m.state.deaths)
	for i, s := range m.spies {
		if m.state.verdicts[i] {
			continue
		}
		m.inboxes[i] <- func() {
			s.gone.end(node)
			if settles && s.Worker != nil {
				s.Worker.Freeze(node)
			}
			m.chains[i] <- func() { m.bury(i, Death{node, heir, settles}, rank, epoch) }
		}
	}
	m.settle()
	m.agree()
}

// bury is what a node does after a verdict, when its connections with the dead have ended.
func (m *mortal) bury(i int, dead Death, rank, epoch int) {
	var complete wire.Rounds
	if dead.Settles {
		m.aggregators[i].Bury(rank)
	}
	m.backups.hear(i, dead, epoch)
	if w := m.spies[i].Worker; w != nil {
		w.Bury(dead)
		complete, _ = w.Complete()
	}
	m.office.mu.Lock()
	defer m.office.mu.Unlock()
	m.state.Lock()
	defer m.state.Unlock()
	if dead.Settles && epoch == len(m.state.deaths) && !m.state.killed[i] {
		m.state.reports[i] = complete
		m.settle()
	}
}

func (m *mortal) unsettled() bool {
	m.state.Lock()
	defer m.state.Unlock()
	return m.state.reports != nil
}

// settle decides about the rounds once all nodes have reported.
func (m *mortal) settle() {
	if m.state.reports == nil {
		return
	}
	var lists []wire.Rounds
	for i, s := range m.spies {
		report, has := m.state.reports[i]
		if !has && !m.state.verdicts[i] {
			return
		}
		if !m.state.verdicts[i] && s.Worker != nil {
			lists = append(lists, report)
		}
	}
	m.state.reports = nil
	most := wire.MostRounds(lists)
	for i, s := range m.spies {
		if w := s.Worker; w != nil && !m.state.verdicts[i] {
			m.inboxes[i] <- func() {
				if err := w.Settle(most); err != nil {
					m.t.Error(err)
				}
			}
		}
	}
}

// TestWorkersDie plays clusters in which workers and servers die while plans change: each sum has the contributions of the workers of its
// epoch, each once, and all workers agree on the epoch.
func TestWorkersDie(t *testing.T) {
	for seed := range uint64(*deaths) {
		rng := rand.New(rand.NewPCG(seed, 11))
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { playWorkersDie(t, rng) })
		})
		if !ok {
			return
		}
	}
}

func playWorkersDie(t *testing.T, rng *rand.Rand) {
	workerShares, serverShares := make([]uint32, 2+rng.IntN(3)), make([]uint32, rng.IntN(3))
	for i := range serverShares {
		serverShares[i] = 1 + rng.Uint32N(4)
	}
	for i := range workerShares {
		workerShares[i] = rng.Uint32N(3)
	}
	workerShares[0]++
	scripts := newScripts(rng, len(workerShares), 1+rng.IntN(5), 5)
	var victims []uint32
	for _, rank := range rng.Perm(len(workerShares))[:1+rng.IntN(len(workerShares)-1)] {
		victims = append(victims, workerID(rank))
	}
	for _, rank := range rng.Perm(len(serverShares))[:rng.IntN(1+len(serverShares))] {
		victims = append(victims, serverID(rank))
	}
	rng.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
	at := make([]int, len(victims))
	for i := range at {
		at[i] = rng.IntN(400)
	}
	slices.Sort(at)
	killed, packets := make(chan uint32, len(victims)), 0
	var over atomic.Bool // nobody dies any more
	var m *mortal
	c := newCluster(t, workerShares, serverShares, picker(rng), func(int, *wire.Header) {
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond) // so that a play takes a while
		for packets++; len(at) > 0 && packets >= at[0] && !over.Load(); at = at[1:] {
			m.kill(victims[0])
			killed <- victims[0]
			victims = victims[1:]
		}
	})
	recovers(c)
	m = newMortal(c, rng)
	stop := make(chan struct{})
	var ruling, players sync.WaitGroup
	own, plans := rand.New(rand.NewPCG(rng.Uint64(), 10)), rng.IntN(2) == 0
	ruling.Go(func() { m.rule(own, len(serverShares), plans, killed, stop) })
	for _, w := range c.workers {
		p := &player{cluster: c, Worker: w, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), scripts: scripts, mayLose: true, mortal: m}
		players.Go(p.play)
	}
	players.Wait()
	over.Store(true)
	time.Sleep(time.Second) // the last verdict is passed
	close(stop)
	ruling.Wait()
	for m.unsettled() {
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(3 * time.Second) // aggregators forget what only dead workers have contributed
	m.office.close()
	for _, chain := range m.chains {
		close(chain)
	}
	m.working.Wait()
	synctest.Wait()
	c.close()
	m.check()
	if strings.Contains(c.log.String(), "no progress") {
		t.Error(c.log.String())
	}
}

// rule is the scheduler: it passes verdicts, and changes plans meanwhile.
func (m *mortal) rule(rng *rand.Rand, servers int, plans bool, killed <-chan uint32, stop <-chan struct{}) {
	for number := uint32(1); ; number++ {
		pause := time.Hour
		if plans {
			pause = time.Duration(rng.IntN(20)) * time.Millisecond
		}
		select {
		case <-stop:
			return
		case node := <-killed:
			time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
			m.judge(node)
		case <-time.After(pause):
			p, err := plan.New(randomShares(rng, len(m.workers), servers))
			if err != nil {
				m.t.Error(err)
			}
			if node := m.change(number, p, rng.IntN(4) == 0, killed); node != 0 {
				m.judge(node)
			}
		}
	}
}
