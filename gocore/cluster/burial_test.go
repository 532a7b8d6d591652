package cluster

import (
	"fmt"
	"math/rand/v2"
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
			for _, p := range w {
				p.End(wire.Rounds{}, func(err error) { ends <- err })
			}
			for range 3 {
				if err := <-ends; err != nil {
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

// A server that was given up as dead but runs on hears its own name, and a worker's death ends the cluster as before.
func TestBuriedAlive(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		b.config.Recovers = true
		w, s := b.start(2, 2)
		b.each(4, func(i int) error { return awaitBarrier(append(w, s...)[i], AllGroup) })
		suspect(w[0], wire.ServerID(1), "reset by peer")
		time.Sleep(2 * verdictTime)
		b.wantLost(s[1], "server 1: the connection between worker 0 and server 1 broke: reset by peer")
		b.wantLost(w[1])
		b.die(w[0])
		<-b.runner.Done()
		wantError(t, b.runner.Err(), fault.NodeLost, "worker 0")
	})
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
			shares = heirs(shares, uint32(dead), ids)
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
