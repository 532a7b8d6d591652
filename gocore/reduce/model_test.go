package reduce

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"fptps/gocore/wire"
)

// model is the reference for the arithmetic of one element type: slow, one component at a time (a complex number has two), and
// computed by other means than in the kernels.
type model struct {
	part     int // bytes
	draw     func(r *rand.Rand, part []byte)
	sum      func(a, b []byte) []byte
	quotient func(a []byte, n int) []byte // nil if the type has no mean
	nan      func(a []byte) (is, quiet bool)
}

var (
	le = binary.LittleEndian

	f32Model = model{4, drawF32, sumF32, quotientF32, nanF32}
	f64Model = model{8, drawF64, sumF64, quotientF64, nanF64}

	// models has the types that are not wide; x87_amd64_test.go adds longdouble.
	models = map[wire.DType]model{
		wire.Bool: {1, drawBool, sumBool, nil, noNaN},
		wire.Int8: integer(1), wire.Int16: integer(2), wire.Int32: integer(4), wire.Int64: integer(8),
		wire.Uint8: integer(1), wire.Uint16: integer(2), wire.Uint32: integer(4), wire.Uint64: integer(8),
		wire.Float32: f32Model, wire.Complex64: f32Model, wire.Float64: f64Model, wire.Complex128: f64Model,
		wire.Timedelta64: {8, drawTimedelta, sumTimedelta, nil, noNaN},
	}
)

func noNaN([]byte) (is, quiet bool) { return false, false }

func drawBits(r *rand.Rand, part []byte) {
	for i := range part {
		part[i] = byte(r.Uint32())
	}
}

// sumBits adds byte by byte with a carry, as on paper.
func sumBits(a, b []byte) []byte {
	sum, carry := make([]byte, len(a)), 0
	for i := range a {
		carry += int(a[i]) + int(b[i])
		sum[i] = byte(carry % 256)
		carry /= 256
	}
	return sum
}

func integer(size int) model { return model{size, drawBits, sumBits, nil, noNaN} }

func drawBool(r *rand.Rand, part []byte) {
	part[0] = [...]byte{0, 0, 0, 1, 1, 2, 128, 255}[r.IntN(8)]
}

func sumBool(a, b []byte) []byte {
	if a[0] == 0 && b[0] == 0 {
		return []byte{0}
	}
	return []byte{1}
}

var nat = []byte{0, 0, 0, 0, 0, 0, 0, 0x80}

func drawTimedelta(r *rand.Rand, part []byte) {
	if drawBits(r, part); r.IntN(4) == 0 {
		copy(part, nat)
	}
}

func sumTimedelta(a, b []byte) []byte {
	if bytes.Equal(a, nat) || bytes.Equal(b, nat) {
		return nat
	}
	return sumBits(a, b)
}

// drawF32 draws, equally often, special values, values near 1 whose sums are rounded, and any bit pattern.
func drawF32(r *rand.Rand, part []byte) {
	special := [...]uint32{0, 1, 0x7fffff, 0x800000, 0x3f800000, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fffffff}
	f := r.Uint32()
	switch r.IntN(3) {
	case 0:
		f = special[r.IntN(len(special))] | f&(1<<31)
	case 1:
		f = f&^(0xff<<23) | uint32(127-12+r.IntN(24))<<23
	}
	le.PutUint32(part, f)
}

// sumF32 rounds twice, with the same result as once: float64 has more than twice the digits of float32.
func sumF32(a, b []byte) []byte {
	return le.AppendUint32(nil, math.Float32bits(float32(float64(f32(a))+float64(f32(b)))))
}

func quotientF32(a []byte, n int) []byte {
	return le.AppendUint32(nil, math.Float32bits(float32(float64(f32(a))/float64(n))))
}

func f32(a []byte) float32 { return math.Float32frombits(le.Uint32(a)) }

func nanF32(a []byte) (is, quiet bool) {
	f := le.Uint32(a)
	return f&0x7fffffff > 0x7f800000, f&0x400000 != 0
}

func drawF64(r *rand.Rand, part []byte) {
	special := [...]uint64{0, 1, 1<<52 - 1, 1 << 52, 0x3ff << 52, 0x7ff<<52 - 1, 0x7ff << 52, 0x7ff<<52 + 1, 0x7ff8 << 48, 1<<63 - 1}
	f := r.Uint64()
	switch r.IntN(3) {
	case 0:
		f = special[r.IntN(len(special))] | f&(1<<63)
	case 1:
		f = f&^(0x7ff<<52) | uint64(1023-12+r.IntN(24))<<52
	}
	le.PutUint64(part, f)
}

func sumF64(a, b []byte) []byte {
	return le.AppendUint64(nil, math.Float64bits(math.FMA(f64(a), 1, f64(b))))
}

func quotientF64(a []byte, n int) []byte {
	return le.AppendUint64(nil, math.Float64bits(f64(a)/float64(n)))
}

func f64(a []byte) float64 { return math.Float64frombits(le.Uint64(a)) }

func nanF64(a []byte) (is, quiet bool) {
	return math.IsNaN(f64(a)), le.Uint64(a)&(1<<51) != 0
}

// same reports whether a kernel's result equals the model's: the same bits, or a quiet NaN where the model has a NaN.
func same(m model, got, want []byte) bool {
	if is, _ := m.nan(want); is {
		is, quiet := m.nan(got)
		return is && quiet
	}
	return bytes.Equal(got, want)
}

// drawn draws n components.
func drawn(r *rand.Rand, m model, n int) []byte {
	b := make([]byte, n*m.part)
	for i := 0; i < len(b); i += m.part {
		m.draw(r, b[i:i+m.part])
	}
	return b
}

// place copies content to offset bytes after a multiple of 64. unharmed fails the test if a byte before or after has changed.
func place(t *testing.T, content []byte, offset int) (placed []byte, unharmed func()) {
	const fence, mark = 64, 0xa5
	whole := bytes.Repeat([]byte{mark}, 64+fence+16+len(content)+fence)
	start := fence + offset + int(-uintptr(unsafe.Pointer(unsafe.SliceData(whole)))&63)
	end := start + len(content)
	copy(whole[start:end], content)
	return whole[start:end], func() {
		t.Helper()
		for i, b := range whole {
			if (i < start || i >= end) && b != mark {
				t.Fatalf("byte %d from the start of %d was written", i-start, len(content))
			}
		}
	}
}

// withEachKernelSet runs a test with the portable kernels and with the fastest.
func withEachKernelSet(t *testing.T, test func(t *testing.T)) {
	fastest := active
	defer func() { active = fastest }()
	for name, kernels := range map[string]kernelsByType{"scalar": scalar(), "vector": vector()} {
		active = kernels
		t.Run(name, test)
	}
}

// sweep calls a test with every length up to 300 elements at random offsets, and with every pair of offsets.
func sweep(seed uint64, test func(r *rand.Rand, n, dst, src int)) {
	r := rand.New(rand.NewPCG(seed, 0))
	for n := range 301 {
		test(r, n, r.IntN(16), r.IntN(16))
	}
	for offsets := range 256 {
		test(r, 37, offsets/16, offsets%16)
	}
}
