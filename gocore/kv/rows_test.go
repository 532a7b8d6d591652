package kv

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"fptps/gocore/fault"
	"fptps/gocore/store"
	"fptps/gocore/wire"
)

// shelf is a table of int32 for which the test knows each rank's pushes and the resulting values.
type shelf struct {
	seed          uint64
	workers       int
	rows, columns int
}

// pushed gives the rows that a rank pushes in a round, some of them twice, and their values; none where it skips.
func (s shelf) pushed(rank int, round uint64) (rows []int64, values []byte) {
	rng := rand.New(rand.NewPCG(s.seed, uint64(rank)<<32|round))
	if rng.IntN(5) == 0 {
		return nil, nil
	}
	n := rng.IntN(2 * s.rows)
	if rng.IntN(3) > 0 {
		n = min(n, 5)
	}
	for range n {
		rows = append(rows, rng.Int64N(int64(s.rows)))
		for range s.columns {
			values = binary.LittleEndian.AppendUint32(values, rng.Uint32())
		}
	}
	return rows, values
}

// add adds what a rank pushes in a round to a whole table.
func (s shelf) add(table []byte, rank int, round uint64) {
	rows, values := s.pushed(rank, round)
	for i, row := range rows {
		for c := range s.columns {
			at := 4 * (int(row)*s.columns + c)
			sum := binary.LittleEndian.Uint32(table[at:]) + binary.LittleEndian.Uint32(values[4*(i*s.columns+c):])
			binary.LittleEndian.PutUint32(table[at:], sum)
		}
	}
}

func (s shelf) bytes() int { return 4 * s.rows * s.columns }

func (s shelf) initial() []byte {
	rng := rand.New(rand.NewPCG(s.seed, 1<<40))
	var b []byte
	for range s.rows * s.columns {
		b = binary.LittleEndian.AppendUint32(b, rng.Uint32())
	}
	return b
}

// checkRows pulls some rows, or all, and compares them with a whole table.
func (s shelf) checkRows(t *testing.T, w *Worker, rng *rand.Rand, table []byte) {
	t.Helper()
	var rows []int64
	for range 1 + rng.IntN(2*s.rows) {
		rows = append(rows, rng.Int64N(int64(s.rows)))
	}
	out := make([]byte, 4*len(rows)*s.columns)
	ticket, err := w.PullRows(6, wire.Int32, rows, out, 0)
	if err == nil {
		err = wait(t, w, ticket)
	}
	if err != nil {
		t.Errorf("rank %d: %v", w.Rank, err)
		return
	}
	size := 4 * s.columns
	for i, row := range rows {
		if !bytes.Equal(out[i*size:][:size], table[int(row)*size:][:size]) {
			t.Errorf("rank %d: row %d is %x, expected %x", w.Rank, row, out[i*size:][:size], table[int(row)*size:][:size])
			return
		}
	}
}

func (c *cluster) initTable(dtype wire.DType, policy wire.Policy, row int, memory []byte) {
	c.t.Helper()
	c.all(func(w *Worker) (*Ticket, error) {
		return w.InitTable(6, dtype, policy, row, bytes.Clone(memory))
	})
}

func TestTables(t *testing.T) {
	for seed := range uint64(20) {
		for _, policy := range []wire.Policy{wire.Sync, wire.Bounded(1), wire.Async} {
			t.Run(fmt.Sprint(policy, seed), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, uint64(policy)))
				synctest.Test(t, func(t *testing.T) { playTable(t, policy, rng) })
			})
		}
	}
}

func playTable(t *testing.T, policy wire.Policy, rng *rand.Rand) {
	workerShares, serverShares := make([]uint32, 1+rng.IntN(4)), make([]uint32, rng.IntN(3))
	for i := range serverShares {
		serverShares[i] = 1 + rng.Uint32N(4)
	}
	for i := range workerShares {
		if len(serverShares) == 0 || rng.IntN(2) == 0 {
			workerShares[i] = 1 + rng.Uint32N(4)
		}
	}
	s := shelf{seed: rng.Uint64(), workers: len(workerShares), rows: 1 + rng.IntN(200), columns: []int{1, 3, 64, 1500, 4096}[rng.IntN(5)]}
	c := newCluster(t, workerShares, serverShares, picker(rng), func(int, *wire.Header) {})
	c.initTable(wire.Int32, policy, 4*s.columns, s.initial())
	const rounds = 4
	var players sync.WaitGroup
	for _, w := range c.workers {
		rng := rand.New(rand.NewPCG(rng.Uint64(), 0))
		players.Go(func() {
			for round := uint64(1); round <= rounds; round++ {
				ticket, err := s.push(w, round)
				if err != nil {
					t.Error(err)
					return
				}
				if policy == wire.Sync { // pulls wait for the push
					sum := make([]byte, s.bytes())
					for rank := range s.workers {
						s.add(sum, rank, round)
					}
					s.checkRows(t, w, rng, sum)
				}
				if err := wait(t, w, ticket); err != nil {
					t.Error(err)
				}
			}
		})
	}
	players.Wait()
	if policy != wire.Sync {
		whole := s.initial()
		for rank := range s.workers {
			for round := uint64(1); round <= rounds; round++ {
				s.add(whole, rank, round)
			}
		}
		for _, w := range c.workers {
			s.checkRows(t, w, rng, whole)
		}
	}
	for rank := range c.workers {
		for _, at := range c.clock(rank) {
			if at != rounds {
				t.Errorf("rank %d has the clock %v", rank, c.clock(rank))
			}
		}
	}
	c.close()
}

func (s shelf) push(w *Worker, round uint64) (*Ticket, error) {
	rows, values := s.pushed(w.Rank, round)
	if rows == nil && round%2 == 0 {
		return w.Skip(6)
	}
	ticket, err := w.PushRows(6, wire.Int32, rows, values, 0)
	clear(values) // they were copied
	clear(rows)
	return ticket, err
}

// TestRowsAreThoseOfTheLastPush: a push after a pull does not overtake it, however packets overtake each other.
func TestRowsAreThoseOfTheLastPush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		newest := func(n int) int { return n - 1 }
		c := newCluster(t, []uint32{1}, nil, newest, func(int, *wire.Header) {})
		c.initTable(wire.Int8, wire.Async, 1, []byte{0, 0})
		w := c.workers[0]
		var tickets []*Ticket
		note := func(ticket *Ticket, err error) {
			if err != nil {
				t.Fatal(err)
			}
			tickets = append(tickets, ticket)
		}
		got := make([][]byte, 5)
		for i := range got {
			got[i] = make([]byte, 1)
			note(w.PushRows(6, wire.Int8, []int64{1}, []byte{1}, 0))
			note(w.PullRows(6, wire.Int8, []int64{1}, got[i], 0))
		}
		for _, ticket := range tickets {
			if err := wait(t, w, ticket); err != nil {
				t.Fatal(err)
			}
		}
		if whole := bytes.Join(got, nil); !bytes.Equal(whole, []byte{1, 2, 3, 4, 5}) {
			t.Errorf("the pulls gave %v", whole)
		}
		c.close()
	})
}

// TestOnlyRowsTravel counts the bytes of a round in which two workers push and pull 3 rows each of 100,000.
func TestOnlyRowsTravel(t *testing.T) {
	const rows, row, packet = 100_000, 256, wire.PacketBytes / 256
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var packets, payload int
		count := func(_ int, h *wire.Header) {
			mu.Lock()
			defer mu.Unlock()
			packets++
			payload += int(h.WireLen)
		}
		c := newCluster(t, []uint32{1, 1}, nil, nil, count)
		c.initTable(wire.Float32, wire.Sync, row, make([]byte, rows*row))
		packets, payload = 0, 0
		numbers := [][]int64{{5, 7 * packet, 90_000}, {6, 7 * packet, 70_000}}
		c.all(func(w *Worker) (*Ticket, error) {
			return w.PushRows(6, wire.Float32, numbers[w.Rank], make([]byte, 3*row), 0)
		})
		if payload != 6*(row+2) || packets > 60 {
			t.Errorf("the push took %d bytes in %d packets", payload, packets)
		}
		packets, payload = 0, 0
		c.all(func(w *Worker) (*Ticket, error) {
			return w.PullRows(6, wire.Float32, numbers[w.Rank], make([]byte, 3*row), 0)
		})
		if payload != 6*(row+2) || packets != 12 {
			t.Errorf("the pull took %d bytes in %d packets", payload, packets)
		}
		c.close()
	})
}

// A table's optimiser changes what dense tensors' does, where rows were pushed, and nothing elsewhere.
func TestLazyOptimiser(t *testing.T) {
	const rows, columns = 300, 24
	for _, dtype := range []wire.DType{wire.Float32, wire.BFloat16} {
		for _, policy := range []wire.Policy{wire.Sync, wire.Async} {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, []uint32{1}, nil, nil, func(int, *wire.Header) {})
				row := columns * dtype.Size()
				initial := gradient(dtype, 0)[:rows*row]
				c.initTable(dtype, policy, row, initial)
				c.setRule(store.Rule{Kind: store.SGD, Rate: 0.5, WeightDecay: 0.25})
				pushed := []int64{3, 4, 5, 299}
				dense := gradient(dtype, 1)[:rows*row]
				var values []byte
				for _, n := range pushed {
					values = append(values, dense[int(n)*row:][:row]...)
				}
				c.one(func(w *Worker) (*Ticket, error) { return w.PushRows(6, dtype, pushed, values, 0) })

				c.one(func(w *Worker) (*Ticket, error) { return w.Init(7, dtype, policy, initial) })
				c.one(func(w *Worker) (*Ticket, error) {
					return w.SetRule([]uint64{7}, store.Rule{Kind: store.SGD, Rate: 0.5, WeightDecay: 0.25})
				})
				want := make([]byte, len(dense))
				c.one(func(w *Worker) (*Ticket, error) { return w.PushPull(7, dtype, dense, want, wire.OpSum, 0) })

				var all []int64
				touched := map[int64]bool{3: true, 4: true, 5: true, 299: true}
				for n := range int64(rows) {
					all = append(all, n)
				}
				got := make([]byte, rows*row)
				c.one(func(w *Worker) (*Ticket, error) { return w.PullRows(6, dtype, all, got, 0) })
				for n := range rows {
					expected := initial
					if touched[int64(n)] {
						expected = want
					}
					if !bytes.Equal(got[n*row:][:row], expected[n*row:][:row]) {
						t.Fatalf("%v %v: row %d", dtype, policy, n)
					}
				}
				c.close()
			})
		}
	}
}

func TestTablesAreRefused(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	for name, f := range map[string]func() (*Ticket, error){
		"no row":        func() (*Ticket, error) { return d.InitTable(2, wire.Float32, wire.Sync, 0, make([]byte, 8)) },
		"half a row":    func() (*Ticket, error) { return d.InitTable(2, wire.Float32, wire.Sync, 16, make([]byte, 24)) },
		"a large row":   func() (*Ticket, error) { return d.InitTable(2, wire.Float32, wire.Sync, 16388, make([]byte, 16388)) },
		"a consistency": func() (*Ticket, error) { return d.InitTable(2, wire.Float32, wire.Ordered-1, 4, make([]byte, 8)) },
		"the same key":  func() (*Ticket, error) { return d.InitTable(1, wire.Float32, wire.Sync, 4, make([]byte, 8)) },
		"no table":      func() (*Ticket, error) { return d.PushRows(1, wire.Uint8, []int64{0}, make([]byte, size), 0) },
		"to pull":       func() (*Ticket, error) { return d.PullRows(1, wire.Uint8, []int64{0}, make([]byte, size), 0) },
	} {
		before := d.snapshot()
		ticket, err := f()
		if err == nil || fault.CodeOf(err) != fault.Value {
			t.Errorf("%s: ticket %v, error %v", name, ticket, err)
		}
		if now := d.snapshot(); now != before {
			t.Errorf("%s: %s became %s", name, before, now)
		}
	}
	_, err := d.InitTable(2, wire.Quant(4), wire.Sync, wire.BlockBytes, make([]byte, 2*wire.BlockBytes))
	d.refused(fault.Type, nil, err)
}

func TestRowsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, []uint32{1}, nil, nil, func(int, *wire.Header) {})
		c.initTable(wire.Float32, wire.Sync, 8, make([]byte, 80))
		w := c.workers[0]
		for name, tc := range map[string]struct {
			code  fault.Code
			dtype wire.DType
			rows  []int64
			bytes int
		}{
			"a row beyond":   {fault.Value, wire.Float32, []int64{1, 10}, 16},
			"a negative row": {fault.Value, wire.Float32, []int64{-1}, 8},
			"fewer values":   {fault.Value, wire.Float32, []int64{1, 2}, 8},
			"another type":   {fault.Type, wire.Int32, []int64{1}, 8},
		} {
			for _, f := range []func(uint64, wire.DType, []int64, []byte, int32) (*Ticket, error){w.PushRows, w.PullRows} {
				if _, err := f(6, tc.dtype, tc.rows, make([]byte, tc.bytes), 0); fault.CodeOf(err) != tc.code {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		for name, f := range map[string]func() (*Ticket, error){
			"push": func() (*Ticket, error) { return w.Push(6, wire.Float32, make([]byte, 80), wire.OpSum, 0) },
			"pull": func() (*Ticket, error) { return w.Pull(6, wire.Float32, make([]byte, 80)) },
		} {
			if _, err := f(); fault.CodeOf(err) != fault.Value {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := w.PushRows(7, wire.Float32, nil, nil, 0); fault.CodeOf(err) != fault.Key {
			t.Error(err)
		}
		c.close()
	})
}

// TestPulledRowsEndWithTheWorker: a pull that waits for a push ends with the worker's failure.
func TestPulledRowsEndWithTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, []uint32{1, 1}, nil, nil, func(int, *wire.Header) {})
		c.initTable(wire.Float32, wire.Sync, 8, make([]byte, 80))
		w := c.workers[0]
		push, err := w.PushRows(6, wire.Float32, []int64{1}, make([]byte, 8), 0)
		if err != nil {
			t.Fatal(err)
		}
		pull, err := w.PullRows(6, wire.Float32, []int64{1}, make([]byte, 8), 0)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if text := pull.Explain().Text; text != "rows of key 6: first the push before it: key 6 round 1: the sums of 0 of 1 packets are here" {
			t.Error(text)
		}
		c.network.Close()
		for _, w := range c.workers {
			w.Fail(fault.New(fault.NodeLost, "over"))
		}
		for _, ticket := range []*Ticket{push, pull} {
			if err := wait(t, w, ticket); fault.CodeOf(err) != fault.NodeLost {
				t.Error(err)
			}
		}
		if len(w.mu.flights.list) > 0 {
			t.Errorf("%v is in flight", w.mu.flights.list)
		}
	})
}
