package reduce

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"fptps/gocore/wire"
)

// numbers is the arithmetic of the reference: in float64, each result rounded to the type.
type numbers struct {
	dtype wire.DType
	model model
	round func(x float64) float64
	load  func(part []byte) float64
	bytes func(x float64) []byte
}

var floats = []numbers{
	{
		wire.Float32, f32Model, func(x float64) float64 { return float64(float32(x)) },
		func(b []byte) float64 { return float64(f32(b)) },
		func(x float64) []byte { return le.AppendUint32(nil, math.Float32bits(float32(x))) },
	},
	{
		wire.Float64, f64Model, func(x float64) float64 { return float64(x) }, f64,
		func(x float64) []byte { return le.AppendUint64(nil, math.Float64bits(x)) },
	},
}

func (f numbers) add(x, y float64) float64 { return f.round(x + y) }
func (f numbers) mul(x, y float64) float64 { return f.round(x * y) }
func (f numbers) div(x, y float64) float64 { return f.round(x / y) }
func (f numbers) root(x float64) float64   { return f.round(math.Sqrt(x)) }

// steps are the updates under test: all runs the kernel on arrays, one is the reference for a single element. The first array
// is the gradient, the second the weights. one returns the new element of dst, then those of the arrays from the third on.
var steps = []struct {
	name   string
	arrays int
	all    func(d wire.DType, dst []byte, a [][]byte, c []float64)
	one    func(f numbers, x, c []float64) []float64
}{
	{
		"combine", 2,
		func(d wire.DType, dst []byte, a [][]byte, c []float64) { Combine(d, dst, a[1], a[0], c[0]) },
		func(f numbers, x, c []float64) []float64 { return []float64{f.add(x[1], f.mul(c[0], x[0]))} },
	},
	{
		"adam", 4,
		func(d wire.DType, dst []byte, a [][]byte, c []float64) {
			Adam(d, dst, a[0], a[1], a[2], a[3], AdamStep{Mean: c[0], Decay: c[1], Square: c[2], Root: c[3], Eps: c[4], Rate: c[5], Keep: c[6]})
		},
		func(f numbers, x, c []float64) []float64 {
			mean := f.add(x[2], f.mul(c[0], f.add(x[0], -x[2])))
			square := f.add(f.mul(c[1], x[3]), f.mul(f.mul(c[2], x[0]), x[0]))
			below := f.add(f.div(f.root(square), c[3]), c[4])
			return []float64{f.add(f.mul(c[6], x[1]), f.div(f.mul(c[5], mean), below)), mean, square}
		},
	},
	{
		"adagrad", 3,
		func(d wire.DType, dst []byte, a [][]byte, c []float64) { Adagrad(d, dst, a[0], a[1], a[2], c[0], c[1]) },
		func(f numbers, x, c []float64) []float64 {
			squares := f.add(x[2], f.mul(x[0], x[0]))
			return []float64{f.add(x[1], f.div(f.mul(c[0], x[0]), f.add(f.root(squares), c[1]))), squares}
		},
	},
}

// dst is a separate array, the gradient, or the weights, at any length and address.
func TestUpdatesEqualModel(t *testing.T) {
	withEachKernelSet(t, func(t *testing.T) {
		for _, f := range floats {
			for s, step := range steps {
				sweep(uint64(s), func(r *rand.Rand, n, first, second int) {
					var start, arrays [][]byte
					var checks []func()
					for i := range step.arrays {
						start = append(start, drawn(r, f.model, n))
						placed, unharmed := place(t, start[i], []int{first, second, r.IntN(16), 3}[i])
						arrays, checks = append(arrays, placed), append(checks, unharmed)
					}
					own, unharmed := place(t, make([]byte, n*f.model.part), r.IntN(16))
					dst := [][]byte{own, arrays[0], arrays[1]}[r.IntN(3)]
					c := coefficients(f, r)
					step.all(f.dtype, dst, arrays, c)
					for _, check := range append(checks, unharmed) {
						check()
					}
					for i := 0; i < n*f.model.part; i += f.model.part {
						var x []float64
						for _, a := range start {
							x = append(x, f.load(a[i:]))
						}
						want := step.one(f, x, c)
						for j, array := range append([][]byte{dst}, arrays[2:]...) {
							if got := array[i : i+f.model.part]; !same(f.model, got, f.bytes(want[j])) {
								t.Fatalf("%v %s: element %d of %d, result %d of %v with %v: %v, want %v",
									f.dtype, step.name, i/f.model.part, n, j, x, c, f.load(got), want[j])
							}
						}
					}
				})
			}
		}
	})
}

// coefficients draws seven coefficients, rounded to the type.
func coefficients(f numbers, r *rand.Rand) []float64 {
	var c []float64
	for range 7 {
		c = append(c, f.round([]float64{0, 1, 1e-8, r.Float64(), -r.Float64(), 1 + r.Float64()}[r.IntN(6)]))
	}
	return c
}

// A step changes neither the gradient nor the weights, unless one of them is dst.
func TestUpdatesWriteOnlyTheirResults(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	withEachKernelSet(t, func(t *testing.T) {
		for _, f := range floats {
			for _, step := range steps {
				var start, arrays [][]byte
				for range step.arrays {
					start = append(start, drawn(r, f.model, 101))
					arrays = append(arrays, slices.Clone(start[len(start)-1]))
				}
				step.all(f.dtype, make([]byte, len(start[0])), arrays, coefficients(f, r))
				if !bytes.Equal(arrays[0], start[0]) || !bytes.Equal(arrays[1], start[1]) {
					t.Errorf("%v %s wrote to the gradient or the weights", f.dtype, step.name)
				}
			}
		}
	})
}

func TestFill(t *testing.T) {
	withEachKernelSet(t, func(t *testing.T) {
		for _, f := range floats {
			array, unharmed := place(t, make([]byte, 7*f.model.part), 1)
			Fill(f.dtype, array, 0.1)
			unharmed()
			if !bytes.Equal(array, bytes.Repeat(f.bytes(0.1), 7)) {
				t.Errorf("%v: %x", f.dtype, array)
			}
		}
	})
}

func TestUpdatesAllocateNothing(t *testing.T) {
	arrays := [][]byte{make([]byte, 1000), make([]byte, 1000), make([]byte, 1000), make([]byte, 1000)}
	withEachKernelSet(t, func(t *testing.T) {
		for _, step := range steps {
			c := []float64{1, 1, 1, 1, 1, 1, 1}
			if n := testing.AllocsPerRun(5, func() { step.all(wire.Float32, arrays[0], arrays, c) }); n != 0 {
				t.Errorf("%s: %v allocations", step.name, n)
			}
		}
	})
}
