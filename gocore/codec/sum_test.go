package codec

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"fptps/gocore/wire"
)

// The sum of blocks is within one step of the sum of the decoded blocks. A stated range fixes the step of the sum.
func TestSumOfBlocks(t *testing.T) {
	const workers = 3
	eachWidth(t, func(t *testing.T, bits int, r *rand.Rand) {
		for _, stated := range []float32{0, 0.5} {
			n := 2 * Values(bits)
			acc := make([]float32, 2*AccFloats(bits))
			wanted := make([]float64, n)
			var blocks []byte
			for worker := range workers {
				blocks = encoded(bits, normal(r, n, 1), stated, r.Uint64())
				for i, v := range decoded(bits, n, blocks) {
					wanted[i] += float64(v)
				}
				if worker == 0 {
					acc[3] = 99 // Widen must overwrite it
					Widen(bits, acc, blocks)
				} else {
					Add(bits, acc, blocks)
				}
			}
			Narrow(bits, blocks, acc, rand.NewPCG(r.Uint64(), 0))
			got := decoded(bits, n, blocks)
			for b := range 2 {
				if got := statedRange(blocks[b*wire.BlockBytes:]); got != workers*stated {
					t.Fatalf("range %v: the range of the sum is %v", stated, got)
				}
				values := wanted[b*Values(bits):][:Values(bits)]
				limit := float64(workers * stated)
				if stated == 0 {
					for _, v := range values {
						limit = max(limit, math.Abs(v))
					}
				}
				step := limit / float64(Levels(bits))
				for i, v := range values {
					if off := math.Abs(float64(got[b*Values(bits)+i]) - v); off > 1.001*step {
						t.Fatalf("range %v, block %d, value %d: off by %g, step %g", stated, b, i, off, step)
					}
				}
			}
		}
	})
}

func statedRange(block []byte) float32 {
	return math.Float32frombits(binary.NativeEndian.Uint32(block[4:]))
}

// The same sum is quantised many times; the mean must be within 5 standard errors of the sum.
func TestASumIsRoundedWithoutBias(t *testing.T) {
	const times = 4000
	for _, stated := range []float32{0, 2} {
		acc := make([]float32, AccFloats(4))
		Widen(4, acc, encoded(4, []float32{-1, 0.35, 0.5, 1}, stated, 1))
		for i := range acc[1:] {
			acc[1+i] *= 0.77 // no multiple of the step
		}
		acc[4] = 1 // the largest magnitude, thus the range
		limit := max(stated, 1)
		step := float64(limit) / float64(Levels(4))
		var sums [3]float64
		block, random := make([]byte, wire.BlockBytes), rand.NewPCG(1, 2)
		for range times {
			Narrow(4, block, acc, random)
			for i, v := range decoded(4, 3, block) {
				sums[i] += float64(v)
			}
		}
		for i, sum := range sums {
			v := float64(acc[1+i])
			_, fraction := math.Modf(math.Abs(v) / step)
			tolerance := 5*step*math.Sqrt(fraction*(1-fraction)/times) + 1e-6
			if off := sum/times - v; math.Abs(off) > tolerance {
				t.Errorf("range %v: the mean of %v is off by %g, tolerance %g", stated, v, off, tolerance)
			}
		}
	}
}

// A peer may state any range; an invalid one is ignored.
func TestInvalidRangeIsIgnored(t *testing.T) {
	for _, stated := range []float32{-3, float32(math.NaN()), float32(math.Inf(-1))} {
		block := encoded(8, []float32{1, -0.5}, 0, 1)
		binary.NativeEndian.PutUint32(block[4:], math.Float32bits(stated))
		acc := make([]float32, AccFloats(8))
		Widen(8, acc, block)
		Narrow(8, block, acc, rand.NewPCG(1, 2))
		if got := decoded(8, 2, block); got[0] != 1 || math.Abs(float64(got[1])+0.5) > 1./127 {
			t.Errorf("range %v: the sum is %v", stated, got)
		}
		if got := statedRange(block); got != 0 && got == got {
			t.Errorf("range %v: the range of the sum is %v", stated, got)
		}
	}
}

// Narrow may overwrite the accumulator that it reads.
func TestNarrowInPlace(t *testing.T) {
	eachWidth(t, func(t *testing.T, bits int, r *rand.Rand) {
		const count = 5
		n := count * Values(bits)
		grid := make([]float32, 0, n)
		for range n {
			grid = append(grid, float32(r.IntN(2*Levels(bits)+1)-Levels(bits)))
		}
		blocks := encoded(bits, grid, float32(Levels(bits)), 1)
		acc := make([]float32, count*AccFloats(bits))
		Widen(bits, acc, blocks)
		front := unsafe.Slice((*byte)(unsafe.Pointer(&acc[0])), len(blocks))
		Narrow(bits, front, acc, rand.NewPCG(r.Uint64(), 0))
		for i, v := range decoded(bits, n, front) {
			if v != grid[i] {
				t.Fatalf("value %d is %v, want %v", i, v, grid[i])
			}
		}
	})
}

func TestOneNaNWorkerMakesTheSumNaN(t *testing.T) {
	acc := make([]float32, AccFloats(8))
	Widen(8, acc, encoded(8, []float32{1, float32(math.NaN())}, 1, 1))
	Add(8, acc, encoded(8, []float32{1, 1}, 1, 1))
	blocks := encoded(8, []float32{0}, 0, 1)
	Narrow(8, blocks, acc, rand.NewPCG(1, 2))
	if got := decoded(8, 1, blocks)[0]; got == got {
		t.Errorf("the sum is %v", got)
	}
}
