package reduce

import (
	"fptps/gocore/codec"
	"fptps/gocore/wire"
)

// withQuantised adds the kernels of the quantised types.
func withQuantised(t kernelsByType) kernelsByType {
	for bits := wire.MinBits; bits <= wire.MaxBits; bits++ {
		t[wire.Quant(bits)] = kernels{
			widen:   func(acc, src []byte) { codec.Widen(bits, view[float32](acc), src) },
			addWide: func(acc, src []byte) { codec.Add(bits, view[float32](acc), src) },
			narrow:  func(dst, acc []byte) { codec.Narrow(bits, dst, view[float32](acc)) },
			divide:  divide[float32],
		}
	}
	return t
}
