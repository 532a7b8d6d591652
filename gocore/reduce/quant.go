package reduce

import (
	"hash/crc32"
	"math/rand/v2"

	"fptps/gocore/codec"
	"fptps/gocore/wire"
)

// withQuantised adds the kernels of the quantised types.
func withQuantised(t kernelsByType) kernelsByType {
	for bits := wire.MinBits; bits <= wire.MaxBits; bits++ {
		t[wire.Quant(bits)] = kernels{
			widen:   func(acc, src []byte) { codec.Widen(bits, view[float32](acc), src) },
			addWide: func(acc, src []byte) { codec.Add(bits, view[float32](acc), src) },
			narrow: func(dst, acc []byte) {
				codec.Narrow(bits, dst, view[float32](acc), rand.NewPCG(rand.Uint64(), rand.Uint64()))
			},
			divide: divide[float32],
		}
	}
	return t
}

// NarrowRepeatably is Narrow with random numbers that follow from seed and the accumulator alone: calls with the same arguments
// give the same bits. Different contents get different numbers, so that the rounding errors of two packets are independent.
func NarrowRepeatably(d wire.DType, dst, acc []byte, seed uint64) {
	bits := d.Bits()
	if bits == 0 {
		Narrow(d, dst, acc)
		return
	}
	contents := uint64(crc32.Checksum(acc, castagnoli))
	codec.Narrow(bits, dst, view[float32](acc), rand.NewPCG(seed, contents))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
