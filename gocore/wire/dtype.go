package wire

import "strconv"

// DType is the element type of a tensor. The numbers are part of the wire format.
type DType uint8

// The element types: numpy's summable types, and bfloat16.
const (
	Bool DType = iota + 1 // summed as logical or, as numpy does
	Int8
	Int16
	Int32
	Int64
	Uint8
	Uint16
	Uint32
	Uint64
	Float16  // summed in float32
	BFloat16 // summed in float32
	Float32
	Float64
	LongDouble // x87 80-bit in 16 bytes; amd64 only
	Complex64
	Complex128
	CLongDouble // two LongDoubles; amd64 only
	Timedelta64 // int64 whose least value is NaT; NaT plus anything is NaT
	plainEnd
)

// After the plain types there is one type for each width of quantised tensors. An element is a block of gocore/codec, of
// BlockBytes; the sum of blocks is the sum of the values that they encode.
const (
	MinBits    = 2
	MaxBits    = 16
	BlockBytes = 512
	dtypeEnd   = plainEnd + MaxBits - MinBits + 1
)

// Quant is the type of a tensor quantised to the given number of bits, MinBits to MaxBits.
func Quant(bits int) DType { return plainEnd + DType(bits-MinBits) }

// Bits is the width of a quantised tensor's codes; 0 for a plain type.
func (d DType) Bits() int {
	if d < plainEnd || !d.Valid() {
		return 0
	}
	return int(d-plainEnd) + MinBits
}

var dtypes = [plainEnd]struct {
	name string
	size int
}{
	Bool: {"bool", 1}, Int8: {"int8", 1}, Int16: {"int16", 2}, Int32: {"int32", 4}, Int64: {"int64", 8},
	Uint8: {"uint8", 1}, Uint16: {"uint16", 2}, Uint32: {"uint32", 4}, Uint64: {"uint64", 8},
	Float16: {"float16", 2}, BFloat16: {"bfloat16", 2}, Float32: {"float32", 4}, Float64: {"float64", 8},
	LongDouble: {"longdouble", 16}, Complex64: {"complex64", 8}, Complex128: {"complex128", 16},
	CLongDouble: {"clongdouble", 32}, Timedelta64: {"timedelta64", 8},
}

// Valid reports whether d is one of the element types above.
func (d DType) Valid() bool { return d > 0 && d < dtypeEnd }

// Size is the size of an element in bytes; 0 for an invalid type.
func (d DType) Size() int {
	if !d.Valid() {
		return 0
	}
	if d.Bits() > 0 {
		return BlockBytes
	}
	return dtypes[d].size
}

// String is numpy's name of the type, or "quant8" and the like.
func (d DType) String() string {
	if !d.Valid() {
		return "invalid dtype"
	}
	if bits := d.Bits(); bits > 0 {
		return "quant" + strconv.Itoa(bits)
	}
	return dtypes[d].name
}

// DTypes lists every plain element type.
func DTypes() []DType {
	all := make([]DType, 0, plainEnd-1)
	for d := Bool; d < plainEnd; d++ {
		all = append(all, d)
	}
	return all
}
