// Package reduce does arithmetic on the bytes of tensors: sums, means and optimisers' steps. 16-bit floats and quantised
// tensors are wide types: their accumulator is float32, so that the sum of many workers is rounded once and does not
// overflow before it is complete.
//
// All slices of a call hold the same number of whole elements, in the machine's byte order, at any address. Nothing here
// allocates. No element value (NaN, Inf, an invalid x87 encoding) makes a call fail. A call for a type without the operation
// is a bug of the caller and panics; Supported, Wide, CanDivide and CanUpdate report what a type has.
package reduce

import (
	"fptps/gocore/codec"
	"fptps/gocore/wire"
)

// kernels are the operations on one element type; nil if the type does not have the operation.
type kernels struct {
	add    func(dst, src []byte)
	divide func(acc []byte, n int)

	// For wide types only; the accumulator is float32.
	widen, addWide func(acc, src []byte)
	narrow         func(dst, acc []byte)

	updates
}

// kernelsByType has an entry for every value of a DType, so that a lookup never fails.
type kernelsByType [256]kernels

// active is the kernel set in use. Tests also set it to scalar().
var active = vector()

// Supported reports whether tensors of type d can be summed on this machine.
func Supported(d wire.DType) bool { return active[d].add != nil || Wide(d) }

// Wide reports whether d is summed in a float32 accumulator instead of its own type.
func Wide(d wire.DType) bool { return active[d].widen != nil }

// CanDivide reports whether d has means: floats, complex and quantised types do.
func CanDivide(d wire.DType) bool { return active[d].divide != nil }

// OrderMatters reports whether the bits of a sum of type d depend on the order of the additions. Sums of integers and of bools do
// not. Those of Timedelta64 do: a partial sum that wraps around to NaT stays NaT.
func OrderMatters(d wire.DType) bool { return d > wire.Uint64 }

// AccBytes is the size in bytes of the accumulator for raw bytes of type d.
func AccBytes(d wire.DType, raw int) int {
	if bits := d.Bits(); bits > 0 {
		return raw / wire.BlockBytes * codec.AccFloats(bits) * wire.Float32.Size()
	}
	if Wide(d) {
		return raw / d.Size() * wire.Float32.Size()
	}
	return raw
}

// Add adds src to dst, for types that are not Wide. Integers wrap around. Bool is a logical or, in which any byte but 0 is
// true. A sum with a NaT (Timedelta64) is NaT. A sum with a NaN is a quiet NaN.
func Add(d wire.DType, dst, src []byte) { active[d].add(dst, src) }

// Widen sets the accumulator to src, for Wide types. They must not overlap.
func Widen(d wire.DType, acc, src []byte) { active[d].widen(acc, src) }

// AddWide adds src to the accumulator, for Wide types.
func AddWide(d wire.DType, acc, src []byte) { active[d].addWide(acc, src) }

// Narrow converts the accumulator to dst, for Wide types. Floats are rounded to nearest even, become Inf if too large, and a
// NaN becomes a quiet NaN; quantised values are rounded stochastically. dst may be the front of acc's own memory.
func Narrow(d wire.DType, dst, acc []byte) { active[d].narrow(dst, acc) }

// Divide divides an accumulator of type d (float32 if d is Wide) by n, correctly rounded. Complex numbers are divided component
// by component.
func Divide(d wire.DType, acc []byte, n int) { active[d].divide(acc, n) }
