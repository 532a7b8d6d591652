package cluster

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// A whole life, from joining to the end in good order, under many orders of arrival.
func TestLife(t *testing.T) {
	for seed := range uint64(20) {
		workers, servers := 1+int(seed%5), int(seed%4)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			inBubble(t, seed, func(b *bench) { life(b, workers, servers) })
		})
	}
}

func life(b *bench, workers, servers int) {
	w, s := b.start(workers, servers)
	all := append(append([]*Postoffice{}, w...), s...)
	<-b.runner.Joined()
	want := b.runner.View()
	for _, p := range all {
		got := p.View()
		if got.Token != want.Token || got.Token == [16]byte{} || fmt.Sprint(got.Members) != fmt.Sprint(want.Members) {
			b.t.Errorf("%s sees %+v, the scheduler %+v", Name(got.Self), got, want)
		}
	}
	var arrived, rounds atomic.Int64
	meet := func(p *Postoffice, group, n int) error {
		arrived.Add(1)
		if err := awaitBarrier(p, group); err != nil {
			return err
		}
		if got := arrived.Load(); got < int64(n) {
			return fmt.Errorf("%s passed the barrier when %d of %d had come", Name(p.View().Self), got, n)
		}
		return nil
	}
	b.each(len(all), func(i int) error { return meet(all[i], AllGroup, len(all)) })
	ids := make([][]uint32, workers)
	b.each(workers, func(i int) error {
		for round := range 5 {
			if err := meet(w[i], WorkerGroup, len(all)+workers*(round+1)); err != nil {
				return err
			}
			rounds.Add(1)
		}
		var err error
		ids[i], err = declareMany(w[i], 40, i)
		return err
	})
	for i := range workers {
		if fmt.Sprint(ids[i]) != fmt.Sprint(ids[0]) {
			b.t.Errorf("worker %d got ids %v, worker 0 %v", i, ids[i], ids[0])
		}
	}
	b.each(len(all), func(i int) error { return meet(all[i], AllGroup, 2*len(all)+5*workers) })
	<-b.runner.Done()
	if err := b.runner.Err(); err != nil {
		b.t.Errorf("the scheduler ended with %v", err)
	}
	for _, p := range all {
		p.Close()
		b.runner.Gone(p.View().Self, p.View().Me().Incarnation, "closed") // after the end it means nothing
	}
	synctest.Wait()
	for _, p := range all {
		b.wantLost(p)
	}
}

// declareMany declares keys 100 to 100+n-1, in another order on each worker, and
// gives their ids by key.
func declareMany(p *Postoffice, n, shift int) ([]uint32, error) {
	ids := make([]uint32, n)
	errs := make(chan error, n)
	for i := range n {
		k := (i*7 + shift*11) % n
		declareTo(p, uint64(100+k), wire.Tensor{Bytes: uint64(4 * k), DType: wire.Float32}, func(id uint32, err error) {
			ids[k] = id
			errs <- err
		})
	}
	for range n {
		if err := <-errs; err != nil {
			return nil, err
		}
	}
	seen := map[uint32]bool{}
	for _, id := range ids {
		if seen[id] || int(id) >= n {
			return nil, fmt.Errorf("ids %v are not 0 to %d", ids, n-1)
		}
		seen[id] = true
	}
	return ids, nil
}

// declare waits for a declaration.
func declare(p *Postoffice, key, bytes uint64, dtype wire.DType) (uint32, error) {
	type answer struct {
		id  uint32
		err error
	}
	done := make(chan answer, 1)
	declareTo(p, key, wire.Tensor{Bytes: bytes, DType: dtype}, func(id uint32, err error) { done <- answer{id, err} })
	a := <-done
	return a.id, a.err
}

func TestDisagreement(t *testing.T) {
	for seed := range uint64(10) {
		inBubble(t, seed, func(b *bench) {
			w, _ := b.start(3, 1)
			b.each(3, func(i int) error {
				size := uint64(400)
				if i == 1 {
					size = 800
				}
				_, err := declare(w[i], 5, size, wire.Float32)
				wantError(b.t, err, fault.Mismatch, "key 5", "worker 1 has 800 bytes of float32", "400 bytes of float32")
				return nil
			})
			// All know; now they agree.
			b.each(3, func(i int) error {
				id, err := declare(w[i], 5, 400, wire.Float32)
				if id != 0 {
					b.t.Errorf("id %d, want 0", id)
				}
				return err
			})
		})
	}
}

// All workers learn of a disagreement at once, when the last one has declared. A worker that
// learned of it earlier might leave, and the others would raise an error about that instead.
func TestDisagreementReachesAllAtOnce(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, _ := b.start(3, 0)
		errs := make(chan error, 3)
		declareLate := func(i int) {
			declareTo(w[i], 5, wire.Tensor{Bytes: uint64(4 + i%2*4), DType: wire.Int32}, func(_ uint32, err error) { errs <- err })
		}
		declareLate(0)
		declareLate(1)
		time.Sleep(time.Hour)
		if len(errs) > 0 {
			t.Errorf("answered before the last one has declared: %v", <-errs)
		}
		declareLate(2)
		for range 3 {
			wantError(t, <-errs, fault.Mismatch, "workers 0, 2 have 4 bytes of int32, sync; worker 1 has 8 bytes of int32, sync")
		}
	})
}

// A cluster in which only some workers are deterministic is refused, by an error that names the setting.
func TestDeterministicOnSomeWorkers(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, _ := b.start(3, 0)
		errs := make(chan error, 3)
		for rank, policy := range []wire.Policy{wire.Ordered, wire.Ordered, wire.Sync} {
			declareTo(w[rank], 5, wire.Tensor{Bytes: 4, DType: wire.Float32, Policy: policy}, func(_ uint32, err error) { errs <- err })
		}
		for range 3 {
			wantError(t, <-errs, fault.Mismatch, "workers 0, 1 have 4 bytes of float32, sync and deterministic; worker 2 has 4 bytes of float32, sync.",
				"the same deterministic= or FPTPS_DETERMINISTIC")
		}
	})
}

func TestInvalidRequests(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, s := b.start(1, 1)
		wantError(t, awaitBarrier(w[0], ServerGroup), fault.Value, "worker", "group 2")
		wantError(t, awaitBarrier(w[0], 0), fault.Value)
		wantError(t, awaitBarrier(w[0], 15), fault.Value)
		_, err := declare(s[0], 1, 4, wire.Int32)
		wantError(t, err, fault.Value, "server")
		_, err = declare(w[0], 1, 5, wire.Int32)
		wantError(t, err, fault.Value, "key 1", "not a whole number of int32")
		first := make(chan error, 1)
		declareTo(w[0], 2, wire.Tensor{Bytes: 4, DType: wire.Int32}, func(_ uint32, err error) { first <- err })
		_, err = declare(w[0], 2, 4, wire.Int32)
		wantError(t, err, fault.Busy, "key 2")
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

// Barriers of one group are passed one after the other, even if asked for at once.
func TestBarriersInARow(t *testing.T) {
	inBubble(t, 3, func(b *bench) {
		w, _ := b.start(2, 0)
		order := make(chan int, 3)
		for i := range 3 {
			w[0].Barrier(0, WorkerGroup, func(err error) { order <- i })
		}
		for want := range 3 {
			if err := awaitBarrier(w[1], WorkerGroup); err != nil {
				t.Fatal(err)
			}
			if got := <-order; got != want {
				t.Errorf("barrier %d ended in place %d", got, want)
			}
		}
		b.runner.Close()
		if got := b.runner.scheduler.Counts(); got != (SchedulerCounts{}) {
			t.Errorf("the scheduler met strangers: %+v", got)
		}
	})
}

func TestMissingNodesAreReported(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, s := b.start(2, 1)
		b.each(3, func(i int) error { return awaitBarrier([]*Postoffice{w[0], w[1], s[0]}[i], AllGroup) })
		done := make(chan error, 2)
		w[0].Barrier(0, WorkerGroup, func(err error) { done <- err })
		declareTo(w[1], 7, wire.Tensor{Bytes: 4, DType: wire.Int32}, func(_ uint32, err error) { done <- err })
		time.Sleep(7 * time.Second)
		if err := awaitBarrier(w[1], WorkerGroup); err != nil {
			t.Fatal(err)
		}
		if _, err := declare(w[0], 7, 4, wire.Int32); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i, want := range []string{
			`lost [], waiting ["barrier: worker 1" "barrier: "], failed []`,
			`lost [], waiting ["key 7: worker 0" "key 7: "], failed []`,
		} {
			if got := b.records[w[i]].String(); got != want {
				t.Errorf("worker %d recorded: %s, want %s", i, got, want)
			}
		}
		if got := b.records[s[0]].String(); got != `lost [], waiting [], failed []` {
			t.Errorf("the server, which waits for nothing, recorded: %s", got)
		}
	})
}

func TestClose(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, _ := b.start(2, 0)
		errs := make(chan error, 3)
		w[0].Barrier(0, WorkerGroup, func(err error) { errs <- err })
		w[0].Barrier(0, WorkerGroup, func(err error) { errs <- err })
		declareTo(w[0], 1, wire.Tensor{Bytes: 4, DType: wire.Int32}, func(_ uint32, err error) { errs <- err })
		w[0].Close()
		for range 3 {
			wantError(t, <-errs, fault.Closed, "worker 0")
		}
		wantError(t, awaitBarrier(w[0], WorkerGroup), fault.Closed)
		_, err := declare(w[0], 2, 4, wire.Int32)
		wantError(t, err, fault.Closed)
		suspect(w[0], 11, "no matter")
		w[0].Close()
		b.wantLost(w[0])
	})
}

// A callback that panics ends this node's control plane, and nothing else.
func TestPanicInACallback(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		w, _ := b.start(2, 0)
		errs := make(chan error, 1)
		declareTo(w[0], 1, wire.Tensor{Bytes: 4, DType: wire.Int32}, func(_ uint32, err error) { errs <- err })
		w[0].Barrier(0, WorkerGroup, func(err error) { panic("a bug") })
		if err := awaitBarrier(w[1], WorkerGroup); err != nil {
			t.Fatal(err)
		}
		wantError(t, <-errs, fault.Internal, "a bug")
		synctest.Wait()
		if l := b.records[w[0]]; len(l.failed) != 1 || fault.CodeOf(l.failed[0]) != fault.Internal {
			t.Errorf("recorded %v", l)
		}
		wantError(t, awaitBarrier(w[0], WorkerGroup), fault.Internal)
	})
}

func TestServeChecksItsNumbers(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		for _, n := range [][2]int{{0, 1}, {wire.MaxWorkers + 1, 0}, {1, -1}, {1, wire.MaxWorkers + 1}} {
			c := b.config
			c.Workers, c.Servers = n[0], n[1]
			_, err := Serve(b.net.Van("sched"), c, Events{})
			wantError(t, err, fault.Config, "DMLC_NUM_WORKER")
		}
		b.serve(1, 0)
		c := b.config
		_, err := Serve(b.net.Van("sched"), c, Events{})
		wantError(t, err, fault.Connect, "9000", "another scheduler")
		b.runner.Close()
		<-b.runner.Done()
		wantError(t, b.runner.Err(), fault.Closed)
	})
}
