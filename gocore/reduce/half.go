package reduce

import "math"

// The 16-bit floats in plain Go. A half (float16) has 5 bits of exponent and 10 of fraction; a bfloat16 is the upper half of a
// float32. Floats are handled as bit patterns, because loading a NaN as a float may change its bits.

const (
	f32Inf   = 0x7f800000
	f32Quiet = 0x00400000 // the bit that makes a NaN quiet
	rebias   = 127 - 15   // between the exponents of float32 and half
)

func floatOfHalf(h uint16) uint32 {
	sign, exponent, fraction := uint32(h&0x8000)<<16, uint32(h>>10&31), uint32(h&0x3ff)
	switch {
	case exponent == 31 && fraction != 0:
		return sign | f32Inf | f32Quiet | fraction<<13
	case exponent == 31:
		return sign | f32Inf
	case exponent == 0:
		return sign | math.Float32bits(float32(fraction)*0x1p-24)
	}
	return sign | (exponent+rebias)<<23 | fraction<<13
}

func halfOfFloat(f uint32) uint16 {
	sign, f := uint16(f>>16&0x8000), f&^(1<<31)
	switch {
	case f > f32Inf:
		return sign | 0x7e00 | uint16(f>>13&0x3ff)
	case f >= (16+127)<<23: // 2^16
		return sign | 0x7c00
	case f >= (-14+127)<<23: // a carry out of the fraction raises the exponent, up to Inf
		return sign | uint16((f-rebias<<23+0xfff+f>>13&1)>>13)
	}
	// Halves below 2^-14 are multiples of 2^-24, as are float32s in [0.5, 1): the addition rounds to one.
	const magic = 0.5
	return sign | uint16(math.Float32bits(math.Float32frombits(f)+magic)-math.Float32bits(magic))
}

func bfloatOfFloat(f uint32) uint16 {
	if f&^(1<<31) > f32Inf {
		return uint16((f | f32Quiet) >> 16)
	}
	return uint16((f + 0x7fff + f>>16&1) >> 16)
}

func widenF16(acc, src []byte) {
	s := view[uint16](src)
	a := view[uint32](acc)[:len(s)]
	for i, h := range s {
		a[i] = floatOfHalf(h)
	}
}

func addWideF16(acc, src []byte) {
	s := view[uint16](src)
	a := view[float32](acc)[:len(s)]
	for i, h := range s {
		a[i] += math.Float32frombits(floatOfHalf(h))
	}
}

// narrowF16 and narrowBF16 may work in place: element i is written over bytes of elements up to i, which have been read.
func narrowF16(dst, acc []byte) {
	d := view[uint16](dst)
	a := view[uint32](acc)[:len(d)]
	for i, f := range a {
		d[i] = halfOfFloat(f)
	}
}

func widenBF16(acc, src []byte) {
	s := view[uint16](src)
	a := view[uint32](acc)[:len(s)]
	for i, b := range s {
		a[i] = uint32(b) << 16
	}
}

func addWideBF16(acc, src []byte) {
	s := view[uint16](src)
	a := view[float32](acc)[:len(s)]
	for i, b := range s {
		a[i] += math.Float32frombits(uint32(b) << 16)
	}
}

func narrowBF16(dst, acc []byte) {
	d := view[uint16](dst)
	a := view[uint32](acc)[:len(d)]
	for i, f := range a {
		d[i] = bfloatOfFloat(f)
	}
}
