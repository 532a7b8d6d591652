package codec

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"fptps/gocore/wire"
)

// A sum of blocks is taken in an accumulator of AccFloats float32s for each: the sum of the stated ranges, which is the
// range of the sum, then the sums of the values. Scaling all of them alike scales the sum: that is how a mean is made.

// AccFloats is the size of the accumulator of a block.
func AccFloats(bits int) int { return 1 + Values(bits) }

// Widen sets the accumulator of some blocks to them.
func Widen(bits int, acc []float32, blocks []byte) {
	clear(acc)
	Add(bits, acc, blocks)
}

// Add adds blocks to their accumulator.
func Add(bits int, acc []float32, blocks []byte) {
	levels, floats := Levels(bits), AccFloats(bits)
	for ; len(blocks) > 0; blocks, acc = blocks[wire.BlockBytes:], acc[floats:] {
		step := math.Float32frombits(binary.NativeEndian.Uint32(blocks))
		acc[0] += math.Float32frombits(binary.NativeEndian.Uint32(blocks[4:]))
		in := unpacker{src: blocks[headerBytes:wire.BlockBytes]}
		for i := 1; i < floats; i++ {
			// The conversion keeps the product from being fused with the sum: every machine gets the same bits.
			acc[i] += float32(float32(int(in.get(bits))-levels) * step)
		}
	}
}

// Narrow quantises an accumulator into blocks, which may be the front of its own memory.
func Narrow(bits int, blocks []byte, acc []float32) {
	random := rand.NewPCG(rand.Uint64(), rand.Uint64())
	var block [wire.BlockBytes]byte
	floats := AccFloats(bits)
	for ; len(blocks) > 0; blocks, acc = blocks[wire.BlockBytes:], acc[floats:] {
		encodeBlock(block[:], bits, acc[1:floats], max(acc[0], 0), random)
		copy(blocks, block[:])
	}
}
