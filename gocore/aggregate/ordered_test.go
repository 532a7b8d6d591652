package aggregate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"fptps/gocore/codec"
	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// offered is one rank's contribution to a packet; a nil payload is an EMPTY.
type offered struct {
	header  wire.Header
	payload []byte
}

// sumByRank is the simple version of an ordered sum: all contributions are kept, and added in the order of ranks.
func sumByRank(all []offered, first *wire.Header) []byte {
	d, rows := first.DType, first.Codec == wire.CodecRows
	var acc []byte
	for _, c := range all {
		if c.payload == nil {
			continue
		}
		if rows && acc == nil {
			acc = make([]byte, reduce.AccBytes(d, wire.PacketBytes))
		}
		switch {
		case rows:
			if err := c.header.EachRow(c.payload, func(at int, elements []byte) { AddAt(d, acc, at, elements) }); err != nil {
				panic(err)
			}
		case acc != nil && reduce.Wide(d):
			reduce.AddWide(d, acc, c.payload)
		case acc != nil:
			reduce.Add(d, acc, c.payload)
		case reduce.Wide(d):
			acc = make([]byte, reduce.AccBytes(d, len(c.payload)))
			reduce.Widen(d, acc, c.payload)
		default:
			acc = slices.Clone(c.payload)
		}
	}
	if acc == nil {
		return nil
	}
	scaled, raw := d, len(acc)
	if reduce.Wide(d) {
		scaled = wire.Float32
	}
	if first.Op == wire.OpMean {
		reduce.Divide(scaled, acc, len(all))
	}
	if reduce.Wide(d) {
		if raw = wire.PacketBytes; !rows {
			raw = int(first.RawLen)
		}
		reduce.NarrowRepeatably(d, acc[:raw], acc, first.Round<<32|uint64(first.Packet))
	}
	return acc[:raw]
}

// awkward is elements whose sum depends on the order: of several magnitudes, with zeros of both signs, and NaNs of
// several bit patterns.
func awkward(rng *rand.Rand, d wire.DType, elements int) []byte {
	if bits := d.Bits(); bits > 0 {
		floats := make([]float32, elements*codec.Values(bits))
		for i := range floats {
			floats[i] = float32(rng.NormFloat64() * math.Exp(6*rng.Float64()))
		}
		blocks := make([]byte, elements*wire.BlockBytes)
		codec.Encode(blocks, bits, floats, 0, rand.NewPCG(rng.Uint64(), 0))
		return blocks
	}
	b := make([]byte, elements*d.Size())
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	special := []float32{0, float32(math.Copysign(0, -1)), math.Float32frombits(0x7fc00001 + rng.Uint32N(1000)), float32(math.Inf(1))}
	const large = 1 << 15 // a half has it too; two of opposite signs cancel out, and what was added in between is lost
	for i := range elements {
		v := float32(rng.NormFloat64() * math.Exp(12*rng.Float64()-9))
		switch rng.IntN(8) {
		case 0:
			v = special[rng.IntN(len(special))]
		case 1:
			v = large
		case 2:
			v = -large
		}
		wide := binary.LittleEndian.AppendUint32(nil, math.Float32bits(v))
		switch {
		case d == wire.Float32 || d == wire.Complex64:
			copy(b[i*d.Size():], wide)
		case d == wire.Float64 || d == wire.Complex128:
			binary.LittleEndian.PutUint64(b[i*d.Size():], math.Float64bits(float64(v)))
		case d == wire.Float16 || d == wire.BFloat16:
			reduce.Narrow(d, b[2*i:][:2], wide)
		case d == wire.Timedelta64 && rng.IntN(4) == 0: // two of them wrap around to NaT
			binary.LittleEndian.PutUint64(b[8*i:], 1<<62)
		}
	}
	return b
}

// offers makes the contributions of all ranks to a round of packet 3.
func offers(rng *rand.Rand, d wire.DType, rows bool, workers int, round uint64) []offered {
	first := wire.Header{Kind: wire.Contrib, DType: d, Packet: 3, Run: 1, Round: round, Policy: wire.Ordered}
	if reduce.CanDivide(d) && rng.IntN(2) == 0 {
		first.Op = wire.OpMean
	}
	elements := 1 + rng.IntN(min(100, wire.PacketBytes/d.Size()))
	row := d.Size() * (1 + rng.IntN(3))
	all := make([]offered, workers)
	for rank := range all {
		c := offered{header: first}
		var numbers []byte
		if rows {
			c.header.Codec, elements = wire.CodecRows, 0
			for n := rng.IntN(4); n < 20; n += 1 + rng.IntN(6) {
				numbers = wire.AppendRow(numbers, n)
				elements += row / d.Size()
			}
		}
		c.payload = append(awkward(rng, d, elements), numbers...)
		c.header.RawLen, c.header.WireLen = uint32(elements*d.Size()), uint32(len(c.payload))
		switch rng.IntN(5) {
		case 0:
			c.payload = nil
			c.header.Kind, c.header.WireLen, c.header.Op = wire.Empty, 0, wire.OpSum
			if rows {
				c.header.RawLen = wire.PacketBytes
			}
		case 1:
			if !rows && round == 0 { // which counts as an EMPTY there
				clear(c.payload)
			}
		}
		all[rank] = c
	}
	return all
}

// contribute offers one rank's contribution, in the pool's memory or in memory that is overwritten as soon as Add permits it.
func contribute(t *testing.T, slots *Slots, rank int, c offered, pooled bool) (sum Sum, done bool) {
	t.Helper()
	if c.payload == nil {
		sums, err := slots.AddEmpty(rank, &c.header, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(sums) == 1 {
			return sums[0], true
		}
		return Sum{}, false
	}
	payload := slices.Clone(c.payload)
	var owned *Buffer
	if pooled {
		owned = slots.pool.Get(len(payload))
		copy(owned.Bytes, payload)
		payload = owned.Bytes
	}
	sum, done, err := slots.Add(rank, &c.header, payload, owned)
	if err != nil {
		t.Fatal(err)
	}
	if owned == nil && c.header.Round == 0 {
		for i := range payload {
			payload[i] = 0xee
		}
	}
	return sum, done
}

// playRound lets all ranks contribute in a random order, some of them twice, and returns the sum's bits.
func playRound(t *testing.T, rng *rand.Rand, slots *Slots, all []offered) []byte {
	t.Helper()
	order := rng.Perm(len(all))
	for i, rank := range order {
		for range 1 + rng.IntN(2) {
			sum, done := contribute(t, slots, rank, all[rank], rng.IntN(2) == 0)
			if lent := slots.pool.Lent(); lent > max(len(all), 1) {
				t.Errorf("%d buffers for a packet of %d workers", lent, len(all))
			}
			if done != (i == len(all)-1) {
				t.Fatalf("%d of %d contributions: done is %v", i+1, len(all), done)
			}
			if !done {
				continue
			}
			if slots.pool.Lent() > 1 {
				t.Errorf("%d buffers are lent beside the sum", slots.pool.Lent()-1)
			}
			if sum.Policy.Applied() != sum.Policy {
				t.Errorf("the sum is to be applied as %v", sum.Policy)
			}
			if sum.Buffer == nil {
				return nil
			}
			defer sum.Buffer.Release()
			return slices.Clone(sum.Buffer.Bytes)
		}
	}
	return nil
}

// TestOrderedSums: contributions of every element type, dense and by row, give the bits of the sum in the order of ranks,
// whatever the order of their arrival.
func TestOrderedSums(t *testing.T) {
	dtypes := slices.DeleteFunc(wire.DTypes(), func(d wire.DType) bool { return !reduce.Supported(d) })
	for _, d := range append(dtypes, wire.Quant(2), wire.Quant(5), wire.Quant(8)) {
		for _, rows := range []bool{false, true} {
			if rows && d.Bits() > 0 {
				continue
			}
			t.Run(fmt.Sprintf("%v rows %v", d, rows), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(uint64(d), 5))
				for range 40 {
					workers := 1 + rng.IntN(6)
					slots := NewSlots(NewMembers(workers), NewPool(), time.Time{})
					for round := range uint64(3) {
						all := offers(rng, d, rows, workers, round)
						if want, got := wanted(all), playRound(t, rng, slots, all); !bytes.Equal(got, want) {
							t.Fatalf("%d workers, round %d: the sum is\n%x, in the order of ranks\n%x", workers, round, got, want)
						}
					}
				}
			})
		}
	}
}

// wanted is the sum of contributions, in which zeros in round 0 are as an EMPTY.
func wanted(all []offered) []byte {
	first := all[0].header
	known := slices.Clone(all)
	for i, c := range all {
		if c.payload != nil {
			first = c.header
		}
		if c.payload != nil && c.header.Codec == wire.CodecPlain && isInitialZeros(&c.header, c.payload) {
			known[i].payload = nil
		}
	}
	return sumByRank(known, &first)
}

// TestSumsAreNotOrderedByThemselves: without the policy Ordered the bits depend on the order of arrival, so that
// TestOrderedSums can fail.
func TestSumsAreNotOrderedByThemselves(t *testing.T) {
	for _, d := range []wire.DType{wire.Float32, wire.Float64, wire.Float16, wire.BFloat16, wire.Quant(8), wire.Timedelta64} {
		rng := rand.New(rand.NewPCG(uint64(d), 6))
		differ := 0
		for range 40 {
			slots := NewSlots(NewMembers(5), NewPool(), time.Time{})
			all := offers(rng, d, false, 5, 1)
			for i := range all {
				all[i].header.Policy = wire.Sync
			}
			if !bytes.Equal(playRound(t, rng, slots, all), wanted(all)) {
				differ++
			}
		}
		if differ == 0 {
			t.Errorf("%v: all sums have the bits of an ordered sum", d)
		}
	}
}

// TestHeldBuffers: a contribution takes a buffer for as long as a lower rank is missing, and no longer. Sums of integers
// hold none, and neither do contributions outside of the pool.
func TestHeldBuffers(t *testing.T) {
	for _, c := range []struct {
		dtype  wire.DType
		pooled bool
		lent   [4]int // buffers after the contribution of rank 2, 1, 3 and 0
	}{
		{wire.Float32, true, [4]int{1, 2, 3, 1}},
		{wire.Float32, false, [4]int{0, 0, 0, 1}},
		{wire.Float16, true, [4]int{1, 2, 3, 1}},
		{wire.Int32, true, [4]int{1, 1, 1, 1}},
	} {
		slots := NewSlots(NewMembers(4), NewPool(), time.Time{})
		for i, rank := range []int{2, 1, 3, 0} {
			size := uint32(c.dtype.Size())
			h := wire.Header{Kind: wire.Contrib, DType: c.dtype, Run: 1, Round: 1, RawLen: size, WireLen: size, Policy: wire.Ordered}
			sum, done := contribute(t, slots, rank, offered{h, make([]byte, size)}, c.pooled)
			if got := slots.pool.Lent(); got != c.lent[i] {
				t.Errorf("%v, pooled %v: %d buffers after %d contributions, expected %d", c.dtype, c.pooled, got, i+1, c.lent[i])
			}
			if done {
				sum.Buffer.Release()
			}
		}
	}
}

// TestNoAllocationPerOrderedPacket: the slots' lists of held contributions are used again.
func TestNoAllocationPerOrderedPacket(t *testing.T) {
	pool := NewPool()
	slots := NewSlots(NewMembers(3), pool, time.Time{})
	h := wire.Header{Kind: wire.Contrib, DType: wire.Float32, Run: 1, RawLen: 4, WireLen: 4, Policy: wire.Ordered}
	if n := testing.AllocsPerRun(1000, func() {
		h.Round++
		for rank := 2; rank >= 0; rank-- {
			b := pool.Get(4)
			if sum, done, _ := slots.Add(rank, &h, b.Bytes, b); done {
				sum.Buffer.Release()
			}
		}
	}); n > 0 {
		t.Errorf("%v allocations per packet", n)
	}
}
