package wire

// DType is the element type of a tensor. The numbers are part of the wire format.
type DType uint8

// The element types: numpy's that can be summed, and bfloat16.
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
	dtypeEnd
)

var dtypes = [dtypeEnd]struct {
	name string
	size int
}{
	Bool: {"bool", 1}, Int8: {"int8", 1}, Int16: {"int16", 2}, Int32: {"int32", 4}, Int64: {"int64", 8},
	Uint8: {"uint8", 1}, Uint16: {"uint16", 2}, Uint32: {"uint32", 4}, Uint64: {"uint64", 8},
	Float16: {"float16", 2}, BFloat16: {"bfloat16", 2}, Float32: {"float32", 4}, Float64: {"float64", 8},
	LongDouble: {"longdouble", 16}, Complex64: {"complex64", 8}, Complex128: {"complex128", 16},
	CLongDouble: {"clongdouble", 32}, Timedelta64: {"timedelta64", 8},
}

// Valid tells whether d is one of the element types above.
func (d DType) Valid() bool { return d > 0 && d < dtypeEnd }

// Size is the bytes of one element; 0 for an invalid type.
func (d DType) Size() int {
	if !d.Valid() {
		return 0
	}
	return dtypes[d].size
}

// String is numpy's name of the type.
func (d DType) String() string {
	if !d.Valid() {
		return "invalid dtype"
	}
	return dtypes[d].name
}

// DTypes lists every element type.
func DTypes() []DType {
	all := make([]DType, 0, dtypeEnd-1)
	for d := Bool; d < dtypeEnd; d++ {
		all = append(all, d)
	}
	return all
}
