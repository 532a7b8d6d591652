package pybind

import (
	"math"
	"math/rand/v2"

	"fptps/gocore/codec"
	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// BlockValues is the number of values in a block, for codes of the given width.
func BlockValues(bits int64) (n int64, err error) {
	defer encodeError(&err)
	if err := width(bits); err != nil {
		return 0, err
	}
	return int64(codec.Values(int(bits))), nil
}

// Quantise encodes n float32s as blocks of codes. stated is the range, as the bits of a float32; with 0 each block uses its
// largest magnitude.
func Quantise(blocks uintptr, blockBytes int64, values uintptr, n, bits, stated, seed int64) (zero int64, err error) {
	defer encodeError(&err)
	dst, src, err := quantised(blocks, blockBytes, values, n, bits)
	if err != nil {
		return 0, err
	}
	codec.Encode(dst, int(bits), src, math.Float32frombits(uint32(stated)), rand.NewPCG(uint64(seed), 0))
	return 0, nil
}

// Dequantise decodes blocks of codes to n float32s.
func Dequantise(blocks uintptr, blockBytes int64, values uintptr, n, bits int64) (zero int64, err error) {
	defer encodeError(&err)
	src, dst, err := quantised(blocks, blockBytes, values, n, bits)
	if err != nil {
		return 0, err
	}
	codec.Decode(dst, int(bits), src)
	return 0, nil
}

// quantised returns the caller's arrays of blocks and values, after checking that their sizes match.
func quantised(blocks uintptr, blockBytes int64, values uintptr, n, bits int64) ([]byte, []float32, error) {
	if err := width(bits); err != nil {
		return nil, nil, err
	}
	if n <= 0 || blockBytes != int64(codec.Bytes(int(bits), int(n))) {
		return nil, nil, fault.New(fault.Value, "%d values do not fit %d bytes of %d-bit codes", n, blockBytes, bits)
	}
	return memory[byte](blocks, blockBytes), memory[float32](values, n), nil
}

func width(bits int64) error {
	if bits < wire.MinBits || bits > wire.MaxBits {
		return fault.New(fault.Value, "bits=%d: %d to %d are expected", bits, wire.MinBits, wire.MaxBits)
	}
	return nil
}
