package codec

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"fptps/gocore/wire"
)

// Blocks are summed in an accumulator of AccFloats float32s each: first the sum of the stated ranges, which is the range
// of the sum, then the sums of the values. Dividing the whole accumulator gives a mean, with the range of the mean.

// AccFloats is the number of float32s in the accumulator of one block.
func AccFloats(bits int) int { return 1 + Values(bits) }

// Widen sets acc to the values of blocks.
func Widen(bits int, acc []float32, blocks []byte) {
	clear(acc)
	Add(bits, acc, blocks)
}

// Add adds blocks to acc.
func Add(bits int, acc []float32, blocks []byte) {
	levels, floats := Levels(bits), AccFloats(bits)
	for ; len(blocks) > 0; blocks, acc = blocks[wire.BlockBytes:], acc[floats:] {
		step := math.Float32frombits(binary.NativeEndian.Uint32(blocks))
		acc[0] += math.Float32frombits(binary.NativeEndian.Uint32(blocks[4:]))
		in := unpacker{src: blocks[headerBytes:wire.BlockBytes]}
		for i := 1; i < floats; i++ {
			// The conversion prevents a fused multiply-add, so that every machine computes the same bits.
			acc[i] += float32(float32(int(in.get(bits))-levels) * step)
		}
	}
}

// Narrow quantises acc into blocks, which may be the front of acc's own memory.
func Narrow(bits int, blocks []byte, acc []float32, random *rand.PCG) {
	var block [wire.BlockBytes]byte
	floats := AccFloats(bits)
	for ; len(blocks) > 0; blocks, acc = blocks[wire.BlockBytes:], acc[floats:] {
		encodeBlock(block[:], bits, acc[1:floats], max(acc[0], 0), random)
		copy(blocks, block[:])
	}
}
