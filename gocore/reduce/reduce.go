// Package reduce does the arithmetic on tensors' bytes: sums, division, and the way to float32 and back for the 16-bit
// floats and quantised tensors, which are summed in float32 so that a sum of many workers is rounded once and does not
// overflow on its way.
//
// All slices of a call hold the same number of whole elements, in the machine's byte order, and may lie at any address.
// Nothing here allocates, and no value of an element (NaN, Inf, an x87 encoding that no arithmetic makes) makes a call fail.
// A call for a type that has no such operation is a mistake of the caller and panics: ask Supported, Wide and CanDivide.
package reduce

import (
	"fptps/gocore/codec"
	"fptps/gocore/wire"
)

// kernels are the operations on one element type; nil where the type has no such operation.
type kernels struct {
	add    func(dst, src []byte)
	divide func(acc []byte, n int)

	// Of a wide type only: its accumulator is float32.
	widen, addWide func(acc, src []byte)
	narrow         func(dst, acc []byte)

	updates
}

// table has a row for every number that a DType can hold, so that looking one up never fails.
type table [256]kernels

// active is the table in use. Tests set it to scalar() too.
var active = vector()

// Supported tells whether tensors of type d can be summed on this machine.
func Supported(d wire.DType) bool { return active[d].add != nil || Wide(d) }

// Wide tells whether d is summed in an accumulator of another type, float32.
func Wide(d wire.DType) bool { return active[d].widen != nil }

// CanDivide tells whether there is a mean of type d: the floats and the complex types.
func CanDivide(d wire.DType) bool { return active[d].divide != nil }

// AccBytes is the size of the accumulator for raw bytes of type d.
func AccBytes(d wire.DType, raw int) int {
	if bits := d.Bits(); bits > 0 {
		return raw / wire.BlockBytes * codec.AccFloats(bits) * wire.Float32.Size()
	}
	if Wide(d) {
		return raw / d.Size() * wire.Float32.Size()
	}
	return raw
}

// Add adds src to dst, for the types that are not Wide. Integers wrap around, Bool is logical or (of any bytes: what is not 0
// is true), a NaT of Timedelta64 stays NaT, a NaN stays NaN and becomes quiet.
func Add(d wire.DType, dst, src []byte) { active[d].add(dst, src) }

// Widen sets the accumulator to src, for Wide types. They must not overlap.
func Widen(d wire.DType, acc, src []byte) { active[d].widen(acc, src) }

// AddWide adds src to the accumulator, for Wide types.
func AddWide(d wire.DType, acc, src []byte) { active[d].addWide(acc, src) }

// Narrow sets dst to the accumulator's values, for Wide types: rounded to nearest even, to Inf where they are too large; a NaN
// stays NaN and becomes quiet; codes are rounded at random, without bias. dst may be the front of acc's own memory.
func Narrow(d wire.DType, dst, acc []byte) { active[d].narrow(dst, acc) }

// Divide divides an accumulator of type d (of float32 where d is Wide) by n, correctly rounded; complex numbers part by part.
func Divide(d wire.DType, acc []byte, n int) { active[d].divide(acc, n) }
