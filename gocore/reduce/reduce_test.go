package reduce

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"fptps/gocore/codec"
	"fptps/gocore/wire"
)

func TestAddEqualsModel(t *testing.T) {
	withEachKernelSet(t, func(t *testing.T) {
		for d, m := range models {
			sweep(uint64(d), func(r *rand.Rand, n, dstOffset, srcOffset int) {
				size := n * d.Size()
				a, b := drawn(r, m, size/m.part), drawn(r, m, size/m.part)
				dst, unharmed := place(t, a, dstOffset)
				src, srcUnharmed := place(t, b, srcOffset)
				Add(d, dst, src)
				unharmed()
				srcUnharmed()
				if !bytes.Equal(src, b) {
					t.Fatalf("%v: Add wrote to src", d)
				}
				for i := 0; i < size; i += m.part {
					x, y, got := a[i:i+m.part], b[i:i+m.part], dst[i:i+m.part]
					if want := m.sum(x, y); !same(m, got, want) {
						t.Fatalf("%v: byte %d of %d: %x + %x = %x, want %x", d, i, size, x, y, got, want)
					}
				}
			})
		}
	})
}

func TestDivideEqualsModel(t *testing.T) {
	divisors := []int{1, 2, 3, 7, 10, 100, 1023, 1 << 40}
	withEachKernelSet(t, func(t *testing.T) {
		for d, m := range models {
			if m.quotient == nil {
				continue
			}
			sweep(uint64(d), func(r *rand.Rand, n, offset, _ int) {
				size, by := n*d.Size(), divisors[r.IntN(len(divisors))]
				a := drawn(r, m, size/m.part)
				acc, unharmed := place(t, a, offset)
				Divide(d, acc, by)
				unharmed()
				for i := 0; i < size; i += m.part {
					x, got := a[i:i+m.part], acc[i:i+m.part]
					if want := m.quotient(x, by); !same(m, got, want) {
						t.Fatalf("%v: byte %d of %d: %x / %d = %x, want %x", d, i, size, x, by, got, want)
					}
				}
			})
		}
	})
}

// The mean of a wide type is computed in its accumulator.
func TestDivideOfWideTypeIsFloat32(t *testing.T) {
	withEachKernelSet(t, func(t *testing.T) {
		for _, d := range []wire.DType{wire.Float16, wire.BFloat16} {
			a := drawn(rand.New(rand.NewPCG(1, 1)), f32Model, 101)
			want := slices.Clone(a)
			Divide(d, a, 3)
			Divide(wire.Float32, want, 3)
			if !bytes.Equal(a, want) {
				t.Errorf("%v: Divide differs from Float32's", d)
			}
		}
	})
}

func TestOperationsOfEachType(t *testing.T) {
	wide := []wire.DType{wire.Float16, wire.BFloat16}
	means := append([]wire.DType{wire.Float32, wire.Float64, wire.Complex64, wire.Complex128}, wide...)
	x87 := []wire.DType{wire.LongDouble, wire.CLongDouble}
	withEachKernelSet(t, func(t *testing.T) {
		for _, d := range wire.DTypes() {
			if slices.Contains(x87, d) {
				if supported := Supported(d); supported && runtime.GOARCH != "amd64" || CanDivide(d) != supported {
					t.Errorf("%v: Supported is %v and CanDivide is %v", d, supported, CanDivide(d))
				}
				continue
			}
			if !Supported(d) {
				t.Errorf("%v is not supported", d)
			}
			if want := slices.Contains(wide, d); Wide(d) != want {
				t.Errorf("Wide(%v) is %v", d, !want)
			}
			if want := slices.Contains(means, d); CanDivide(d) != want {
				t.Errorf("CanDivide(%v) is %v", d, !want)
			}
			if want := d == wire.Float32 || d == wire.Float64; CanUpdate(d) != want {
				t.Errorf("CanUpdate(%v) is %v", d, !want)
			}
			want := 64 * d.Size()
			if slices.Contains(wide, d) {
				want = 64 * 4
			}
			if got := AccBytes(d, 64*d.Size()); got != want {
				t.Errorf("AccBytes of 64 elements of %v is %d, want %d", d, got, want)
			}
		}
		for bits := wire.MinBits; bits <= wire.MaxBits; bits++ {
			d := wire.Quant(bits)
			if !Supported(d) || !Wide(d) || !CanDivide(d) || AccBytes(d, 3*d.Size()) != 12*codec.AccFloats(bits) {
				t.Errorf("%v is not summed in float32", d)
			}
		}
		for _, d := range []wire.DType{0, wire.Quant(wire.MaxBits) + 1, 255} {
			if Supported(d) || Wide(d) || CanDivide(d) {
				t.Errorf("the unknown type %d is supported", d)
			}
		}
	})
}

func TestNothingAllocates(t *testing.T) {
	a, b := make([]byte, 1000*32), make([]byte, 1000*32)
	withEachKernelSet(t, func(t *testing.T) {
		for _, d := range wire.DTypes() {
			allocations := testing.AllocsPerRun(5, func() {
				if Wide(d) {
					Widen(d, a, b[:len(a)/2])
					AddWide(d, a, b[:len(a)/2])
					Narrow(d, a[:len(a)/2], a)
				} else if Supported(d) {
					Add(d, a, b)
				}
				if CanDivide(d) {
					Divide(d, a, 3)
				}
			})
			if allocations != 0 {
				t.Errorf("%v: %v allocations", d, allocations)
			}
		}
	})
}
