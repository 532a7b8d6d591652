package aggregate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"fptps/gocore/wire"
)

const ints = 5 // elements in each test packet

// values is what rank pushes in a round: distinct for every rank, packet and round.
func values(rank int, tensor, packet uint32, round uint64) []byte {
	b := make([]byte, 0, 4*ints)
	for i := range uint32(ints) {
		b = binary.LittleEndian.AppendUint32(b, uint32(rank+1)*1000003+tensor*10007+packet*101+uint32(round)*17+i)
	}
	return b
}

func contribution(tensor, packet uint32, round uint64) *wire.Header {
	return &wire.Header{
		Kind: wire.Contrib, DType: wire.Uint32, Tensor: tensor, Packet: packet, Run: 1, Round: round,
		RawLen: 4 * ints, WireLen: 4 * ints,
	}
}

// TestAgainstSimpleSums lets workers, each with one round of a tensor under way at a time, contribute
// in random orders, and compares each sum with one computed from scratch.
func TestAgainstSimpleSums(t *testing.T) {
	const tensors, packets, rounds = 3, 2, 6
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 7))
		workers := 1 + rng.IntN(70)
		pool := NewPool()
		slots := NewSlots(NewMembers(workers), pool, time.Time{})
		type cell struct {
			tensor uint32
			round  uint64
		}
		left := make([]map[cell][]uint32, workers) // packets not yet sent, by worker
		at := make([][tensors]uint64, workers)
		whole := map[cell]int{}
		for w := range left {
			left[w] = map[cell][]uint32{}
			for tensor := range uint32(tensors) {
				left[w][cell{tensor, 0}] = []uint32{0, 1}
			}
		}
		sums := 0
		for sums < tensors*packets*rounds {
			w, tensor := rng.IntN(workers), rng.Uint32N(tensors)
			c := cell{tensor, at[w][tensor]}
			todo := left[w][c]
			if len(todo) == 0 {
				if c.round+1 < rounds && whole[c] == packets { // the round is complete: the next may start
					at[w][tensor]++
					left[w][cell{tensor, c.round + 1}] = []uint32{0, 1}
				}
				continue
			}
			i := rng.IntN(len(todo))
			packet := todo[i]
			left[w][c] = slices.Delete(slices.Clone(todo), i, i+1)
			h := contribution(tensor, packet, c.round)
			h.Priority = int32(w)
			complete := false
			for range 1 + rng.IntN(2) { // some arrive twice
				payload := values(w, tensor, packet, c.round)
				var owned *Buffer
				if rng.IntN(2) == 0 {
					owned = pool.Get(len(payload))
					copy(owned.Bytes, payload)
					payload = owned.Bytes
				}
				sum, done, err := slots.Add(w, h, payload, owned)
				if complete && err == ErrStale {
					continue
				}
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if !done {
					continue
				}
				complete = true
				sums++
				whole[c]++
				check(t, sum, workers, tensor, packet, c.round)
				sum.Buffer.Release()
			}
		}
		if pool.Lent() != 0 || slots.open.next != &slots.open {
			t.Errorf("seed %d: %d buffers lent at the end, or slots open", seed, pool.Lent())
		}
	}
}

func check(t *testing.T, sum Sum, workers int, tensor, packet uint32, round uint64) {
	t.Helper()
	h := sum.Header
	if h.Kind != wire.Sum || h.Tensor != tensor || h.Packet != packet || h.Round != round || int(h.Contributors) != workers ||
		h.Priority != int32(workers-1) || h.RawLen != 4*ints || h.WireLen != 4*ints {
		t.Fatalf("the sum's header is %+v", h)
	}
	for i := range ints {
		want := uint32(0)
		for w := range workers {
			want += binary.LittleEndian.Uint32(values(w, tensor, packet, round)[4*i:])
		}
		if got := binary.LittleEndian.Uint32(sum.Buffer.Bytes[4*i:]); got != want {
			t.Fatalf("tensor %d packet %d round %d element %d: %d, expected %d", tensor, packet, round, i, got, want)
		}
	}
}

func TestEmptyContributions(t *testing.T) {
	pool := NewPool()
	slots := NewSlots(NewMembers(2), pool, time.Time{})
	run := &wire.Header{Kind: wire.Empty, DType: wire.Uint32, Packet: 3, Run: 3, Round: 1, RawLen: 4 * ints}
	sums, err := slots.AddEmpty(1, run, nil)
	if err != nil || len(sums) != 0 {
		t.Fatalf("one of two: %v, %v", sums, err)
	}
	h := contribution(0, 5, 1)
	sum, done, err := slots.Add(0, h, values(0, 0, 5, 1), nil)
	if err != nil || !done || !slices.Equal(sum.Buffer.Bytes, values(0, 0, 5, 1)) || sum.Header.Contributors != 2 {
		t.Fatalf("values and zeros: %+v %v %v", sum, done, err)
	}
	run.Run, run.RawLen = 2, wire.PacketBytes
	sums, err = slots.AddEmpty(0, run, nil)
	if err != nil || len(sums) != 2 {
		t.Fatalf("zeros from everyone: %v, %v", sums, err)
	}
	for i, s := range sums {
		if s.Buffer != nil || s.Header.WireLen != 0 || s.Header.RawLen != wire.PacketBytes || s.Header.Packet != uint32(3+i) {
			t.Errorf("sum %d of zeros is %+v", i, s)
		}
	}
}

func TestMeanDividesOnce(t *testing.T) {
	for _, dtype := range []wire.DType{wire.Float32, wire.BFloat16} {
		pool := NewPool()
		slots := NewSlots(NewMembers(4), pool, time.Time{})
		for rank := range 4 {
			payload := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(rank)))
			if dtype == wire.BFloat16 {
				payload = payload[2:]
			}
			h := &wire.Header{Kind: wire.Contrib, DType: dtype, Op: wire.OpMean, Run: 1, RawLen: uint32(len(payload)), WireLen: uint32(len(payload))}
			sum, done, err := slots.Add(rank, h, payload, nil)
			if err != nil || done != (rank == 3) {
				t.Fatal(done, err)
			}
			if !done {
				continue
			}
			bits := make([]byte, 4)
			copy(bits[4-len(payload):], sum.Buffer.Bytes)
			if got := math.Float32frombits(binary.LittleEndian.Uint32(bits)); got != 1.5 {
				t.Errorf("%v: the mean of 0, 1, 2, 3 is %v, flags %x", dtype, got, sum.Header.Flags)
			}
			sum.Buffer.Release()
		}
		if pool.Lent() != 0 {
			t.Errorf("%v: %d buffers lent at the end", dtype, pool.Lent())
		}
	}
}

func TestBrokenContributionsChangeNothing(t *testing.T) {
	ahead := contribution(0, 0, 3)
	stale := contribution(0, 0, 0)
	longer := contribution(0, 0, 1)
	longer.RawLen = 8 * ints
	typed := contribution(0, 0, 1)
	typed.DType = wire.Float32
	mean := contribution(0, 0, 1)
	mean.Op = wire.OpMean
	for name, c := range map[string]struct {
		rank int
		h    *wire.Header
		err  func(error) bool
	}{
		"a round before the last is complete": {1, ahead, func(err error) bool { return err != nil && !errors.Is(err, ErrStale) }},
		"another size":                        {1, longer, func(err error) bool { return err != nil }},
		"another type":                        {1, typed, func(err error) bool { return err != nil }},
		"a mean of integers":                  {1, mean, func(err error) bool { return err != nil }},
		"a rank too high":                     {2, contribution(0, 0, 1), func(err error) bool { return err != nil }},
		"no rank":                             {-1, contribution(0, 0, 1), func(err error) bool { return err != nil }},
		"twice":                               {0, contribution(0, 0, 1), func(err error) bool { return err == nil }},
	} {
		pool := NewPool()
		slots := NewSlots(NewMembers(2), pool, time.Time{})
		if _, _, err := slots.Add(0, contribution(0, 0, 1), values(0, 0, 0, 1), nil); err != nil {
			t.Fatal(err)
		}
		owned := pool.Get(int(c.h.RawLen))
		if _, done, err := slots.Add(c.rank, c.h, owned.Bytes, owned); done || !c.err(err) {
			t.Errorf("%s: done %v, error %v", name, done, err)
		}
		sum, done, err := slots.Add(1, contribution(0, 0, 1), values(1, 0, 0, 1), nil)
		if !done || err != nil {
			t.Fatalf("%s: the round is not complete afterwards: %v", name, err)
		}
		if got, want := binary.LittleEndian.Uint32(sum.Buffer.Bytes), binary.LittleEndian.Uint32(values(0, 0, 0, 1))+binary.LittleEndian.Uint32(values(1, 0, 0, 1)); got != want {
			t.Errorf("%s: the sum is %d, expected %d", name, got, want)
		}
		sum.Buffer.Release()
		if pool.Lent() != 0 {
			t.Errorf("%s: %d buffers lent", name, pool.Lent())
		}
	}
	slots := NewSlots(NewMembers(1), NewPool(), time.Time{})
	for _, round := range []uint64{0, 1, 2} {
		if _, done, err := slots.Add(0, contribution(0, 0, round), values(0, 0, 0, round), nil); !done || err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := slots.Add(0, stale, values(0, 0, 0, 0), nil); !errors.Is(err, ErrStale) {
		t.Errorf("a stale contribution: %v", err)
	}
}

func TestDifferentOperationsGiveNoSum(t *testing.T) {
	pool := NewPool()
	slots := NewSlots(NewMembers(2), pool, time.Time{})
	h := contribution(0, 0, 1)
	h.DType = wire.Float32
	if _, _, err := slots.Add(0, h, values(0, 0, 0, 1), nil); err != nil {
		t.Fatal(err)
	}
	h.Op = wire.OpMean
	sum, done, err := slots.Add(1, h, values(1, 0, 0, 1), nil)
	if err != nil || !done || sum.Buffer != nil || sum.Header.WireLen != 0 || sum.Header.Flags&wire.FlagClash == 0 {
		t.Errorf("sum and mean together: %+v %v %v", sum, done, err)
	}
	if pool.Lent() != 0 {
		t.Errorf("%d buffers lent", pool.Lent())
	}
}

func TestStallsNameMissingWorkers(t *testing.T) {
	start := time.Unix(1000, 0)
	slots := NewSlots(NewMembers(3), NewPool(), start)
	for _, c := range []struct {
		rank   int
		packet uint32
	}{{0, 0}, {0, 1}, {2, 1}} {
		if _, _, err := slots.Add(c.rank, contribution(9, c.packet, 4), values(c.rank, 9, c.packet, 4), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		after time.Duration
		want  string
	}{
		{StallAfter / 2, "[]"},
		{StallAfter, "[{9 4 [1 2] [0 2]}]"}, // rank 2 still owes packet 0
		{StallAfter * 3 / 2, "[]"},          // reported just before
		{2 * StallAfter, "[{9 4 [1 2] [0 2]}]"},
	} {
		if got := fmt.Sprint(slots.Tick(start.Add(c.after))); got != c.want {
			t.Errorf("after %v: %s, expected %s", c.after, got, c.want)
		}
	}
}

// TestTickIsBounded: one Tick inspects maxLooks packets, however many wait, and the next Ticks inspect the others.
func TestTickIsBounded(t *testing.T) {
	const tensors = 3*maxLooks - 7
	start := time.Unix(1000, 0)
	slots := NewSlots(NewMembers(2), NewPool(), start)
	for tensor := range uint32(tensors) {
		if _, _, err := slots.Add(1, contribution(tensor, 0, 4), values(1, tensor, 0, 4), nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := slots.Tick(start.Add(StallAfter - 1)); got != nil {
		t.Errorf("%d stalls too early", len(got))
	}
	seen := map[uint32]int{}
	for tick, want := range []int{maxLooks, maxLooks, maxLooks - 7, 0} {
		stalls := slots.Tick(start.Add(StallAfter + time.Duration(tick)))
		if len(stalls) != want {
			t.Errorf("tick %d finds %d stalls, expected %d", tick, len(stalls), want)
		}
		for _, s := range stalls {
			seen[s.Tensor]++
		}
	}
	if len(seen) != tensors {
		t.Errorf("%d tensors of %d were found", len(seen), tensors)
	}
	for tensor := range uint32(tensors) { // complete ones leave the ring
		if _, done, err := slots.Add(0, contribution(tensor, 0, 4), values(0, tensor, 0, 4), nil); !done || err != nil {
			t.Fatal(done, err)
		}
	}
	if slots.open.next != &slots.open {
		t.Error("complete slots are still inspected")
	}
}

func TestNoAllocationPerPacket(t *testing.T) {
	pool := NewPool()
	slots := NewSlots(NewMembers(2), pool, time.Time{})
	round := uint64(0)
	payload := values(0, 0, 0, 0)
	h := contribution(0, 0, 0)
	n := testing.AllocsPerRun(1000, func() {
		round++
		h.Round = round
		for rank := range 2 {
			b := pool.Get(len(payload))
			copy(b.Bytes, payload)
			if sum, done, _ := slots.Add(rank, h, b.Bytes, b); done {
				sum.Buffer.Release()
			}
		}
	})
	if n > 0 {
		t.Errorf("%v allocations per packet", n)
	}
}

func TestReleaseTooOftenPanics(t *testing.T) {
	b := NewPool().Get(10)
	b.Release()
	defer func() {
		if recover() == nil {
			t.Error("a second release went unnoticed")
		}
	}()
	b.Release()
}

// The sum carries the policy and the learning rate of the contributions; contributions with different policies are refused.
func TestPolicyAndLearningRate(t *testing.T) {
	pool := NewPool()
	slots := NewSlots(NewMembers(3), pool, time.Time{})
	add := func(rank int, change func(h *wire.Header)) (Sum, bool, error) {
		h := contribution(4, 5, 0)
		h.Policy = wire.Bounded(2)
		change(h)
		return slots.Add(rank, h, values(rank, 4, 5, 0), nil)
	}
	as := func(*wire.Header) {}
	if _, _, err := add(1, as); err != nil {
		t.Fatal(err)
	}
	if _, _, err := add(2, func(h *wire.Header) { h.Policy = wire.Async }); err == nil {
		t.Error("two consistencies in one round")
	}
	if _, _, err := add(0, func(h *wire.Header) { h.Flags, h.LearningRate = wire.FlagLearningRate, 0.5 }); err != nil {
		t.Fatal(err)
	}
	sum, done, err := add(2, as)
	if err != nil || !done || sum.Policy != wire.Bounded(2) || !sum.Rated || sum.LearningRate != 0.5 {
		t.Fatalf("done %v, error %v, %+v", done, err, sum)
	}
	sum.Buffer.Release()
	for rank := range 3 { // the next round in the same slot begins without
		h := contribution(4, 5, 2)
		if sum, done, err = slots.Add(rank, h, values(rank, 4, 5, 2), nil); err != nil {
			t.Fatal(err)
		}
	}
	if !done || sum.Rated || sum.Policy != wire.Sync {
		t.Errorf("done %v, %+v", done, sum)
	}
	sum.Buffer.Release()
}
