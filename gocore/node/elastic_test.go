package node

import (
	"context"
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

	"fptps/gocore/cluster"
	"fptps/gocore/transport/mem"
	"fptps/gocore/van"
	"fptps/gocore/van/memvan"
)

var changes = flag.Int("changes", 150, "clusters that TestWorkersComeAndGo plays")

// TestWorkersComeAndGo plays whole clusters on virtual time, with the real scheduler: workers and servers come and die at any moment. Each
// sum has the contributions of the workers of its epoch, each once; all agree on the epoch of each round; newcomers go on from the state of the others;
// and all that live reach the end.
func TestWorkersComeAndGo(t *testing.T) {
	lost := 0
	for seed := range uint64(*changes) {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCompany(t, seed)
				c.play()
				if c.lost {
					lost++
				}
			})
		})
		if !ok {
			return
		}
	}
	if lost > 2+*changes/50 {
		t.Errorf("in %d of %d clusters weights were lost", lost, *changes)
	}
}

const (
	companyKeys  = 3
	companySteps = 25
	longest      = 10 * time.Minute // of virtual time
)

// company is a cluster, and the nodes that come to it.
type company struct {
	t       *testing.T
	rng     *rand.Rand // of the test's goroutine
	vans    *memvan.Network
	data    *mem.Network
	config  cluster.Config
	members sync.WaitGroup  // goroutines
	joining context.Context // ends when nobody comes any more
	end     context.CancelFunc
	waits   chan struct{} // one goroutine at a time may call synctest.Wait: it has a place in here

	mu      sync.Mutex
	random  *rand.Rand
	runner  *cluster.Runner // the latest one
	sched   van.Van         // its van
	lives   int             // schedulers so far
	absent  bool            // the last one is dead, and the next one has not been started
	actors  []*actor
	epochs  map[string]map[int]int // of sums, by key and step, and by rank
	weights map[int][]byte         // of ruledKey, by step
	orphans map[int]int            // by dead node: its backup, until that hears the verdict
	over    bool                   // nobody comes or dies any more
	lost    bool                   // the cluster has ended, as weights were lost: see loses
	trace   []string               // what the nodes have heard
	begin   time.Time
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
		t: t, rng: rand.New(rand.NewPCG(seed, 21)), random: rand.New(rand.NewPCG(seed, 22)), epochs: map[string]map[int]int{}, weights: map[int][]byte{}, orphans: map[int]int{},
		vans: memvan.New(seed, 5*time.Millisecond), begin: time.Now(), waits: make(chan struct{}, 1),
	}
	pick := rand.New(rand.NewPCG(seed, 23))
	c.joining, c.end = context.WithCancel(context.Background())
	c.data = mem.New(func(n int) int { return pick.IntN(n) })
	c.config = cluster.Config{
		SchedulerHost: "sched", SchedulerPort: 9000, Workers: 1 + c.rng.IntN(3), Servers: c.rng.IntN(3), Share: cluster.Unset, Recovers: true, MinWorkers: 1,
		Replicas: c.rng.IntN(2), MaxWorkers: 6, SchedulerTimeout: longest / 2, HeartbeatInterval: 5 * time.Second, HeartbeatTimeout: 30 * time.Second, Log: slog.New(slog.DiscardHandler),
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
	c.serve()
	for range c.config.Workers {
		c.enter(cluster.RoleWorker)
	}
	for range c.config.Servers {
		c.enter(cluster.RoleServer)
	}
	<-c.runner.Joined()
	for range 4 + c.rng.IntN(8) {
		time.Sleep(time.Duration(c.rng.IntN(120)) * time.Millisecond)
		switch n := c.rng.IntN(10); {
		case n < 4:
			c.enter(cluster.RoleWorker)
		case n < 5:
			c.enter(cluster.RoleServer)
		case n < 7:
			c.replaceScheduler()
		default:
			c.kill()
		}
	}
	c.members.Wait()
	runner := c.runner
	select {
	case <-runner.Done():
		if err := runner.Err(); err != nil && !c.isAnother(runner) && !c.isAfterEnd(err) && !c.loses(err.Error()) {
			c.t.Errorf("the cluster ended by %v", err)
		}
	case <-time.After(longest):
		select {
		case <-runner.Joined():
			c.t.Error("the cluster does not end")
		default: // it had ended before this scheduler was there
		}
	}
	if !c.loses("") {
		c.check()
	}
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
	a.number = number
	c.mu.Unlock()
	a.van = c.vans.Van(fmt.Sprintf("host%d", number))
	config := c.config
	config.Role, config.Host, config.Incarnation = role, fmt.Sprintf("host%d", number), uint64(100+number)
	c.members.Go(func() {
		err := a.live(config)
		if err != nil && !a.isDead() && !c.isAfterEnd(err) && !c.loses(err.Error()) && !strings.Contains(err.Error(), "have ended the training") && !(a.isLate() && strings.Contains(err.Error(), "scheduler was lost")) {
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
	if victim.worker != nil && victim.full && full < 2 || !c.mayDie(victim) {
		return
	}
	victim.dead = true
	if victim.whole != 0 {
		c.orphans[victim.id] = victim.whole
	}
	c.vans.Isolate(victim.van)
	delay := time.Duration(c.random.IntN(20)) * time.Millisecond
	c.members.Go(func() {
		c.note(victim, "is dead")
		time.Sleep(delay)
		m := victim.post.View().Me()
		c.suspect(m)
		c.mu.Lock()
		runner := c.runner
		c.mu.Unlock()
		runner.Gone(m.ID, m.Incarnation, "killed")
		victim.post.Close()
		if victim.worker != nil {
			victim.worker.Fail(errors.New("killed"))
		}
	})
}
