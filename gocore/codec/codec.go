// Package codec quantises float32 values to linear codes of 2 to 16 bits. Rounding is stochastic, so that the expectation
// of a decoded value is the value. The package is pure: values in, bytes out; no input bytes make a call fail.
//
// A quantised tensor is a sequence of independent blocks of wire.BlockBytes each:
//
//	bytes 0 to 3   the step, float32: the value of code 1
//	bytes 4 to 7   the stated range, float32; 0 if the block's largest magnitude is the range
//	then           the codes, packed from the lowest bit on, each stored as code + Levels, from 0 to 2*Levels
//
// in the machine's byte order. Values beyond a stated range are clipped to it. If any value of a block is not finite, the
// whole block decodes to NaN: a training that has diverged must not look healthy.
package codec

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"fptps/gocore/wire"
)

const headerBytes = 8

// Values is the number of values in a block, for codes of the given width.
func Values(bits int) int { return (wire.BlockBytes - headerBytes) * 8 / bits }

// Levels is the largest code; the smallest is -Levels.
func Levels(bits int) int { return 1<<(bits-1) - 1 }

// Bytes is the encoded size of n values.
func Bytes(bits, n int) int {
	per := Values(bits)
	return (n + per - 1) / per * wire.BlockBytes
}

// Encode quantises src into dst, which has Bytes(bits, len(src)) bytes. stated is the range; with 0 each block uses its
// largest magnitude.
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
	case step == 0: // all values are zero, or the step underflows float32
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

// extent returns the largest magnitude and whether all values are finite.
func extent(src []float32) (largest float32, finite bool) {
	var bits uint32 // bit patterns of magnitudes sort like the magnitudes, with Inf and NaN above all numbers
	for _, v := range src {
		bits = max(bits, math.Float32bits(v)&^(1<<31))
	}
	largest = math.Float32frombits(bits)
	return largest, bits < 0x7f800000
}

// code quantises v. It rounds up with a probability equal to the fraction; drawn is uniform over all 32-bit numbers.
func code(v float32, inverse float64, levels int, drawn uint32) uint64 {
	x := float64(v) * inverse
	top := float64(levels)
	if !(x > -top) { // true for NaN too
		return 0
	}
	if x >= top {
		return uint64(2 * levels)
	}
	// A value that was decoded from a code of this step becomes that code again, whatever is drawn: float32 keeps it
	// to within this distance only, and chance would move one in some hundred thousand by a whole step.
	if nearest := math.RoundToEven(x); math.Abs(x-nearest) <= math.Abs(x)*0x1p-22 {
		return uint64(nearest + top)
	}
	return uint64(x + top + float64(drawn)*0x1p-32)
}

// Decode sets dst to the values of src, which has Bytes(bits, len(dst)) bytes.
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

// packer packs codes into bytes, from the lowest bit on.
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

// end writes the last bits and fills the block with zeros.
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
