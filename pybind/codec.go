package pybind

import (
	"math"
	"math/rand/v2"

	"fptps/gocore/codec"
	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// BlockValues is the number of values in a block of codes of so many bits.
func BlockValues(bits int64) (n int64, err error) {
	defer failed(&err)
	if err := width(bits); err != nil {
		return 0, err
	}
	return int64(codec.Values(int(bits))), nil
}

// Quantise writes n float32s as blocks of codes. stated is the range as the bits of a float32, 0 to take each block's own.
func Quantise(blocks uintptr, blockBytes int64, values uintptr, n, bits, stated, seed int64) (zero int64, err error) {
	defer failed(&err)
	dst, src, err := quantised(blocks, blockBytes, values, n, bits)
	if err != nil {
		return 0, err
	}
	codec.Encode(dst, int(bits), src, math.Float32frombits(uint32(stated)), rand.NewPCG(uint64(seed), 0))
	return 0, nil
}

// Dequantise writes the n values of blocks of codes as float32s.
func Dequantise(blocks uintptr, blockBytes int64, values uintptr, n, bits int64) (zero int64, err error) {
	defer failed(&err)
	src, dst, err := quantised(blocks, blockBytes, values, n, bits)
	if err != nil {
		return 0, err
	}
	codec.Decode(dst, int(bits), src)
	return 0, nil
}

// quantised finds blocks and values in the caller's memory, which have to be of one size.
func quantised(blocks uintptr, blockBytes int64, values uintptr, n, bits int64) ([]byte, []float32, error) {
	if err := width(bits); err != nil {
		return nil, nil, err
	}
	if n <= 0 || blockBytes != int64(codec.Bytes(int(bits), int(n))) {
		return nil, nil, fault.New(fault.Value, "%d values are not in %d bytes of %d-bit codes", n, blockBytes, bits)
	}
	return memory[byte](blocks, blockBytes), memory[float32](values, n), nil
}

func width(bits int64) error {
	if bits < wire.MinBits || bits > wire.MaxBits {
		return fault.New(fault.Value, "bits=%d: %d to %d are expected", bits, wire.MinBits, wire.MaxBits)
	}
	return nil
}
