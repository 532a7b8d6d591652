package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/van"
	"fptps/gocore/van/memvan"
	"fptps/gocore/wire"
)

const schedulerPort = 9000

// bench is a network on which tests start clusters. All of it lives in a synctest
// bubble: time is virtual, and synctest.Wait returns when no goroutine has anything to do.
type bench struct {
	t        *testing.T
	net      *memvan.Network
	config   Config // of every node, unless a test changes its copy
	runner   *Runner
	sched    van.Van // of the runner
	respond  bool    // nodes respond to the scheduler as nodes do: see robot
	vans     map[*Postoffice]van.Van
	progress func() Progress // of every node
	records  map[*Postoffice]*record
	mu       sync.Mutex // of the maps and the config
}

// record holds the events of a node.
type record struct {
	mu      sync.Mutex
	lost    []string
	waiting []string
	failed  []error
	mail    []string
	closed  []string
	changes []string // nodes that died, and others in their places
	epochs  []int    // that began
	settled []string // what was decided about rounds
	passed  uint64   // how often its program has passed the place where newcomers are admitted
}

func (l *record) events() Events {
	return Events{
		Lost: func(id int, why string) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.lost = append(l.lost, Name(id)+": "+why)
		},
		Vacated: func(id int, why string) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.changes = append(l.changes, Name(id)+" died")
		},
		Buried: func(b Burial) {
			l.mu.Lock()
			defer l.mu.Unlock()
			change := Name(b.ID) + " is buried: " + b.Why
			if b.Heir != 0 {
				change += "; heir: " + Name(b.Heir)
			}
			l.changes = append(l.changes, change)
			if b.Epoch > 0 {
				l.epochs = append(l.epochs, b.Epoch)
			}
		},
		Settled: func(complete wire.Rounds) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.settled = append(l.settled, fmt.Sprint(complete.Counts, complete.Last))
		},
		Recovered: func(m Member) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.changes = append(l.changes, Name(m.ID)+" is at "+m.Host)
		},
		Came: func(m Member) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.changes = append(l.changes, Name(m.ID)+" came")
		},
		Admitted: func(m Member, epoch int, points uint64) {
			l.mu.Lock()
			defer l.mu.Unlock()
			text := fmt.Sprintf("%s is admitted in epoch %d", Name(m.ID), epoch)
			if m.Role == RoleWorker {
				text += fmt.Sprintf(", point %d", points)
			}
			l.changes = append(l.changes, text)
		},
		Gather: func() uint64 {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.passed
		},
		Meet: func(point uint64) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.changes = append(l.changes, fmt.Sprintf("all meet at %d", point))
		},
		Waiting: func(name string, missing []string) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.waiting = append(l.waiting, name+": "+strings.Join(missing, ", "))
		},
		Closed: func(id int, last wire.Rounds) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.closed = append(l.closed, fmt.Sprintf("%s: %v %v", Name(id), last.Counts, last.Last))
		},
		Message: func(from Member, e *van.Envelope) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.mail = append(l.mail, fmt.Sprintf("%s: %d %q", Name(from.ID), e.Meta.GetHead(), e.Data))
		},
		Failed: func(err error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.failed = append(l.failed, err)
		},
	}
}

func (l *record) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("lost %q, waiting %q, failed %v", l.lost, l.waiting, l.failed)
}

// letters is the mail so far.
func (l *record) letters() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.mail)
}

// inBubble runs f with a bench on a network of the seed's delays, up to 50 ms.
func inBubble(t *testing.T, seed uint64, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(&bench{
			t: t, net: memvan.New(seed, 50*time.Millisecond), vans: map[*Postoffice]van.Van{}, records: map[*Postoffice]*record{},
			config: Config{
				SchedulerHost: "sched", SchedulerPort: schedulerPort, Incarnation: 1,
				HeartbeatInterval: 5 * time.Second, HeartbeatTimeout: 30 * time.Second, SchedulerTimeout: 20 * time.Second,
				Log: slog.New(slog.DiscardHandler),
			},
		})
	})
}

// serve starts the scheduler.
func (b *bench) serve(workers, servers int) {
	b.t.Helper()
	b.mu.Lock()
	b.config.Workers, b.config.Servers = workers, servers
	c := b.config
	b.mu.Unlock()
	c.Role = RoleScheduler
	b.sched = b.net.Van("sched")
	r, err := Serve(b.sched, c, Events{})
	if err != nil {
		b.t.Fatal(err)
	}
	b.runner = r
	b.t.Cleanup(r.Close)
}

// join brings one node into the cluster; change may be nil.
func (b *bench) join(ctx context.Context, role Role, host string, change func(*Config)) (*Postoffice, error) {
	b.mu.Lock()
	c := b.config
	b.mu.Unlock()
	c.Role, c.Host = role, host
	for _, letter := range host {
		c.Incarnation = c.Incarnation*131 + uint64(letter)
	}
	if change != nil {
		change(&c)
	}
	v, l := b.net.Van(host), &record{}
	events, bot := l.events(), &robot{joined: make(chan struct{})}
	events.Progress = b.progress
	if b.respond {
		events = bot.events(events)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p, err := Join(ctx, v, c, events)
	if err != nil {
		return nil, err
	}
	bot.p = p
	close(bot.joined)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.vans[p], b.records[p] = v, l
	b.t.Cleanup(p.Close)
	return p, nil
}

// start brings a whole cluster up: the workers by rank, the servers by rank.
func (b *bench) start(workers, servers int) (w, s []*Postoffice) {
	b.t.Helper()
	b.serve(workers, servers)
	w, s = make([]*Postoffice, workers), make([]*Postoffice, servers)
	b.each(workers+servers, func(i int) error {
		role, all, host := RoleWorker, w, fmt.Sprintf("w%02d", i)
		if i >= workers {
			role, all, host = RoleServer, s, fmt.Sprintf("s%02d", i)
		}
		p, err := b.join(context.Background(), role, host, nil)
		if err == nil {
			all[p.View().Rank()] = p
		}
		return err
	})
	return w, s
}

// each runs f(0) to f(n-1), all at once; an error ends the test.
func (b *bench) each(n int, f func(i int) error) {
	b.t.Helper()
	errs := make(chan error)
	for i := range n {
		go func() { errs <- f(i) }()
	}
	var first error
	for range n {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	if first != nil {
		b.t.Fatal(first)
	}
}

func (b *bench) wantLost(p *Postoffice, want ...string) {
	b.t.Helper()
	l := b.records[p]
	l.mu.Lock()
	defer l.mu.Unlock()
	if fmt.Sprintf("%q", l.lost) != fmt.Sprintf("%q", want) {
		b.t.Errorf("%s recorded %q, want %q", Name(p.View().Self), l.lost, want)
	}
}

// suspect has p suspect the process that has an id now.
func suspect(p *Postoffice, id int, why string) { p.Suspect(id, p.View().Member(id).Incarnation, why) }

// awaitBarrier waits in a barrier.
func awaitBarrier(p *Postoffice, group int) error {
	done := make(chan error, 1)
	p.Barrier(0, group, func(err error) { done <- err })
	return <-done
}

// wantError ends the test if err has another code, or lacks one of the texts.
func wantError(t *testing.T, err error, code fault.Code, texts ...string) {
	t.Helper()
	if err == nil || fault.CodeOf(err) != code {
		t.Fatalf("error %v, want code %s", err, code)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Fatalf("error %q, want it to say %q", err, text)
		}
	}
}

// declareTo declares one tensor.
func declareTo(p *Postoffice, key uint64, t wire.Tensor, done func(id uint32, err error)) {
	p.Declare([]Declaration{{key, t, done}})
}
