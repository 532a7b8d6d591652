package reduce

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"fptps/gocore/wire"
)

// TestNarrowRepeatably: equal arguments give equal bits, and another seed gives other random numbers.
func TestNarrowRepeatably(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, d := range []wire.DType{wire.Quant(2), wire.Quant(8), wire.BFloat16} {
		acc := make([]byte, AccBytes(d, wire.BlockBytes))
		for i := range view[float32](acc) {
			view[float32](acc)[i] = rng.Float32() - 0.5
		}
		narrow := func(acc []byte, seed uint64) []byte {
			dst := make([]byte, wire.BlockBytes)
			NarrowRepeatably(d, dst, acc, seed)
			return dst
		}
		first := narrow(acc, 7)
		if !bytes.Equal(narrow(acc, 7), first) {
			t.Errorf("%v: the same call gives other bits", d)
		}
		inPlace := slices.Clone(acc)
		if NarrowRepeatably(d, inPlace[:wire.BlockBytes], inPlace, 7); !bytes.Equal(inPlace[:wire.BlockBytes], first) {
			t.Errorf("%v: other bits in place", d)
		}
		if d.Bits() > 0 && bytes.Equal(narrow(acc, 8), first) {
			t.Errorf("%v: another seed gives the same bits", d)
		}
	}
}
