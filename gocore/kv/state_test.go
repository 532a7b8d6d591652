package kv

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"fptps/gocore/fault"
	"fptps/gocore/store"
	"fptps/gocore/wire"
)

// stateBytes is a tensor of three packets, the last a short one.
const stateBytes = 2*wire.PacketBytes + 24

// initAll gives every worker of c key 6, of rank 0's values.
func (c *cluster) initAll(dtype wire.DType, policy wire.Policy, memory []byte) {
	c.all(func(w *Worker) (*Ticket, error) { return w.Init(6, dtype, policy, memory) })
}

// all has every worker do the same, and waits for it.
func (c *cluster) all(f func(w *Worker) (*Ticket, error)) {
	c.t.Helper()
	tickets := make([]*Ticket, len(c.workers))
	for rank, w := range c.workers {
		var err error
		if tickets[rank], err = f(w); err != nil {
			c.t.Fatal(err)
		}
	}
	for rank, w := range c.workers {
		if err := wait(c.t, w, tickets[rank]); err != nil {
			c.t.Fatal(err)
		}
	}
}

// one runs an operation of rank 0 that must succeed.
func (c *cluster) one(f func(w *Worker) (*Ticket, error)) {
	c.t.Helper()
	ticket, err := f(c.workers[0])
	if err == nil {
		err = wait(c.t, c.workers[0], ticket)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) setRule(rule store.Rule) {
	c.t.Helper()
	c.one(func(w *Worker) (*Ticket, error) {
		return w.ask(6, &inquiry{about: "the optimiser of key 6"}, func(t *tensor) ([]*ask, error) {
			return t.everywhere(wire.AskRule, rule.Text()), nil
		})
	})
}

// clock is what a worker learns of key 6.
func (c *cluster) clock(rank int) []uint64 {
	c.t.Helper()
	w := c.workers[rank]
	memory := make([]byte, 8*len(c.workers))
	ticket, err := w.Clock(6, memory)
	if err == nil {
		err = wait(c.t, w, ticket)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	clock := make([]uint64, len(c.workers))
	for rank := range clock {
		clock[rank] = binary.LittleEndian.Uint64(memory[8*rank:])
	}
	return clock
}

// step has every worker push values that depend on step and rank alone, and gives what rank 0 receives.
func (c *cluster) step(dtype wire.DType, step int) []byte {
	c.t.Helper()
	out := make([][]byte, len(c.workers))
	c.all(func(w *Worker) (*Ticket, error) {
		out[w.Rank] = make([]byte, stateBytes)
		if w.Rank > 0 {
			return w.Skip(6)
		}
		return w.PushPull(6, dtype, gradient(dtype, step), out[0], wire.OpSum, 0)
	})
	return out[0]
}

// gradient is small numbers of a type.
func gradient(dtype wire.DType, step int) []byte {
	rng := rand.New(rand.NewPCG(uint64(step), 5))
	var b []byte
	for len(b) < stateBytes {
		switch dtype {
		case wire.Float64:
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(rng.NormFloat64()))
		case wire.BFloat16:
			b = binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(float32(rng.NormFloat64()))>>16))
		default:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(rng.NormFloat64())))
		}
	}
	return b
}

func TestClockOfACluster(t *testing.T) {
	for _, policy := range []wire.Policy{wire.Sync, wire.Bounded(9), wire.Async} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, []uint32{1, 0, 1}, []uint32{2, 1}, picker(rand.New(rand.NewPCG(1, 1))), func(int, *wire.Header) {})
			defer c.close()
			c.initAll(wire.Float32, policy, make([]byte, stateBytes))
			want := []uint64{0, 0, 0}
			for round := uint64(1); round <= 6; round++ {
				for rank := range want {
					want[rank] = round
				}
				if policy != wire.Sync {
					want = []uint64{0, round / 2, round}
				}
				var tickets []*Ticket
				for rank, w := range c.workers {
					if want[rank] == 0 || round%2 == 1 && want[rank] == round/2 {
						tickets = append(tickets, nil)
						continue
					}
					ticket, err := w.Push(6, wire.Float32, make([]byte, stateBytes), wire.OpSum, 0)
					if err != nil {
						t.Fatal(err)
					}
					tickets = append(tickets, ticket)
				}
				for rank, ticket := range tickets {
					if ticket == nil {
						continue
					}
					if err := wait(t, c.workers[rank], ticket); err != nil {
						t.Fatal(err)
					}
				}
				for rank := range c.workers {
					if got := c.clock(rank); !slices.Equal(got, want) {
						t.Errorf("%v: rank %d has the clock %v, expected %v", policy, rank, got, want)
					}
				}
			}
		})
	}
}

// TestStateGoesOnElsewhere: the state of one cluster, put into another of other numbers, goes on with the same weights.
func TestStateGoesOnElsewhere(t *testing.T) {
	for _, dtype := range []wire.DType{wire.Float32, wire.Float64, wire.BFloat16} {
		synctest.Test(t, func(t *testing.T) {
			rule := store.Rule{Kind: store.Adam, Rate: 0.1, Betas: [2]float64{0.9, 0.99}, Eps: 1e-8}
			first := newCluster(t, []uint32{1, 0}, []uint32{3, 2}, nil, func(int, *wire.Header) {})
			first.initAll(dtype, wire.Sync, gradient(dtype, 0))
			first.setRule(rule)
			for step := 1; step <= 3; step++ {
				first.step(dtype, step)
			}
			second := newCluster(t, []uint32{0, 1, 0}, []uint32{1}, nil, func(int, *wire.Header) {})
			second.initAll(dtype, wire.Sync, make([]byte, stateBytes))
			second.setRule(rule)
			for _, array := range []int{store.ArraySteps, store.ArrayRate, store.ArrayValue, store.ArrayState, store.ArrayState + 1} {
				size := 0
				for p := range wire.Packets(stateBytes) {
					size += store.ArrayBytes(dtype, array, wire.PacketLen(stateBytes, p))
				}
				memory := make([]byte, size)
				first.one(func(w *Worker) (*Ticket, error) { return w.State(6, array, 0, 3, memory) })
				second.one(func(w *Worker) (*Ticket, error) { return w.Restore(6, array, 0, 3, memory) })
			}
			sent := make([]byte, stateBytes)
			second.one(func(w *Worker) (*Ticket, error) { return w.State(6, store.ArraySent, 0, 3, sent) })
			last := make([]byte, stateBytes)
			first.one(func(w *Worker) (*Ticket, error) { return w.State(6, store.ArraySent, 0, 3, last) })
			if !bytes.Equal(sent, last) {
				t.Errorf("%v: other weights are sent", dtype)
			}
			for step := 4; step <= 6; step++ {
				if !bytes.Equal(first.step(dtype, step), second.step(dtype, step)) {
					t.Errorf("%v: other weights after step %d", dtype, step)
				}
			}
			first.close()
			second.close()
		})
	}
}

func TestStateIsRefused(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	memory := make([]byte, size)
	for name, f := range map[string]func() (*Ticket, error){
		"array":   func() (*Ticket, error) { return d.State(1, store.Arrays, 0, 3, memory) },
		"packets": func() (*Ticket, error) { return d.State(1, store.ArrayValue, 1, 3, memory) },
		"nothing": func() (*Ticket, error) { return d.State(1, store.ArrayValue, 1, 0, nil) },
		"bytes":   func() (*Ticket, error) { return d.State(1, store.ArrayValue, 0, 2, memory) },
		"more":    func() (*Ticket, error) { return d.Restore(1, store.ArrayValue, 0, 3, memory[:size-1]) },
	} {
		before := d.snapshot()
		ticket, err := f()
		d.refused(fault.Value, ticket, err)
		if now := d.snapshot(); now != before {
			t.Errorf("%s: %s became %s", name, before, now)
		}
	}
	_, err := d.State(2, store.ArrayValue, 0, 3, memory)
	d.refused(fault.Key, nil, err)
	push := d.push(1, make([]byte, size))
	for _, f := range []func() (*Ticket, error){
		func() (*Ticket, error) { return d.State(1, store.ArrayValue, 0, 3, memory) },
		func() (*Ticket, error) { return d.Restore(1, store.ArrayValue, 0, 3, memory) },
		func() (*Ticket, error) { return d.Resume(1, make([]byte, 8)) },
		func() (*Ticket, error) { return nil, d.Keep(1, wire.Uint8, memory) },
	} {
		ticket, err := f()
		d.refused(fault.Busy, ticket, err)
	}
	d.letGo()
	d.sums(1, 1)
	d.ended(push, "")
	d.refused(fault.Type, nil, d.Keep(1, wire.Int8, memory))
	d.refused(fault.Value, nil, d.Keep(1, wire.Uint8, memory[1:]))
}

// TestKeptIsPulled: pulls return the array of Keep, also after a push_pull, whose sum is not kept.
func TestKeptIsPulled(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	ticket := d.pushPull(1, make([]byte, size), make([]byte, size))
	d.letGo()
	d.sums(1, 1)
	d.ended(ticket, "")
	memory := sum(1, 9)
	if err := d.Keep(1, wire.Uint8, memory); err != nil {
		t.Fatal(err)
	}
	clear(memory) // it was copied
	out := make([]byte, size)
	d.ended(d.pull(1, out), "")
	d.holds(out, 1, 9)
	ticket = d.push(1, make([]byte, size))
	d.letGo()
	d.sums(1, 2)
	d.ended(ticket, "")
	d.ended(d.pull(1, out), "")
	d.holds(out, 1, 2)
}
