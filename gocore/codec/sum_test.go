package codec

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// A sum of blocks against the sum of what they decode to: within a step of the sum's own grid, which a stated range fixes.
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
					acc[3] = 99 // Widen sets, whatever was there
					Widen(bits, acc, blocks)
				} else {
					Add(bits, acc, blocks)
				}
			}
			Narrow(bits, blocks, acc)
			got := decoded(bits, n, blocks)
			for b := range 2 {
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

// Narrow may write over the accumulator that it reads.
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
		Narrow(bits, front, acc)
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
	Narrow(8, blocks, acc)
	if got := decoded(8, 1, blocks)[0]; got == got {
		t.Errorf("the sum is %v", got)
	}
}
