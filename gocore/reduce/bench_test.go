package reduce

import (
	"testing"

	"fptps/gocore/wire"
)

// Each benchmark processes 16 KB of the type, one packet; MB/s counts these bytes.
const packet = 16 << 10

func BenchmarkAdd(b *testing.B) {
	has := func(d wire.DType) bool { return Supported(d) && !Wide(d) }
	benchmark(b, has, func(d wire.DType, acc, raw []byte) { Add(d, acc[:packet], raw) })
}

func BenchmarkWiden(b *testing.B)   { benchmark(b, Wide, Widen) }
func BenchmarkAddWide(b *testing.B) { benchmark(b, Wide, AddWide) }

func BenchmarkNarrow(b *testing.B) {
	benchmark(b, Wide, func(d wire.DType, acc, raw []byte) { Narrow(d, raw, acc) })
}

func BenchmarkDivide(b *testing.B) {
	benchmark(b, CanDivide, func(d wire.DType, acc, raw []byte) { Divide(d, acc[:AccBytes(d, packet)], 1) })
}

func benchmark(b *testing.B, has func(d wire.DType) bool, run func(d wire.DType, acc, raw []byte)) {
	fastest := active
	defer func() { active = fastest }()
	acc, raw := make([]byte, 2*packet), make([]byte, packet)
	for _, version := range []struct {
		name    string
		kernels kernelsByType
	}{{"scalar", scalar()}, {"vector", vector()}} {
		active = version.kernels
		for _, d := range wire.DTypes() {
			if !has(d) {
				continue
			}
			b.Run(d.String()+"/"+version.name, func(b *testing.B) {
				b.SetBytes(packet)
				for b.Loop() {
					run(d, acc, raw)
				}
			})
		}
	}
}
