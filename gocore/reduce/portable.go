package reduce

import (
	"math"
	"unsafe"

	"fptps/gocore/wire"
)

// portable is the kernel set in plain Go. Signed integers use the sums of the unsigned ones; complex numbers are pairs of
// floats.
var portable = withQuantised(kernelsByType{
	wire.Bool:        {add: or},
	wire.Int8:        {add: add[uint8]},
	wire.Int16:       {add: add[uint16]},
	wire.Int32:       {add: add[uint32]},
	wire.Int64:       {add: add[uint64]},
	wire.Uint8:       {add: add[uint8]},
	wire.Uint16:      {add: add[uint16]},
	wire.Uint32:      {add: add[uint32]},
	wire.Uint64:      {add: add[uint64]},
	wire.Float16:     {widen: widenF16, addWide: addWideF16, narrow: narrowF16, divide: divide[float32]},
	wire.BFloat16:    {widen: widenBF16, addWide: addWideBF16, narrow: narrowBF16, divide: divide[float32]},
	wire.Float32:     {add: add[float32], divide: divide[float32], updates: plainUpdates[float32]()},
	wire.Float64:     {add: add[float64], divide: divide[float64], updates: plainUpdates[float64]()},
	wire.Complex64:   {add: add[float32], divide: divide[float32]},
	wire.Complex128:  {add: add[float64], divide: divide[float64]},
	wire.Timedelta64: {add: addTimedelta},
})

type float interface{ float32 | float64 }

type number interface {
	float | int64 | uint8 | uint16 | uint32 | uint64
}

// view is b as a slice of elements, which may be misaligned: Go leaves misaligned access to the machine for types without
// pointers, and the 64-bit machines that fptps supports allow it.
func view[T number](b []byte) []T {
	var element T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(element)))
}

func add[T number](dst, src []byte) {
	s := view[T](src)
	d := view[T](dst)[:len(s)]
	for i, v := range s {
		d[i] += v
	}
}

func divide[T float](acc []byte, n int) {
	a, by := view[T](acc), T(n)
	for i := range a {
		a[i] /= by
	}
}

func or(dst, src []byte) {
	dst = dst[:len(src)]
	for i, v := range src {
		dst[i] = min(dst[i]|v, 1)
	}
}

func addTimedelta(dst, src []byte) {
	const nat = math.MinInt64
	s := view[int64](src)
	d := view[int64](dst)[:len(s)]
	for i, v := range s {
		if d[i] == nat || v == nat {
			d[i] = nat
		} else {
			d[i] += v
		}
	}
}
