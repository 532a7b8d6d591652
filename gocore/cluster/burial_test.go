package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/wire"
)

// TestBurial: two servers die. The others hear of both in the same order, enter barriers, declare tensors, and end in good order.
func TestBurial(t *testing.T) {
	for seed := range uint64(10) {
		inBubble(t, seed, func(b *bench) {
			b.config.Recovers = true
			w, s := b.start(2, 3)
			b.each(5, func(i int) error { return awaitBarrier(append(w, s...)[i], AllGroup) })
			if !w[0].View().Recovers || len(w[0].View().Servers()) != 3 {
				t.Fatalf("view %+v", w[0].View())
			}
			ends := make(chan error, 3)
			s[0].End(wire.Rounds{}, func(err error) { ends <- err })
			waits := make(chan error, 1)
			w[0].Barrier(0, WorkerGroup|ServerGroup, func(err error) { waits <- err })
			suspect(w[0], wire.ServerID(1), "reset by peer")
			b.die(s[1])
			b.die(s[2])
			synctest.Wait()
			time.Sleep(2 * verdictTime)
			for _, p := range append(w, s[0]) {
				b.wantLost(p)
				if got := b.records[p].changes; len(got) != 2 || fmt.Sprint(got) != fmt.Sprint(b.records[w[0]].changes) {
					t.Errorf("%s hears %q", Name(p.View().Self), got)
				}
				if got := p.View(); len(got.Servers()) != 1 || got.Member(wire.ServerID(2)).ID != 0 {
					t.Errorf("%s knows of %+v", Name(p.View().Self), got.Members)
				}
			}
			b.each(2, func(i int) error {
				done := make(chan error, 1)
				declareTo(w[i], 3, wire.Tensor{Bytes: 4, DType: wire.Int32}, func(_ uint32, err error) { done <- err })
				return <-done
			})
			go func() { w[1].Barrier(0, WorkerGroup|ServerGroup, func(error) {}) }()
			s[0].Barrier(0, WorkerGroup|ServerGroup, func(error) {})
			if err := <-waits; err != nil {
				t.Error(err)
			}
			b.end(ends, w...)
		})
	}
}

// end ends the cluster in good order. ends gets the ends of these nodes, and of those that have come to the last barrier before.
func (b *bench) end(ends chan error, nodes ...*Postoffice) {
	b.t.Helper()
	for _, p := range nodes {
		p.End(wire.Rounds{}, func(err error) { ends <- err })
	}
	for range cap(ends) {
		if err := <-ends; err != nil {
			b.t.Error(err)
		}
	}
	<-b.runner.Done()
	if err := b.runner.Err(); err != nil {
		b.t.Error(err)
	}
}

// A node that was given up as dead but runs on hears its own name.
func TestBuriedAlive(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		b.config.Recovers = true
		w, s := b.start(2, 2)
		b.each(4, func(i int) error { return awaitBarrier(append(w, s...)[i], AllGroup) })
		suspect(w[0], wire.ServerID(1), "reset by peer")
		time.Sleep(2 * verdictTime)
		b.wantLost(s[1], "server 1: the connection between worker 0 and server 1 broke: reset by peer")
		b.wantLost(w[1])
		suspect(s[0], wire.WorkerID(1), "reset by peer")
		time.Sleep(2 * verdictTime)
		b.wantLost(w[1], "worker 1: the connection between server 0 and worker 1 broke: reset by peer")
		b.wantLost(w[0])
		b.runner.Unreachable(wire.ServerID(0), s[0].View().Me().Incarnation, "no answer within 3s")
		time.Sleep(2 * verdictTime)
		b.wantLost(s[0], "server 0: no answer within 3s")
		b.wantLost(w[0])
	})
}

// TestSettlement: two workers die, then a server. The rounds that stand are those of the last report of each worker that is left.
func TestSettlement(t *testing.T) {
	for seed := range uint64(10) {
		inBubble(t, seed, func(b *bench) {
			b.config.Recovers = true
			w, s := b.start(4, 2)
			b.each(6, func(i int) error { return awaitBarrier(append(w, s...)[i], AllGroup) })
			declared := make(chan error, 1)
			declareTo(w[1], 3, wire.Tensor{Bytes: 4, DType: wire.Int32}, func(_ uint32, err error) { declared <- err })
			declareTo(w[2], 4, wire.Tensor{Bytes: 4, DType: wire.Int32}, func(_ uint32, err error) { declared <- err })
			rounds := func(last ...uint64) (r wire.Rounds) {
				for _, n := range last {
					r.Add(n)
				}
				return r
			}
			b.die(w[0])
			time.Sleep(2 * verdictTime)
			synctest.Wait()
			w[1].Survived(1, rounds(9, 9, 9), false)
			s[0].Survived(1, wire.Rounds{}, false)
			b.die(w[3])
			time.Sleep(2 * verdictTime)
			synctest.Wait()
			declareTo(w[1], 4, wire.Tensor{Bytes: 4, DType: wire.Int32}, func(_ uint32, err error) { declared <- err })
			for range 2 { // key 4, now that those which have not declared it are dead
				if err := <-declared; err != nil {
					t.Error(err)
				}
			}
			w[1].Survived(1, rounds(9, 9, 9), false) // too late
			w[1].Survived(2, rounds(4, 5, 5), false)
			s[0].Survived(2, wire.Rounds{}, false)
			w[2].Survived(2, rounds(5, 5, 4), false)
			time.Sleep(2 * noticeTime)
			synctest.Wait()
			if got := b.records[w[1]].settled; len(got) != 0 {
				t.Errorf("settled without server 1: %q", got)
			}
			if waits := "the news of a death: server 1"; !slices.Contains(b.records[w[2]].waiting, waits) || !slices.Contains(b.records[w[1]].waiting, waits) {
				t.Errorf("worker 1 %s, worker 2 %s", b.records[w[1]], b.records[w[2]])
			}
			b.die(s[1])
			time.Sleep(2 * verdictTime)
			synctest.Wait()
			for _, p := range []*Postoffice{w[1], w[2]} {
				b.wantLost(p)
				r := b.records[p]
				if fmt.Sprint(r.settled) != "[[3] [5]]" || fmt.Sprint(r.epochs) != "[1 2]" || len(r.changes) != 3 || !slices.Contains(r.waiting, "the news of a death: ") {
					t.Errorf("%s: settled %q, epochs %v, %q, waiting %q", Name(p.View().Self), r.settled, r.epochs, r.changes, r.waiting)
				}
			}
			declareTo(w[2], 3, wire.Tensor{Bytes: 4, DType: wire.Int32}, func(_ uint32, err error) { declared <- err })
			for range 2 {
				if err := <-declared; err != nil {
					t.Error(err)
				}
			}
			ends := make(chan error, 3)
			b.end(ends, w[1], w[2], s[0])
		})
	}
}

// Where a cluster cannot go on without a worker the verdict says why.
func TestWorkersThatAreNeeded(t *testing.T) {
	for name, tc := range map[string]struct {
		workers, least int
		stateful       string
		says           string
	}{
		"the last one":      {1, 1, "", "It was the last worker"},
		"of the least":      {3, 3, "", "It leaves 2 workers, and FPTPS_MIN_WORKERS=3"},
		"with an optimiser": {2, 1, "the optimiser of key 3", "cannot be repeated without it, as the aggregators keep the optimiser of key 3"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(b *bench) {
				b.config.Recovers, b.config.MinWorkers = true, tc.least
				w, s := b.start(tc.workers, 1)
				b.each(tc.workers+1, func(i int) error { return awaitBarrier(append(w, s...)[i], AllGroup) })
				if tc.stateful != "" {
					w[0].Stateful(tc.stateful)
					time.Sleep(time.Second)
				}
				b.die(w[0])
				<-b.runner.Done()
				wantError(t, b.runner.Err(), fault.NodeLost, "worker 0", tc.says)
			})
		})
	}
}

// The scheduler's idea of the shares after deaths is that of the workers, whose heirs get equal parts.
func TestHeirs(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var ids []int
		var shares []plan.Share
		for i := range 2 + rng.IntN(8) {
			ids = append(ids, 8+i)
			if share := rng.Uint32N(1 << (1 + rng.IntN(20))); share > 0 {
				shares = append(shares, plan.Share{Node: uint32(8 + i), Share: share})
			}
		}
		if len(shares) == 0 {
			continue
		}
		for len(ids) > 1 {
			dead := ids[0]
			before, err := plan.New(shares)
			if err != nil {
				t.Fatal(err)
			}
			ids = ids[1:]
			shares = inherited(shares, uint32(dead), ids)
			after, err := plan.New(shares)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			for _, id := range ids {
				want := before.Fraction(uint32(id)) + before.Fraction(uint32(dead))/float64(len(ids))
				if got := after.Fraction(uint32(id)); got < want-1e-5 || got > want+1e-5 {
					t.Fatalf("seed %d: node %d has %v of the shares, expected %v", seed, id, got, want)
				}
			}
		}
	}
}
