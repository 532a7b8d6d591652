// Package codec quantises float32 values: linear codes of 2 to 16 bits, rounded at random so that a code's expectation
// is its value. It is pure: values in, bytes out, and no bytes make a call fail.
//
// A quantised tensor is a row of blocks, each of wire.BlockBytes and by itself:
//
//	bytes 0 to 3   the step: what a code of 1 stands for, float32
//	bytes 4 to 7   the stated range, float32; 0 where the block's largest value is the range
//	then           the codes, each in so many bits, the lowest bits first: code + Levels, from 0 to 2*Levels
//
// in the machine's byte order. Values beyond a stated range become the range. A block with a value that is not finite
// decodes to NaN everywhere: a training that has gone wrong must not look right.
package codec

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"fptps/gocore/wire"
)

const headerBytes = 8

// Values is the number of values in a block of codes of so many bits.
func Values(bits int) int { return (wire.BlockBytes - headerBytes) * 8 / bits }

// Levels is the largest code; the smallest is its negative.
func Levels(bits int) int { return 1<<(bits-1) - 1 }

// Bytes is the size of n values.
func Bytes(bits, n int) int {
	per := Values(bits)
	return (n + per - 1) / per * wire.BlockBytes
}

// Encode quantises src into dst, of Bytes(bits, len(src)). stated is the range, 0 to take each block's largest value.
func Encode(dst []byte, bits int, src []float32, stated float32, random *rand.PCG) {
	per := Values(bits)
	for len(src) > 0 {
		n := min(per, len(src))
		encodeBlock(dst[:wire.BlockBytes], bits, src[:n], stated, random)
		dst, src = dst[wire.BlockBytes:], src[n:]
	}
}

func encodeBlock(dst []byte, bits int, src []float32, stated float32, random *rand.PCG) {
	levels := Levels(bits)
	largest, finite := extent(src)
	if stated > 0 {
		largest = stated
	}
	step := largest / float32(levels)
	inverse := 1 / float64(step)
	switch {
	case !finite:
		step, inverse = float32(math.NaN()), 0
	case step == 0: // all zeros, or too small for a float32
		inverse = 0
	}
	binary.NativeEndian.PutUint32(dst, math.Float32bits(step))
	binary.NativeEndian.PutUint32(dst[4:], math.Float32bits(stated))
	out := packer{dst: dst[headerBytes:headerBytes:wire.BlockBytes]}
	var drawn uint64
	for i, v := range src {
		if i%2 == 0 {
			drawn = random.Uint64()
		} else {
			drawn >>= 32
		}
		out.put(code(v, inverse, levels, uint32(drawn)), bits)
	}
	for i := len(src); i < Values(bits); i++ {
		out.put(uint64(levels), bits)
	}
	out.end()
}

// extent is the largest magnitude, and whether all values are finite.
func extent(src []float32) (largest float32, finite bool) {
	var bits uint32 // magnitudes are in the order of their bits, with Inf and NaN above all
	for _, v := range src {
		bits = max(bits, math.Float32bits(v)&^(1<<31))
	}
	largest = math.Float32frombits(bits)
	return largest, bits < 0x7f800000
}

// code rounds v up with the probability of its fraction: drawn is uniform over all numbers of 32 bits.
func code(v float32, inverse float64, levels int, drawn uint32) uint64 {
	x := float64(v) * inverse
	top := float64(levels)
	if !(x > -top) { // or NaN
		return 0
	}
	if x >= top {
		return uint64(2 * levels)
	}
	return uint64(x + top + float64(drawn)*0x1p-32)
}

// Decode sets dst to the values of src, which has Bytes(bits, len(dst)).
func Decode(dst []float32, bits int, src []byte) {
	per, levels := Values(bits), Levels(bits)
	for len(dst) > 0 {
		n := min(per, len(dst))
		step := math.Float32frombits(binary.NativeEndian.Uint32(src))
		in := unpacker{src: src[headerBytes:wire.BlockBytes]}
		for i := range dst[:n] {
			dst[i] = float32(int(in.get(bits))-levels) * step
		}
		dst, src = dst[n:], src[wire.BlockBytes:]
	}
}

// packer writes codes into bytes, the lowest bits first.
type packer struct {
	dst  []byte
	held uint64
	bits int
}

func (p *packer) put(code uint64, bits int) {
	p.held |= code << p.bits
	for p.bits += bits; p.bits >= 8; p.bits -= 8 {
		p.dst = append(p.dst, byte(p.held))
		p.held >>= 8
	}
}

// end writes what is held, and zeros to the end of the block.
func (p *packer) end() {
	if p.bits > 0 {
		p.dst = append(p.dst, byte(p.held))
	}
	clear(p.dst[len(p.dst):cap(p.dst)])
}

type unpacker struct {
	src  []byte
	held uint64
	bits int
}

func (u *unpacker) get(bits int) uint64 {
	for u.bits < bits {
		u.held |= uint64(u.src[0]) << u.bits
		u.src = u.src[1:]
		u.bits += 8
	}
	code := u.held & (1<<bits - 1)
	u.held >>= bits
	u.bits -= bits
	return code
}
