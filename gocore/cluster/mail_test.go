package cluster

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire/pspb"
)

// wantMail checks what the applications of a node were given so far.
func (b *bench) wantMail(p *Postoffice, want ...string) {
	b.t.Helper()
	l := b.records[p]
	l.mu.Lock()
	defer l.mu.Unlock()
	if fmt.Sprintf("%q", l.mail) != fmt.Sprintf("%q", want) {
		b.t.Errorf("%s was given %q, want %q", Name(p.View().Self), l.mail, want)
	}
}

func head(n int) *pspb.Meta { return &pspb.Meta{Head: proto.Int32(int32(n)), AppId: proto.Int32(0)} }

// Any node sends to any other, itself included, each pair in order; strangers reach no node.
func TestMail(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, s := b.start(2, 1)
		<-b.runner.Joined()
		for n := range 3 {
			for _, err := range []error{
				w[0].Send(s[0].View().Self, head(n), []byte("to the server")),
				w[0].Send(w[1].View().Self, head(n)),
				w[0].Send(w[0].View().Self, head(n), []byte("mine")),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := b.runner.Send(w[1].View().Self, head(7)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := w[0].Send(33, head(0)); err == nil {
			t.Error("mail for nobody was taken")
		}
		synctest.Wait()
		before := s[0].strays // what was said to it while it joined
		server := s[0].View().Me()
		for _, identity := range []string{"", "ps77", "ps9", "ps1"} { // anonymous, no member, and without the token
			b.net.Inject(server.Host, server.Port, identity, mustEncode(t, head(66)))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		b.wantMail(s[0], `worker 0: 0 ["to the server"]`, `worker 0: 1 ["to the server"]`, `worker 0: 2 ["to the server"]`)
		b.wantMail(w[0], `worker 0: 0 ["mine"]`, `worker 0: 1 ["mine"]`, `worker 0: 2 ["mine"]`)
		if l := b.records[w[1]]; len(l.mail) != 4 {
			t.Errorf("worker 1 was given %q", l.mail)
		}
		if strays := s[0].strays - before; strays != 4 || len(s[0].noted) != 4 {
			t.Errorf("%d strays of %d senders, want 4 of 4", strays, len(s[0].noted))
		}
	})
}

// fromPSLite is what a scheduler of ps-lite sends: nothing of fptps's own, and a
// barrier's answer that names no group.
func (b *bench) fromPSLite(identity string, m *pspb.Meta) {
	b.t.Helper()
	b.net.Inject("w0", 700, identity, mustEncode(b.t, m))
	time.Sleep(time.Second)
}

// A node under a scheduler of ps-lite: two customers of it, their barriers, mail.
func TestUnderASchedulerOfPSLite(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		customers := make(chan int, 1)
		joined := make(chan *Postoffice, 1)
		go func() {
			p, err := b.join(context.Background(), RoleWorker, "w0", func(c *Config) {
				c.Port, c.PSLite, c.Customers, c.HeartbeatTimeout = 700, true, customers, 0
			})
			if err != nil {
				t.Error(err)
			}
			joined <- p
		}()
		customers <- 3
		time.Sleep(3 * time.Second)
		me := nodeOf(Member{ID: 9, Role: RoleWorker, Host: "w0", Port: 700})
		b.fromPSLite("ps1", &pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.AddNode), Node: []*pspb.Node{
			me, me,
			nodeOf(Member{ID: 8, Role: RoleServer, Host: "s0", Port: 800}),
			nodeOf(Member{ID: 1, Role: RoleScheduler, Host: "sched", Port: schedulerPort}),
		}}})
		p := <-joined
		if view := p.View(); !view.PSLite() || view.Self != 9 || view.Me().Customers != 2 || len(view.Members) != 3 || len(p.Customers()) != 2 {
			t.Fatalf("joined as %+v", view)
		}
		passed := make(chan string, 9)
		for _, wait := range []struct {
			customer, group int
		}{{0, AllGroup}, {3, AllGroup}, {0, WorkerGroup}} {
			p.Barrier(wait.customer, wait.group, func(err error) { passed <- fmt.Sprint(wait.customer, wait.group, err) })
		}
		answer := &pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.Barrier)}, Request: proto.Bool(false)}
		for _, want := range [][]string{{"0 7 <nil>", "3 7 <nil>"}, {"0 4 <nil>"}} {
			synctest.Wait() // the barriers are asked for, and as far as they get without the answer
			if len(passed) > 0 {
				t.Fatalf("passed without an answer: %s", <-passed)
			}
			b.fromPSLite("ps1", answer)
			answer.Control.BarrierGroup, answer.CustomerId = proto.Int32(99), proto.Int32(5) // or what was in its memory
			got := map[string]bool{}
			for range want {
				got[<-passed] = true
			}
			for _, text := range want {
				if !got[text] {
					t.Errorf("passed %v, want %v", got, want)
				}
			}
		}
		b.fromPSLite("ps8", head(5))
		b.fromPSLite("ps10", head(6)) // no such node
		b.wantMail(p, `server 0: 5 []`)
	})
}
