package cluster

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// began is a cluster that has had its start barrier.
func (b *bench) began(workers, servers int) (w, s []*Postoffice) {
	b.t.Helper()
	w, s = b.start(workers, servers)
	all := slices.Concat(w, s)
	b.each(len(all), func(i int) error { return awaitBarrier(all[i], AllGroup) })
	return w, s
}

// A worker that gave up waiting is no longer in the barrier: the others wait for it, and it can enter again.
func TestWithdraw(t *testing.T) {
	for seed := range uint64(20) {
		inBubble(t, seed, func(b *bench) {
			w, _ := b.began(2, 0)
			gaveUp := errors.New("gave up")
			first := make(chan error, 2)
			withdraw := w[0].Barrier(0, WorkerGroup, func(err error) { first <- err })
			time.Sleep(time.Second)
			withdraw(gaveUp)
			withdraw(gaveUp)
			if err := <-first; err != gaveUp {
				t.Fatalf("ended with %v", err)
			}
			met := make(chan error, 1)
			w[1].Barrier(0, WorkerGroup, func(err error) { met <- err })
			time.Sleep(time.Second)
			if len(met) > 0 {
				t.Fatal("the barrier was passed without worker 0")
			}
			if err := awaitBarrier(w[0], WorkerGroup); err != nil {
				t.Error(err)
			}
			if err := <-met; err != nil {
				t.Error(err)
			}
		})
	}
}

// Where all come just as one gives up, both see the same: the barrier is passed, or the other one waits.
func TestWithdrawAsAllHaveCome(t *testing.T) {
	outcomes := map[bool]int{}
	for seed := range uint64(60) {
		inBubble(t, seed, func(b *bench) {
			w, _ := b.began(2, 0)
			gaveUp := errors.New("gave up")
			first, met := make(chan error, 1), make(chan error, 1)
			withdraw := w[0].Barrier(0, WorkerGroup, func(err error) { first <- err })
			time.Sleep(time.Second)
			w[1].Barrier(0, WorkerGroup, func(err error) { met <- err })
			time.Sleep(time.Duration(seed) * time.Millisecond)
			withdraw(gaveUp)
			passed := <-first == nil
			outcomes[passed]++
			time.Sleep(time.Second)
			if passed != (len(met) == 1) {
				t.Fatalf("worker 0 passed: %v, worker 1: %v", passed, len(met) == 1)
			}
			if !passed {
				if err := awaitBarrier(w[0], WorkerGroup); err != nil {
					t.Error(err)
				}
			}
			b.each(2, func(i int) error { return awaitBarrier(w[i], WorkerGroup) })
		})
	}
	if outcomes[true] == 0 || outcomes[false] == 0 {
		t.Errorf("one of the outcomes was not met: %v", outcomes)
	}
}

// Of several barriers that a worker waits in one after the other, a later one can be left.
func TestWithdrawFromTheQueue(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, _ := b.began(2, 0)
		gaveUp := errors.New("gave up")
		ends := make(chan error, 3)
		w[0].Barrier(0, WorkerGroup, func(err error) { ends <- err })
		withdraw := w[0].Barrier(0, WorkerGroup, func(err error) { ends <- err })
		withdraw(gaveUp)
		if err := <-ends; err != gaveUp {
			t.Errorf("the second one ended with %v", err)
		}
		if err := awaitBarrier(w[1], WorkerGroup); err != nil {
			t.Error(err)
		}
		if err := <-ends; err != nil {
			t.Error(err)
		}
	})
}

// A barrier or declaration that waits for a worker that has closed fails at once, and so does every later one.
func TestWaitingForAClosedWorker(t *testing.T) {
	for seed := range uint64(10) {
		inBubble(t, seed, func(b *bench) {
			w, _ := b.began(3, 1)
			ends := make(chan error, 2)
			w[0].Barrier(0, WorkerGroup, func(err error) { ends <- err })
			declareTo(w[0], 3, wire.Tensor{Bytes: 4, DType: wire.Int32}, func(_ uint32, err error) { ends <- err })
			synctest.Wait()
			begin := time.Now()
			var last wire.Rounds
			for _, round := range []uint64{20, 20, 19} {
				last.Add(round)
			}
			closed := make(chan error, 1)
			w[1].End(last, func(err error) { closed <- err })
			for range 2 {
				wantError(t, <-ends, fault.Mismatch, "worker 1, which has closed")
			}
			wantError(t, awaitBarrier(w[2], WorkerGroup), fault.Mismatch, "worker 1")
			_, err := declare(w[2], 4, 4, wire.Int32)
			wantError(t, err, fault.Mismatch, "key 4", "worker 1")
			if took := time.Since(begin); took > time.Second {
				t.Errorf("it took %v", took)
			}
			synctest.Wait()
			b.wantClosed(w[0], "worker 1: [2 1] [20 19]")
			b.wantClosed(w[2], "worker 1: [2 1] [20 19]")
			// the last barrier still completes
			for _, p := range []*Postoffice{w[0], w[2]} {
				p.End(wire.Rounds{}, func(error) {})
			}
			time.Sleep(time.Minute)
			if len(closed) > 0 {
				t.Error("the end came without the server")
			}
		})
	}
}

func (b *bench) wantClosed(p *Postoffice, want ...string) {
	b.t.Helper()
	l := b.records[p]
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.closed, want) {
		b.t.Errorf("%s recorded %q, want %q", Name(p.View().Self), l.closed, want)
	}
}

// Why a worker leaves reaches all others before its connection ends, and it waits until then.
func TestLeave(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, s := b.began(3, 1)
		<-w[1].Leave("it left by ValueError: a bad\nbatch")
		b.die(w[1])
		for _, p := range []*Postoffice{w[0], w[2], s[0]} {
			wantError(t, awaitBarrier(p, AllGroup), fault.NodeLost, "worker 1 was lost: it left by ValueError: a bad batch.")
		}
		b.wantLost(w[1]) // it knows
		<-w[0].Leave("too late")
		<-b.runner.Done()
		wantError(t, b.runner.Err(), fault.NodeLost, "ValueError")
	})
}

// A process that stood still, was given up as dead and replaced runs on: nothing is its own any more.
func TestContinuedAfterItsVerdict(t *testing.T) {
	for seed := range uint64(10) {
		inBubble(t, seed, func(b *bench) {
			w, _ := b.classic(2, 1)
			id := w[1].View().Self
			first, token := w[1].View().Me(), w[1].View().Token
			b.die(w[1])
			time.Sleep(time.Second)
			next, err := b.join(context.Background(), RoleWorker, "new", nil)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			speak := func(host string, port int, m *pspb.Meta) {
				m.Token, m.Incarnation = token[:], proto.Uint64(first.Incarnation)
				b.net.Inject(host, port, "ps11", mustEncode(t, m))
			}
			speak("sched", schedulerPort, barrierMessage(WorkerGroup, 0, 0, true))
			speak("sched", schedulerPort, &pspb.Meta{Own: &pspb.Meta_Leave{Leave: &pspb.Leave{Why: proto.String("a lie")}}})
			other := w[0].View().Me()
			speak(other.Host, other.Port, &pspb.Meta{Head: proto.Int32(7)})
			w[0].Suspect(id, first.Incarnation, "news of the first, come late")
			met := make(chan error, 1)
			w[0].Barrier(0, WorkerGroup, func(err error) { met <- err })
			time.Sleep(10 * time.Second)
			if len(met) > 0 {
				t.Fatalf("the barrier ended without the second: %v", <-met)
			}
			if letters := b.records[w[0]].letters(); len(letters) > 0 {
				t.Errorf("mail of the first: %q", letters)
			}
			if err := awaitBarrier(next, WorkerGroup); err != nil {
				t.Error(err)
			}
			if err := <-met; err != nil {
				t.Error(err)
			}
			b.wantChanges(w[0], "worker 1 died", "worker 1 is at new")
		})
	}
}
