package cluster

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// classic is a cluster of ps-lite's classes that has had its start barrier.
func (b *bench) classic(workers, servers int) (w, s []*Postoffice) {
	b.t.Helper()
	b.config.PSLite, b.config.RecoveryTimeout = true, 20*time.Second
	w, s = b.start(workers, servers)
	all := slices.Concat(w, s)
	b.each(len(all), func(i int) error { return awaitBarrier(all[i], AllGroup) })
	return w, s
}

func (b *bench) wantChanges(p *Postoffice, want ...string) {
	b.t.Helper()
	l := b.records[p]
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.changes, want) {
		b.t.Errorf("%s recorded %q, want %q", Name(p.View().Self), l.changes, want)
	}
}

// A node that dies leaves its id to the next of its role. Barriers wait for the successor, which receives the mail.
func TestRecovery(t *testing.T) {
	for seed := range uint64(5) {
		for _, role := range []Role{RoleWorker, RoleServer} {
			inBubble(t, seed, func(b *bench) {
				w, s := b.classic(2, 2)
				dead := w[1]
				if role == RoleServer {
					dead = s[1]
				}
				id := dead.View().Self
				rest := slices.DeleteFunc(slices.Concat(w, s), func(p *Postoffice) bool { return p == dead })
				met := make(chan error, 4)
				for _, p := range rest {
					p.Barrier(0, AllGroup, func(err error) { met <- err }) // the last one
				}
				synctest.Wait()
				b.die(dead)
				time.Sleep(time.Second)
				for _, p := range rest {
					if !p.View().Member(id).Vacant {
						t.Errorf("%s does not know", Name(p.View().Self))
					}
					if err := p.Send(id, &pspb.Meta{}); err == nil {
						t.Error("a message to the dead")
					}
				}
				next, err := b.join(context.Background(), role, "new", nil)
				if err != nil {
					t.Fatal(err)
				}
				if v := next.View(); v.Self != id || !v.Me().Recovered || len(v.Members) != 5 {
					t.Fatalf("the new node got %+v", v)
				}
				time.Sleep(time.Second)
				for _, p := range rest {
					b.wantLost(p)
					b.wantChanges(p, Name(id)+" died", Name(id)+" is at new")
					if err := p.Send(id, &pspb.Meta{Head: proto.Int32(7)}); err != nil {
						t.Error(err)
					}
				}
				if err := next.Send(rest[0].View().Self, &pspb.Meta{Head: proto.Int32(8)}); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
				to, back := b.records[next].letters(), b.records[rest[0]].letters()
				if len(to) != 3 || len(back) != 1 {
					t.Errorf("mail %q and %q", to, back)
				}
				if err := awaitBarrier(next, AllGroup); err != nil {
					t.Error(err)
				}
				for range rest {
					if err := <-met; err != nil {
						t.Error(err)
					}
				}
				<-b.runner.Done()
				if err := b.runner.Err(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Where nobody takes the place, the cluster ends; so it does without time for that, before all have started, and where
// tensors are shared out.
func TestNoRecovery(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		starts bool
		after  time.Duration
		says   string
	}{
		"nobody comes":   {func(*Config) {}, true, 20 * time.Second, "no other took its place within 20s"},
		"no time for it": {func(c *Config) { c.RecoveryTimeout = 0 }, true, 0, "worker 1 was lost"},
		"tensors":        {func(c *Config) { c.PSLite = false }, true, 0, "worker 1 was lost"},
		"no start":       {func(*Config) {}, false, 0, "worker 1 was lost"},
	} {
		inBubble(t, 1, func(b *bench) {
			b.config.PSLite, b.config.RecoveryTimeout = true, 20*time.Second
			tc.change(&b.config)
			w, s := b.start(2, 1)
			if tc.starts {
				all := slices.Concat(w, s)
				b.each(len(all), func(i int) error { return awaitBarrier(all[i], AllGroup) })
			}
			begin := time.Now()
			b.die(w[1])
			wantError(t, awaitBarrier(w[0], WorkerGroup), fault.NodeLost, "worker 1", tc.says)
			if took := time.Since(begin); took < tc.after || took > tc.after+2*time.Second {
				t.Errorf("%s: it took %v", name, took)
			}
			<-b.runner.Done()
			wantError(t, b.runner.Err(), fault.NodeLost, "worker 1")
		})
	}
}

// That a node had come to a barrier before it died counts for nothing.
func TestDeathInABarrier(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, _ := b.classic(2, 1)
		w[1].Barrier(0, WorkerGroup, func(error) {})
		synctest.Wait()
		time.Sleep(time.Second)
		b.die(w[1])
		passed := make(chan error, 1)
		w[0].Barrier(0, WorkerGroup, func(err error) { passed <- err })
		time.Sleep(5 * time.Second)
		if len(passed) > 0 {
			t.Fatal("the barrier was passed without the successor")
		}
		next, err := b.join(context.Background(), RoleWorker, "new", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := awaitBarrier(next, WorkerGroup); err != nil {
			t.Error(err)
		}
		if err := <-passed; err != nil {
			t.Error(err)
		}
	})
}

// The death of the last living node ends the cluster.
func TestAllNodesDie(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, s := b.classic(1, 1)
		b.die(s[0])
		time.Sleep(time.Second)
		b.die(w[0])
		<-b.runner.Done()
		wantError(t, b.runner.Err(), fault.NodeLost, "worker 0")
	})
}

// A node is refused if no place is free, and if it has tensors.
func TestNoPlace(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, _ := b.classic(2, 1)
		_, err := b.join(context.Background(), RoleWorker, "early", nil)
		wantError(t, err, fault.Connect, "complete already")
		b.die(w[1])
		time.Sleep(time.Second)
		_, err = b.join(context.Background(), RoleServer, "other-role", nil)
		wantError(t, err, fault.Connect)
		_, err = b.join(context.Background(), RoleWorker, "tensors", func(c *Config) { c.PSLite = false })
		wantError(t, err, fault.Connect, "use fptps.ps")
		if _, err = b.join(context.Background(), RoleWorker, "next", nil); err != nil {
			t.Error(err)
		}
	})
}

// plain is a node of ps-lite's.
func plain(role Role, host string, id int) *pspb.Node {
	return &pspb.Node{Role: proto.Int32(int32(role)), Hostname: proto.String(host), Port: proto.Int32(100), Id: proto.Int32(int32(id))}
}

// Programs of ps-lite receive the messages of its own scheduler: the new one all nodes, the others the new one alone. It asks
// once, perhaps before the death is known.
func TestRecoveryOfPsLitePrograms(t *testing.T) {
	for _, early := range []bool{false, true} {
		s := NewScheduler(Config{Workers: 2, Servers: 1, SchedulerHost: "s", RecoveryTimeout: time.Minute,
			HeartbeatInterval: time.Second, HeartbeatTimeout: 10 * time.Second}, [16]byte{1})
		now := time.Now()
		ask := func(role Role, host string) []Action {
			return s.Step(now, 0, "", &pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.AddNode), Node: []*pspb.Node{plain(role, host, 32767)}}})
		}
		ask(RoleWorker, "a")
		ask(RoleWorker, "b")
		ask(RoleServer, "c")
		for _, id := range []int{8, 9, 11} {
			s.Step(now, id, "", barrierMessage(AllGroup, 0, 0, true))
			s.Step(now, id, "", heartbeat(Member{ID: id}))
		}
		var actions []Action
		if early {
			actions = ask(RoleWorker, "d")
		}
		if len(actions) > 0 {
			t.Fatalf("too early: %v", actions)
		}
		for range 12 {
			now = now.Add(time.Second)
			for _, id := range []int{8, 11} {
				s.Step(now, id, "", heartbeat(Member{ID: id}))
			}
			actions = append(actions, s.Tick(now)...)
		}
		if !early {
			actions = append(actions, ask(RoleWorker, "d")...)
		}
		sent := map[int][]string{}
		for _, a := range actions {
			send, ok := a.(Send)
			if !ok || send.Meta.GetControl().GetCmd() != pspb.AddNode {
				continue
			}
			for _, n := range send.Meta.GetControl().GetNode() {
				sent[send.ID] = append(sent[send.ID], fmt.Sprintf("%s %d %v", n.GetHostname(), n.GetId(), n.GetIsRecovery()))
			}
		}
		all := []string{"c 8 false", "d 9 true", "b 11 false", "s 1 false"}
		for id, want := range map[int][]string{8: {"d 9 true"}, 11: {"d 9 true"}, wire.WorkerID(0): all} {
			if !slices.Equal(sent[id], want) {
				t.Errorf("early %v: node %d receives %q, want %q of %v", early, id, sent[id], want, actions)
			}
		}
	}
}

// A scheduler of ps-lite announces a new node, not the death of its predecessor.
func TestRecoveryBySchedulerOfPsLite(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, _ := b.classic(2, 1)
		n := plain(RoleServer, "new", 8)
		n.IsRecovery = proto.Bool(true)
		stranger := plain(RoleServer, "stranger", 10)
		stranger.IsRecovery = proto.Bool(true)
		scheduler := w[0].View().Member(wire.SchedulerID)
		token := w[0].View().Token
		for _, node := range []*pspb.Node{n, stranger, plain(RoleServer, "again", 8), plain(RoleWorker, "other", 8)} {
			meta := &pspb.Meta{Token: token[:], Incarnation: proto.Uint64(scheduler.Incarnation), Control: &pspb.Control{Cmd: proto.Int32(pspb.AddNode), Node: []*pspb.Node{node}}}
			me := w[0].View().Me()
			b.net.Inject(me.Host, me.Port, fmt.Sprintf("ps%d", scheduler.ID), mustEncode(t, meta))
			synctest.Wait()
		}
		b.wantChanges(w[0], "server 0 died", "server 0 is at new")
	})
}
