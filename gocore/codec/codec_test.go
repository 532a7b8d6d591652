package codec

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"fptps/gocore/wire"
)

// dumbDecode is the reference for Decode: it reads the block as one binary number, bit by bit.
func dumbDecode(bits int, block []byte) []float64 {
	step := math.Float32frombits(binary.NativeEndian.Uint32(block))
	var digits []int
	for _, b := range block[8:] {
		for i := range 8 {
			digits = append(digits, int(b>>i)&1)
		}
	}
	var values []float64
	for ; len(digits) >= bits; digits = digits[bits:] {
		code := 0
		for i := bits - 1; i >= 0; i-- {
			code = 2*code + digits[i]
		}
		values = append(values, float64(float32(code-(1<<(bits-1)-1))*step))
	}
	return values
}

func eachWidth(t *testing.T, f func(t *testing.T, bits int, r *rand.Rand)) {
	for bits := wire.MinBits; bits <= wire.MaxBits; bits++ {
		t.Run(fmt.Sprint(bits), func(t *testing.T) { f(t, bits, rand.New(rand.NewPCG(uint64(bits), 1))) })
	}
}

func normal(r *rand.Rand, n int, scale float64) []float32 {
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(r.NormFloat64() * scale)
	}
	return values
}

func encoded(bits int, values []float32, stated float32, seed uint64) []byte {
	blocks := make([]byte, Bytes(bits, len(values)))
	for i := range blocks {
		blocks[i] = 0xa5 // the old content must not matter
	}
	Encode(blocks, bits, values, stated, rand.NewPCG(seed, 0))
	return blocks
}

func decoded(bits, n int, blocks []byte) []float32 {
	values := make([]float32, n)
	Decode(values, bits, blocks)
	return values
}

func TestValuesAreRoundedToANeighbour(t *testing.T) {
	eachWidth(t, func(t *testing.T, bits int, r *rand.Rand) {
		for _, n := range []int{1, Values(bits) - 1, Values(bits), Values(bits) + 1, 3*Values(bits) + 7} {
			for _, stated := range []float32{0, 1.5} {
				values := normal(r, n, 1)
				before := slices.Clone(values)
				blocks := encoded(bits, values, stated, r.Uint64())
				if !slices.Equal(values, before) {
					t.Fatal("the input was changed")
				}
				got := decoded(bits, n, blocks)
				for i, v := range values {
					block := values[i/Values(bits)*Values(bits) : min(n, (i/Values(bits)+1)*Values(bits))]
					limit := stated
					if stated == 0 {
						for _, w := range block {
							limit = max(limit, float32(math.Abs(float64(w))))
						}
					}
					wanted := float64(max(-limit, min(limit, v)))
					step := float64(limit) / float64(Levels(bits))
					if math.Abs(float64(got[i])-wanted) > step*1.0001 || math.Abs(float64(got[i])) > float64(limit)*1.000001 {
						t.Fatalf("value %d of %d, range %v: %v became %v, step %v", i, n, stated, v, got[i], step)
					}
				}
			}
		}
	})
}

func TestDecodeEqualsReference(t *testing.T) {
	eachWidth(t, func(t *testing.T, bits int, r *rand.Rand) {
		blocks := make([]byte, 3*wire.BlockBytes)
		for i := range blocks {
			blocks[i] = byte(r.Uint32())
		}
		got := decoded(bits, 3*Values(bits), blocks)
		for b := range 3 {
			for i, want := range dumbDecode(bits, blocks[b*wire.BlockBytes:][:wire.BlockBytes])[:Values(bits)] {
				value := float64(got[b*Values(bits)+i])
				if value != want && !(math.IsNaN(value) && math.IsNaN(want)) {
					t.Fatalf("block %d, value %d: %v, want %v", b, i, value, want)
				}
			}
		}
	})
}

// Each value is rounded many times; the mean must be within 5 standard errors of the value.
func TestRoundingHasNoBias(t *testing.T) {
	const times = 4000
	for _, bits := range []int{2, 3, 8, 16} {
		for _, stated := range []float32{0, 2} {
			values := []float32{-1, -0.77, -0.5, -1e-3, 0, 1e-5, 0.1, 0.33, 0.5, 0.99, 1}
			step := 1 / float64(Levels(bits))
			if stated > 0 {
				step *= float64(stated)
			}
			sums := make([]float64, len(values))
			for seed := range uint64(times) {
				for i, v := range decoded(bits, len(values), encoded(bits, values, stated, seed)) {
					sums[i] += float64(v)
				}
			}
			for i, v := range values {
				_, fraction := math.Modf(math.Abs(float64(v)) / step)
				tolerance := 5*step*math.Sqrt(fraction*(1-fraction)/times) + 1e-6
				if off := sums[i]/times - float64(v); math.Abs(off) > tolerance {
					t.Errorf("%d bits, range %v: the mean of %v is off by %g, tolerance %g", bits, stated, v, off, tolerance)
				}
			}
		}
	}
}

func TestMultiplesOfTheStepAreExact(t *testing.T) {
	eachWidth(t, func(t *testing.T, bits int, r *rand.Rand) {
		values := make([]float32, 0, 2*Values(bits))
		for len(values) < cap(values) {
			code := r.IntN(2*Levels(bits)+1) - Levels(bits)
			if len(values)%Values(bits) == 0 {
				code = Levels(bits) // so that the block's range is known
			}
			values = append(values, float32(code)*0.25)
		}
		for _, stated := range []float32{0, 0.25 * float32(Levels(bits))} {
			if got := decoded(bits, len(values), encoded(bits, values, stated, 7)); !slices.Equal(got, values) {
				t.Errorf("range %v: values on the grid have changed", stated)
			}
		}
	})
}

func TestZerosInfAndNaN(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	eachWidth(t, func(t *testing.T, bits int, _ *rand.Rand) {
		for _, stated := range []float32{0, 1} {
			zeros := make([]float32, Values(bits)+1)
			for _, v := range decoded(bits, len(zeros), encoded(bits, zeros, stated, 3)) {
				if math.Float32bits(v) != 0 {
					t.Fatalf("range %v: a zero became %v", stated, v)
				}
			}
			for _, bad := range []float32{nan, inf, -inf} {
				values := make([]float32, 2*Values(bits))
				values[1], values[Values(bits)] = bad, 1
				blocks := encoded(bits, values, stated, 3)
				for i, v := range decoded(bits, len(values), blocks) {
					if isNaN := v != v; isNaN != (i < Values(bits)) {
						t.Fatalf("range %v, %v in the first block: value %d is %v", stated, bad, i, v)
					}
				}
				binary.NativeEndian.PutUint32(blocks, math.Float32bits(1))
				for i, v := range decoded(bits, Values(bits), blocks) {
					if math.Abs(float64(v)) > float64(Levels(bits)) {
						t.Fatalf("range %v, %v in the block: code %d is %v", stated, bad, i, v)
					}
				}
			}
		}
		tiny := []float32{math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32}
		for _, v := range decoded(bits, 2, encoded(bits, tiny, 0, 3)) {
			if math.Abs(float64(v)) > math.SmallestNonzeroFloat32 {
				t.Errorf("the smallest value became %v", v)
			}
		}
	})
}

// Neighbours need independent random numbers: with a common one, the errors of a sum of neighbours would add up.
func TestNeighboursAreRoundedIndependently(t *testing.T) {
	eachWidth(t, func(t *testing.T, bits int, _ *rand.Rand) {
		values := slices.Repeat([]float32{0.5}, Values(bits)/2*2)
		pairs, alike := 0, 0
		for seed := range uint64(4000 / len(values) * 2) {
			got := decoded(bits, len(values), encoded(bits, values, float32(Levels(bits)), seed))
			for i := 0; i < len(got)-1; i++ {
				pairs++
				if got[i] == got[i+1] {
					alike++
				}
			}
		}
		if share := float64(alike) / float64(pairs); math.Abs(share-0.5) > 5*0.5/math.Sqrt(float64(pairs)) {
			t.Errorf("%.3f of %d neighbours of 0.5 were rounded alike", share, pairs)
		}
	})
}

// A partly filled block is padded with zeros, which are summed like values.
func TestPartialBlockIsPaddedWithZeros(t *testing.T) {
	eachWidth(t, func(t *testing.T, bits int, _ *rand.Rand) {
		for _, v := range decoded(bits, Values(bits), encoded(bits, []float32{3, -4}, 0, 1))[2:] {
			if math.Float32bits(v) != 0 {
				t.Fatalf("after the last value there is %v", v)
			}
		}
	})
}

func TestOldContentDoesNotMatter(t *testing.T) {
	eachWidth(t, func(t *testing.T, bits int, r *rand.Rand) {
		values := normal(r, Values(bits)+1, 1)
		clean := make([]byte, Bytes(bits, len(values)))
		Encode(clean, bits, values, 0, rand.NewPCG(7, 0))
		if !bytes.Equal(clean, encoded(bits, values, 0, 7)) {
			t.Error("the bytes depend on what was in their place")
		}
	})
}

func TestSameSeedSameCodes(t *testing.T) {
	values := normal(rand.New(rand.NewPCG(1, 2)), 2000, 1)
	if !bytes.Equal(encoded(8, values, 0, 5), encoded(8, values, 0, 5)) {
		t.Error("the same seed gave other codes")
	}
	if bytes.Equal(encoded(8, values, 0, 5), encoded(8, values, 0, 6)) {
		t.Error("another seed gave the same codes")
	}
}

// A peer may send any bytes: decoding and summing accept all of them.
func FuzzAnyBytes(f *testing.F) {
	f.Add(8, encoded(8, []float32{1, 2, 3}, 0, 1))
	f.Add(2, bytes.Repeat([]byte{0xff}, 2*wire.BlockBytes))
	f.Fuzz(func(t *testing.T, bits int, blocks []byte) {
		if bits < wire.MinBits || bits > wire.MaxBits {
			return
		}
		n := len(blocks) / wire.BlockBytes
		blocks = blocks[:n*wire.BlockBytes]
		acc := make([]float32, n*AccFloats(bits))
		Widen(bits, acc, blocks)
		Add(bits, acc, blocks)
		Narrow(bits, blocks, acc, rand.NewPCG(1, 2))
		Decode(make([]float32, n*Values(bits)), bits, blocks)
	})
}

func BenchmarkEncode(b *testing.B) {
	values := normal(rand.New(rand.NewPCG(1, 2)), 100_000, 1)
	blocks := make([]byte, Bytes(8, len(values)))
	random := rand.NewPCG(1, 2)
	b.SetBytes(int64(4 * len(values)))
	for b.Loop() {
		Encode(blocks, 8, values, 0, random)
	}
}

func BenchmarkDecode(b *testing.B) {
	values := normal(rand.New(rand.NewPCG(1, 2)), 100_000, 1)
	blocks := encoded(8, values, 0, 1)
	b.SetBytes(int64(4 * len(values)))
	for b.Loop() {
		Decode(values, 8, blocks)
	}
}

// Whatever is drawn, a decoded code becomes itself: a value of a single worker comes back unchanged.
func TestDecodedCodesAreExact(t *testing.T) {
	eachWidth(t, func(t *testing.T, bits int, r *rand.Rand) {
		levels := Levels(bits)
		for range 200 {
			step := float32(math.Abs(r.NormFloat64())+1e-3) / float32(levels)
			inverse := 1 / float64(step)
			c := r.IntN(2*levels+1) - levels
			for _, drawn := range []uint32{0, math.MaxUint32} {
				if got := code(float32(c)*step, inverse, levels, drawn); got != uint64(c+levels) {
					t.Fatalf("step %g: code %d becomes %d where %d is drawn", step, c, int(got)-levels, drawn)
				}
			}
		}
	})
}
