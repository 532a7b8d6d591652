package cluster

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/fault"
	"fptps/gocore/van"
	"fptps/gocore/wire/pspb"
)

func mustEncode(t *testing.T, m *pspb.Meta) []byte {
	t.Helper()
	b, err := van.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// lostMessage is a verdict about m, as the scheduler of a bench's cluster would send it.
func lostMessage(m Member, token [16]byte) *pspb.Meta {
	lie := lostNode(m, "a lie", false)
	lie.Token, lie.Incarnation = token[:], proto.Uint64(1)
	return lie
}

func TestNoScheduler(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		begin := time.Now()
		_, err := b.join(context.Background(), RoleWorker, "w", nil)
		wantError(t, err, fault.Connect, "worker: no scheduler answered at sched:9000 within 60 s", "fptps scheduler", "DMLC_PS_ROOT_URI")
		if took := time.Since(begin); took != 60*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A scheduler may start last: the nodes wait for it, and join.
func TestLateScheduler(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		joined := make(chan error, 1)
		go func() {
			_, err := b.join(context.Background(), RoleWorker, "w", nil)
			joined <- err
		}()
		time.Sleep(50 * time.Second)
		b.serve(1, 0)
		if err := <-joined; err != nil {
			t.Error(err)
		}
	})
}

// A scheduler that is started anew, before the cluster is complete, takes over.
func TestSchedulerStartsAnew(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		b.serve(2, 0)
		joined := make(chan error, 2)
		join := func(host string) {
			_, err := b.join(context.Background(), RoleWorker, host, nil)
			joined <- err
		}
		go join("w0")
		time.Sleep(10 * time.Second)
		b.runner.Close()
		b.serve(2, 0)
		time.Sleep(10 * time.Second)
		go join("w1")
		for range 2 {
			if err := <-joined; err != nil {
				t.Error(err)
			}
		}
	})
}

// A scheduler whose cluster has ended reads what nodes of the next one ask, and answers nothing. A
// node that may meet a scheduler of ps-lite asks again all the same, once the first has ended.
func TestSchedulerOfTheLastCluster(t *testing.T) {
	for _, late := range []time.Duration{500 * time.Millisecond, 10 * time.Second} { // virtual; the first ADD_NODEs have arrived
		inBubble(t, 1, func(b *bench) {
			w, _ := b.start(1, 1)
			b.die(w[0])
			<-b.runner.Done()
			joined := make(chan error, 2)
			join := func(role Role, host string, change func(*Config)) {
				_, err := b.join(context.Background(), role, host, change)
				joined <- err
			}
			go join(RoleWorker, "w0", nil)
			go join(RoleServer, "s0", func(c *Config) { c.PSLite = true })
			time.Sleep(late)
			b.runner.Close()
			time.Sleep(late)
			b.serve(1, 1)
			for range 2 {
				if err := <-joined; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A node that may meet a scheduler of ps-lite asks each scheduler once until it is answered: ps-lite
// takes every ADD_NODE for another node.
func TestEachSchedulerIsAskedOnce(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			_, err := b.join(ctx, RoleServer, "s0", func(c *Config) { c.PSLite = true })
			ended <- err
		}()
		time.Sleep(10 * time.Second) // virtual: before there is any scheduler
		for range 3 {
			v := b.net.Van("sched")
			if _, err := v.Bind("", schedulerPort); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			asked := make(chan int)
			go func() {
				n := 0
				for {
					if _, err := v.Receive(); err != nil {
						asked <- n
						return
					}
					n++
				}
			}()
			synctest.Wait()
			v.Close()
			if n := <-asked; n != 1 {
				t.Errorf("a scheduler was asked %d times, want once", n)
			}
		}
		cancel()
		wantError(t, <-ended, fault.Closed)
	})
}

func TestOthersAreMissing(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		b.serve(3, 2)
		go b.join(context.Background(), RoleServer, "s", nil)
		_, err := b.join(context.Background(), RoleWorker, "w", nil)
		wantError(t, err, fault.Timeout, "worker: the cluster at sched:9000 was not complete within 60 s: 2 workers, 1 server missing")
		synctest.Wait()
	})
}

// Imports may take long: that not all have come is a warning no earlier than after startTime.
func TestMissingNodesAreNoWarningAtFirst(t *testing.T) {
	inBubble(t, 4, func(b *bench) {
		var mu sync.Mutex
		lines := map[string][]time.Duration{} // by level: when
		start := time.Now()
		b.config.Log = slog.New(slog.NewTextHandler(writer(func(line string) {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(line, "waiting") {
				level, _, _ := strings.Cut(line[strings.Index(line, "level=")+len("level="):], " ")
				lines[level] = append(lines[level], time.Since(start))
			}
		}), nil))
		b.serve(2, 0)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_, err := b.join(ctx, RoleWorker, "w0", nil)
		wantError(t, err, fault.Timeout, "1 worker")
		mu.Lock()
		defer mu.Unlock()
		if early := lines["INFO"]; len(early) < 4 || slices.Max(early) > startTime+2*tickTime {
			t.Errorf("the scheduler's and the worker's lines at level INFO came after %v", early)
		}
		if late := lines["WARN"]; len(late) < 4 || slices.Min(late) < startTime {
			t.Errorf("the scheduler's and the worker's lines at level WARN came after %v", late)
		}
	})
}

// writer takes the lines of a log.
type writer func(line string)

func (w writer) Write(line []byte) (int, error) {
	w(string(line))
	return len(line), nil
}

// A node that gave up leaves its place to another one.
func TestPlaceIsFreeAgain(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		b.serve(2, 0)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := b.join(ctx, RoleWorker, "w0", nil)
		wantError(t, err, fault.Timeout, "within 10 s", "1 worker missing")
		time.Sleep(10 * time.Second)
		b.each(2, func(i int) error {
			_, err := b.join(context.Background(), RoleWorker, []string{"w1", "w2"}[i], nil)
			return err
		})
	})
}

func TestJoinIsCancelled(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		b.serve(2, 0)
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(3*time.Second, cancel)
		_, err := b.join(ctx, RoleWorker, "w0", nil)
		wantError(t, err, fault.Closed, "worker", "sched:9000")
	})
}

// Whoever is refused learns why, and the cluster goes on.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		reason string
	}{
		"secret":  {func(c *Config) { c.Secret = "other" }, "FPTPS_TOKEN"},
		"numbers": {func(c *Config) { c.Workers = 5 }, "DMLC_NUM_WORKER=5 and DMLC_NUM_SERVER=1, the scheduler 2 and 1"},
		"late":    {nil, "complete already, with 2 workers and 1 server"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(b *bench) {
				b.config.Secret = "the word"
				w, s := b.start(2, 1)
				begin := time.Now()
				_, err := b.join(context.Background(), RoleWorker, "10.0.0.9", c.change)
				wantError(t, err, fault.Connect, "refused", c.reason)
				if took := time.Since(begin); took > time.Second {
					t.Errorf("it took %v to be refused", took)
				}
				all := []*Postoffice{w[0], w[1], s[0]}
				b.each(3, func(i int) error { return awaitBarrier(all[i], AllGroup) })
			})
		})
	}
}

func TestTooManyOfARole(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		b.serve(1, 1)
		joined := make(chan error, 1)
		go func() {
			_, err := b.join(context.Background(), RoleWorker, "w0", nil)
			joined <- err
		}()
		time.Sleep(time.Second)
		_, err := b.join(context.Background(), RoleWorker, "w1", nil)
		wantError(t, err, fault.Connect, "1 worker asked to join before it", "DMLC_NUM_WORKER")
		if _, err := b.join(context.Background(), RoleServer, "s0", nil); err != nil {
			t.Error(err)
		}
		if err := <-joined; err != nil {
			t.Error(err)
		}
	})
}

// A server may leave the numbers to the scheduler.
func TestNumbersAreTheSchedulers(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		b.serve(1, 1)
		b.each(2, func(i int) error {
			p, err := b.join(context.Background(), Role(i), []string{"s", "w"}[i], func(c *Config) { c.Workers, c.Servers = 0, 0 })
			if err == nil && (len(p.View().Workers()) != 1 || len(p.View().Servers()) != 1) {
				t.Errorf("sees %+v", p.View())
			}
			return err
		})
	})
}

// Nobody but the scheduler that was asked can turn a joiner away, or let it in.
func TestStrangersAnswerAJoiner(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		b.serve(2, 0)
		joined := make(chan error, 2)
		for _, host := range []string{"w0", "w1"} {
			go func() {
				_, err := b.join(context.Background(), RoleWorker, host, func(c *Config) { c.Port = 700 })
				joined <- err
			}()
			time.Sleep(time.Second)
			if host == "w1" {
				break
			}
			for _, own := range []*pspb.Meta{
				{Own: &pspb.Meta_Refused{Refused: &pspb.Refused{Reason: proto.String("a lie"), Incarnation: proto.Uint64(5)}}},
				{Own: &pspb.Meta_Waiting{Waiting: &pspb.Waiting{Missing: []string{"a lie"}, Incarnation: proto.Uint64(5)}}},
				{Control: &pspb.Control{Cmd: proto.Int32(pspb.AddNode)}},
				{Control: &pspb.Control{Cmd: proto.Int32(pspb.AddNode), Node: []*pspb.Node{
					nodeOf(Member{ID: 9, Role: RoleWorker, Host: "w0", Port: 700, Incarnation: 5, Protocol: Protocol}),
					nodeOf(Member{ID: 1, Role: RoleScheduler, Host: "sched", Port: 9000, Protocol: Protocol}),
				}}},
			} {
				b.net.Inject("w0", 700, "ps1", mustEncode(t, own))
			}
		}
		for range 2 {
			if err := <-joined; err != nil {
				t.Error(err)
			}
		}
	})
}

// A scheduler of ps-lite's gives ids, but not what fptps needs.
func TestSchedulerOfPsLite(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		joined := make(chan error, 1)
		go func() {
			_, err := b.join(context.Background(), RoleWorker, "w0", func(c *Config) { c.Port = 700 })
			joined <- err
		}()
		time.Sleep(time.Second)
		b.net.Inject("w0", 700, "ps1", mustEncode(t, &pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.AddNode), Node: []*pspb.Node{
			nodeOf(Member{ID: 9, Role: RoleWorker, Host: "w0", Port: 700}),
			nodeOf(Member{ID: 1, Role: RoleScheduler, Host: "sched", Port: 9000}),
		}}}))
		wantError(t, <-joined, fault.Connect, "ps-lite program", "fptps scheduler")
	})
}
