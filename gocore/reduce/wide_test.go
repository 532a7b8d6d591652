package reduce

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"fptps/gocore/wire"
)

// format describes a 16-bit float for the reference, which looks values up in a list instead of handling bits.
type format struct {
	dtype    wire.DType
	fraction int // bits
	bias     int
	list     []float64 // values of the bit patterns 0, 1, 2, ...; the last is what Inf would be if it were a number
}

var formats = []format{newFormat(wire.Float16, 10, 15), newFormat(wire.BFloat16, 7, 127)}

func newFormat(d wire.DType, fraction, bias int) format {
	f := format{dtype: d, fraction: fraction, bias: bias}
	for bits := range f.inf() + 1 {
		exponent, significand := bits>>fraction, bits&(1<<fraction-1)
		if exponent == 0 {
			exponent = 1
		} else {
			significand += 1 << fraction
		}
		f.list = append(f.list, math.Ldexp(float64(significand), exponent-bias-fraction))
	}
	return f
}

func (f format) inf() int { return (2*f.bias + 1) << f.fraction }

// widened converts a 16-bit float to float32.
func (f format) widened(h uint16) float32 {
	sign, size := 1.0, int(h&0x7fff)
	if h>>15 != 0 {
		sign = -1
	}
	switch {
	case size > f.inf():
		return float32(math.NaN())
	case size == f.inf():
		return float32(math.Inf(int(sign)))
	}
	return float32(math.Copysign(f.list[size], sign))
}

// narrowed returns the nearest value of the list; of two equally near ones, the one with the even bit pattern.
func (f format) narrowed(v float32) uint16 {
	var sign uint16
	if math.Signbit(float64(v)) {
		sign = 0x8000
	}
	x := math.Abs(float64(v))
	above := sort.SearchFloat64s(f.list, x)
	switch {
	case x != x:
		return sign | uint16(f.inf()) | 1<<(f.fraction-1)
	case above == len(f.list):
		return sign | uint16(f.inf())
	case above == 0:
		return sign
	}
	below := above - 1
	down, up := x-f.list[below], f.list[above]-x
	if down < up || down == up && below%2 == 0 {
		return sign | uint16(below)
	}
	return sign | uint16(above)
}

// checkNarrow compares a narrowed float with the reference. A NaN must be quiet and keep its sign.
func (f format) checkNarrow(t *testing.T, v float32, got uint16) {
	t.Helper()
	want := f.narrowed(v)
	if v != v {
		payload := uint16(1)<<(f.fraction-1) - 1
		got, want = got&^payload, want&^payload
	}
	if got != want {
		t.Fatalf("%v: %v (%#x) becomes %#x, want %#x", f.dtype, v, math.Float32bits(v), got, want)
	}
}

// checkAll narrows all floats in one call and checks each.
func (f format) checkAll(t *testing.T, all []float32) {
	t.Helper()
	acc, dst := make([]byte, 4*len(all)), make([]byte, 2*len(all))
	for i, v := range all {
		le.PutUint32(acc[4*i:], math.Float32bits(v))
	}
	Narrow(f.dtype, dst, acc)
	for i, v := range all {
		f.checkNarrow(t, v, le.Uint16(dst[2*i:]))
	}
}

func sameFloat(got, want float32) bool {
	return math.Float32bits(got) == math.Float32bits(want) || got != got && want != want
}

func quietOrNumber(v float32) bool { return v == v || math.Float32bits(v)&0x400000 != 0 }

func TestWidenEveryValue(t *testing.T) {
	src, acc := make([]byte, 2<<16), make([]byte, 4<<16)
	for h := range 1 << 16 {
		le.PutUint16(src[2*h:], uint16(h))
	}
	withEachKernelSet(t, func(t *testing.T) {
		for _, f := range formats {
			Widen(f.dtype, acc, src)
			for h := range 1 << 16 {
				got, want := f32(acc[4*h:]), f.widened(uint16(h))
				if !sameFloat(got, want) || want != want && math.Signbit(float64(got)) != (h>>15 != 0) {
					t.Fatalf("%v: %#x becomes %v, want %v", f.dtype, h, got, want)
				}
				// A bfloat16's NaN may wait until it is added to or narrowed.
				if f.dtype == wire.Float16 && !quietOrNumber(got) {
					t.Fatalf("%#x becomes a NaN that is not quiet", h)
				}
			}
			clear(acc)
			AddWide(f.dtype, acc, src)
			for h := range 1 << 16 {
				got, want := f32(acc[4*h:]), 0+f.widened(uint16(h))
				if !sameFloat(got, want) || !quietOrNumber(got) {
					t.Fatalf("%v: 0 + %#x is %v, want %v", f.dtype, h, got, want)
				}
			}
		}
	})
}

// Narrow around every value, around the midpoint of every two neighbours, and around the first value that becomes Inf.
func TestNarrowTies(t *testing.T) {
	withEachKernelSet(t, func(t *testing.T) {
		for _, f := range formats {
			var all []float32
			for i, x := range f.list[1:] {
				for _, v := range []float32{float32(x), float32((x + f.list[i]) / 2)} {
					below, above := math.Nextafter32(v, 0), math.Nextafter32(v, 2*v+1)
					all = append(all, v, -v, below, -below, above, -above)
				}
			}
			f.checkAll(t, all)
		}
	})
}

// An odd step through all bit patterns covers all signs and exponents, NaN included, each with many fractions.
func TestNarrowSweep(t *testing.T) {
	withEachKernelSet(t, func(t *testing.T) {
		for _, f := range formats {
			var all []float32
			for bits := uint64(0); bits < 1<<32; bits += 4099 {
				all = append(all, math.Float32frombits(uint32(bits)))
			}
			for _, bits := range []uint32{0x7f800000, 0x7f800001, 0x7fbfffff, 0x7fffffff, 0xff800000, 0xff800001, 0xffffffff, 0x80000000} {
				all = append(all, slices.Repeat([]float32{math.Float32frombits(bits)}, 19)...)
			}
			f.checkAll(t, all)
		}
	})
}

func TestWideAtAnyLengthAndAddress(t *testing.T) {
	halves := integer(2)
	withEachKernelSet(t, func(t *testing.T) {
		for _, f := range formats {
			sweep(uint64(f.dtype), func(r *rand.Rand, n, accOffset, offset int) {
				first, second := drawn(r, halves, n), drawn(r, halves, n)
				acc, accUnharmed := place(t, make([]byte, 4*n), accOffset)
				src, _ := place(t, first, offset)
				more, _ := place(t, second, offset)
				narrow, unharmed := place(t, make([]byte, 2*n), offset)

				Widen(f.dtype, acc, src)
				AddWide(f.dtype, acc, more)
				Narrow(f.dtype, narrow, acc)
				accUnharmed()
				unharmed()
				inPlace := slices.Clone(acc)
				placed, unharmed := place(t, inPlace, accOffset)
				Narrow(f.dtype, placed[:2*n], placed)
				unharmed()

				for i := range n {
					x, y := f.widened(le.Uint16(first[2*i:])), f.widened(le.Uint16(second[2*i:]))
					got, want := f32(acc[4*i:]), float32(float64(x)+float64(y))
					if !sameFloat(got, want) || !quietOrNumber(got) {
						t.Fatalf("%v: element %d of %d: %v + %v = %v, want %v", f.dtype, i, n, x, y, got, want)
					}
					f.checkNarrow(t, got, le.Uint16(narrow[2*i:]))
					f.checkNarrow(t, got, le.Uint16(placed[2*i:]))
				}
			})
		}
	})
}

// Why the accumulator is float32: a partial sum may overflow a half although the sum does not, and values too small for a half
// may add up.
func TestHalvesAreSummedInFloat32(t *testing.T) {
	const big, minusBig, one, small, inf = 0x7b53, 0xfb53, 0x3c00, 0x1000, 0x7c00 // 60000, -60000, 1, 2^-11, Inf
	withEachKernelSet(t, func(t *testing.T) {
		for _, c := range []struct {
			terms []uint16
			want  uint16
		}{
			{[]uint16{big, big}, inf},
			{[]uint16{big, big, minusBig}, big},
			{[]uint16{one, small, small}, one + 1}, // 2048 + 1 + 1 in units of the last place of 1/2
		} {
			const n = 21
			acc := make([]byte, 4*n)
			for i, term := range c.terms {
				src := make([]byte, 2*n)
				for j := range n {
					le.PutUint16(src[2*j:], term)
				}
				if i == 0 {
					Widen(wire.Float16, acc, src)
				} else {
					AddWide(wire.Float16, acc, src)
				}
			}
			Narrow(wire.Float16, acc[:2*n], acc)
			for j := range n {
				if got := le.Uint16(acc[2*j:]); got != c.want {
					t.Fatalf("element %d: the sum of %#x is %#x, want %#x", j, c.terms, got, c.want)
				}
			}
		}
	})
}
