package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// die is the end of a process: its messages stop, and its connection to the
// scheduler ends.
func (b *bench) die(p *Postoffice) {
	b.net.Isolate(b.vans[p])
	b.runner.Gone(p.View().Self, p.View().Me().Incarnation, "its connection was reset")
}

func TestDeathWhileOthersWait(t *testing.T) {
	for seed := range uint64(10) {
		inBubble(t, seed, func(b *bench) {
			w, s := b.start(3, 1)
			errs := make(chan error, 4)
			w[0].Barrier(0, WorkerGroup, func(err error) { errs <- err })
			declareTo(w[0], 3, wire.Tensor{Bytes: 4, DType: wire.Int32}, func(_ uint32, err error) { errs <- err })
			declareTo(w[2], 3, wire.Tensor{Bytes: 4, DType: wire.Int32}, func(_ uint32, err error) { errs <- err })
			s[0].Barrier(0, AllGroup, func(err error) { errs <- err })
			synctest.Wait()
			begin := time.Now()
			b.die(w[1])
			// The connections that close as a consequence name no other node.
			b.runner.Gone(w[0].View().Self, w[0].View().Me().Incarnation, "its connection was closed")
			for range 4 {
				wantError(t, <-errs, fault.NodeLost, "worker 1", "its connection was reset")
			}
			if took := time.Since(begin); took > time.Second {
				t.Errorf("the news took %v", took)
			}
			<-b.runner.Done()
			wantError(t, b.runner.Err(), fault.NodeLost, "worker 1")
			synctest.Wait()
			for _, p := range []*Postoffice{w[0], w[2], s[0]} {
				b.wantLost(p, "worker 1: its connection was reset")
				wantError(t, awaitBarrier(p, AllGroup), fault.NodeLost, "worker 1")
			}
		})
	}
}

// A node whose host vanished is silent: the others receive the verdict on it, and it loses the scheduler.
func TestHeartbeatTimeout(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, s := b.start(2, 1)
		time.Sleep(10 * time.Minute) // heartbeats keep all nodes alive
		synctest.Wait()
		for p := range b.records {
			b.wantLost(p)
		}
		b.net.Isolate(b.vans[s[0]])
		begin := time.Now()
		for _, p := range w {
			wantError(t, awaitBarrier(p, WorkerGroup|ServerGroup), fault.NodeLost, "server 0", "silent for 3")
		}
		wantError(t, awaitBarrier(s[0], ServerGroup), fault.NodeLost, "scheduler", "silent for 3")
		if took := time.Since(begin); took < 25*time.Second || took > 40*time.Second {
			t.Errorf("noticed after %v, with a timeout of 30 s", took)
		}
	})
}

// A loop that receives messages without a pause still looks at the clock.
func TestSilenceAmongMessages(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		b.config.HeartbeatInterval, b.config.HeartbeatTimeout = 300*time.Millisecond, 3*time.Second
		w, s := b.start(2, 1)
		b.net.Isolate(b.vans[s[0]])
		begin := time.Now()
		wantError(t, awaitBarrier(w[0], WorkerGroup|ServerGroup), fault.NodeLost, "server 0", "silent")
		if took := time.Since(begin); took > 6*time.Second {
			t.Errorf("noticed after %v, with a timeout of 3 s", took)
		}
	})
}

func TestHeartbeatsOff(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		b.config.HeartbeatInterval = 0
		w, _ := b.start(2, 0)
		time.Sleep(time.Hour)
		b.each(2, func(i int) error { return awaitBarrier(w[i], WorkerGroup) })
	})
}

func TestSchedulerDies(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, _ := b.start(2, 0)
		errs := make(chan error, 1)
		w[0].Barrier(0, WorkerGroup, func(err error) { errs <- err })
		synctest.Wait()
		b.runner.Close()
		begin := time.Now()
		suspect(w[0], wire.SchedulerID, "connection reset by peer")
		wantError(t, <-errs, fault.NodeLost, "scheduler was lost: connection reset by peer")
		if took := time.Since(begin); took != lastWordTime {
			t.Errorf("it took %v, expected %v", took, lastWordTime)
		}
		synctest.Wait()
		b.wantLost(w[0], "scheduler: connection reset by peer")
	})
}

// A connection between two nodes breaks, and both live on.
func TestBrokenConnection(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, s := b.start(2, 1)
		suspect(w[0], s[0].View().Self, "broken pipe")
		begin := time.Now()
		why := "the connection between worker 0 and server 0 broke: broken pipe"
		wantError(t, awaitBarrier(w[1], WorkerGroup), fault.NodeLost, "server 0 was lost: "+why)
		if took := time.Since(begin); took < 200*time.Millisecond || took > 400*time.Millisecond {
			t.Errorf("the verdict came after %v", took)
		}
		time.Sleep(time.Second)
		b.wantLost(w[0], "server 0: "+why)
		b.wantLost(s[0], "server 0: "+why) // it lives, so it receives the verdict too
	})
}

// A suspicion is not a verdict: the node that died is another one.
func TestSuspicionOfTheWrongNode(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, s := b.start(2, 1)
		suspect(w[0], s[0].View().Self, "connection reset by peer")
		b.die(w[1])
		time.Sleep(10 * time.Second)
		b.wantLost(w[0], "worker 1: its connection was reset")
		b.wantLost(s[0], "worker 1: its connection was reset")
	})
}

// The scheduler's connection ends as a consequence of its verdict, and that news
// comes first.
func TestVerdictBehindTheSchedulersEnd(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, s := b.start(2, 1)
		suspect(w[0], wire.SchedulerID, "closed by the peer")
		time.Sleep(lastWordTime / 2)
		b.die(w[1])
		time.Sleep(10 * time.Second)
		b.wantLost(w[0], "worker 1: its connection was reset")
		b.wantLost(s[0], "worker 1: its connection was reset")
	})
}

// Without the scheduler's verdict a node judges for itself.
func TestNoVerdict(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, s := b.start(2, 1)
		b.net.Isolate(b.vans[w[0]])
		suspect(w[0], s[0].View().Self, "connection reset by peer")
		begin := time.Now()
		wantError(t, awaitBarrier(w[0], WorkerGroup), fault.NodeLost, "server 0 was lost: connection reset by peer")
		if took := time.Since(begin); took != verdictTime {
			t.Errorf("it took %v, want %v", took, verdictTime)
		}
	})
}

// A cluster that recovers outlives a network that is silent for some seconds: meanwhile nobody can hear the scheduler's verdict.
func TestNoVerdictForAWhile(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		b.config.Recovers = true
		w, s := b.start(2, 1)
		b.net.Isolate(b.vans[w[0]])
		suspect(w[0], s[0].View().Self, "connection refused")
		time.Sleep(b.config.HeartbeatTimeout - b.config.HeartbeatInterval - time.Second)
		b.wantLost(w[0])
		wantError(t, awaitBarrier(w[0], WorkerGroup), fault.NodeLost, "scheduler was lost: it was silent for 3")
	})
}

// A node that has stood still reads what came meanwhile before it decides alone.
func TestNoVerdictWhileThisNodeStoodStill(t *testing.T) {
	for _, recovers := range []bool{false, true} {
		inBubble(t, 1, func(b *bench) {
			b.config.Recovers = recovers
			w, s := b.start(2, 1)
			b.net.Isolate(b.vans[w[0]])
			suspect(w[0], s[0].View().Self, "connection refused")
			synctest.Wait()
			ticked := make(chan struct{})
			w[0].loop.do(func() {
				w[0].tick(time.Now().Add(time.Minute))
				close(ticked)
			})
			<-ticked
			b.wantLost(w[0])
		})
	}
}

// Strangers cannot make a cluster believe anything.
func TestStrangers(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, _ := b.start(2, 0)
		me := w[0].View().Me()
		lost := mustEncode(t, lostMessage(w[1].View().Me(), [16]byte{1}))
		b.net.Inject(me.Host, me.Port, "ps1", lost)                                                             // not this run's token
		b.net.Inject(me.Host, me.Port, "ps11", mustEncode(t, lostMessage(w[1].View().Me(), w[0].View().Token))) // not the scheduler
		b.net.Inject(me.Host, me.Port, "ps1", []byte("rubbish"))
		b.net.Inject(me.Host, me.Port, "", []byte{})
		b.net.Inject("sched", schedulerPort, "ps11", []byte("rubbish"))
		b.net.Inject("sched", schedulerPort, "ps11", mustEncode(t, barrierMessage(WorkerGroup, 0, 0, true)))
		b.net.Inject("sched", schedulerPort, "ps9", mustEncode(t, barrierMessage(WorkerGroup, 0, 0, true)))
		synctest.Wait()
		b.wantLost(w[0])
		passed := false
		w[0].Barrier(0, WorkerGroup, func(error) { passed = true })
		time.Sleep(time.Minute)
		if passed {
			t.Error("the barrier was passed by strangers")
		}
		if err := awaitBarrier(w[1], WorkerGroup); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if got := b.vans[w[0]].Stats().Rejected; got != 1 {
			t.Errorf("%d messages rejected, want 1 (an empty one is a valid Meta)", got)
		}
	})
}
