//go:build amd64 && !purego

package reduce

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"fptps/gocore/wire"
)

// The bodies of the kernels, in assembly. They process whole blocks and access nothing beyond them. They keep no pointer and
// check no length; blocks and dividing, below, count the blocks.

//go:noescape
func avxOr(dst, src *byte, blocks int)

//go:noescape
func avxAddU8(dst, src *byte, blocks int)

//go:noescape
func avxAddU16(dst, src *byte, blocks int)

//go:noescape
func avxAddU32(dst, src *byte, blocks int)

//go:noescape
func avxAddU64(dst, src *byte, blocks int)

//go:noescape
func avxAddF32(dst, src *byte, blocks int)

//go:noescape
func avxAddF64(dst, src *byte, blocks int)

//go:noescape
func avxDivideF32(acc *byte, blocks, n int)

//go:noescape
func avxDivideF64(acc *byte, blocks, n int)

//go:noescape
func avxWidenF16(acc, src *byte, blocks int)

//go:noescape
func avxAddWideF16(acc, src *byte, blocks int)

//go:noescape
func avxNarrowF16(dst, acc *byte, blocks int)

//go:noescape
func avxWidenBF16(acc, src *byte, blocks int)

//go:noescape
func avxAddWideBF16(acc, src *byte, blocks int)

//go:noescape
func avxNarrowBF16(dst, acc *byte, blocks int)

//go:noescape
func x87Add(dst, src *byte, elements int)

//go:noescape
func x87Divide(acc *byte, elements, n int)

const (
	block      = 64 // bytes; for wide types bytes of the accumulator
	longdouble = 16 // bytes; the last 6 are padding, never read and never written
)

// scalar is the kernel set that runs on every amd64 machine.
func scalar() kernelsByType {
	t := portable
	ld := kernels{
		add:    blocks(longdouble, longdouble, x87Add, func(_, _ []byte) {}),
		divide: dividing(longdouble, x87Divide, func([]byte, int) {}),
	}
	t[wire.LongDouble], t[wire.CLongDouble] = ld, ld
	return t
}

// vector is the fastest kernel set of this machine.
func vector() kernelsByType {
	t := scalar()
	if !cpu.X86.HasAVX2 || !cpu.X86.HasF16C {
		return t
	}
	for d, body := range map[wire.DType]func(dst, src *byte, blocks int){
		wire.Bool: avxOr,
		wire.Int8: avxAddU8, wire.Int16: avxAddU16, wire.Int32: avxAddU32, wire.Int64: avxAddU64,
		wire.Uint8: avxAddU8, wire.Uint16: avxAddU16, wire.Uint32: avxAddU32, wire.Uint64: avxAddU64,
		wire.Float32: avxAddF32, wire.Complex64: avxAddF32, wire.Float64: avxAddF64, wire.Complex128: avxAddF64,
	} {
		t[d].add = blocks(block, block, body, t[d].add)
	}
	for d, body := range map[wire.DType]func(acc *byte, blocks, n int){
		wire.Float16: avxDivideF32, wire.BFloat16: avxDivideF32,
		wire.Float32: avxDivideF32, wire.Complex64: avxDivideF32, wire.Float64: avxDivideF64, wire.Complex128: avxDivideF64,
	} {
		t[d].divide = dividing(block, body, t[d].divide)
	}
	f32, f64 := &t[wire.Float32].updates, &t[wire.Float64].updates
	*f32 = vectorUpdates(avxCombineF32, avxAdamF32, avxAdagradF32, *f32)
	*f64 = vectorUpdates(avxCombineF64, avxAdamF64, avxAdagradF64, *f64)
	f16, bf16 := &t[wire.Float16], &t[wire.BFloat16]
	f16.widen = blocks(block, block/2, avxWidenF16, f16.widen)
	f16.addWide = blocks(block, block/2, avxAddWideF16, f16.addWide)
	f16.narrow = blocks(block/2, block, avxNarrowF16, f16.narrow)
	bf16.widen = blocks(block, block/2, avxWidenBF16, bf16.widen)
	bf16.addWide = blocks(block, block/2, avxAddWideBF16, bf16.addWide)
	bf16.narrow = blocks(block/2, block, avxNarrowBF16, bf16.narrow)
	return t
}

// blocks makes a kernel: body processes the whole blocks, dstBlock and srcBlock bytes each, and rest the remaining bytes.
func blocks(dstBlock, srcBlock int, body func(dst, src *byte, blocks int), rest func(dst, src []byte)) func(dst, src []byte) {
	return func(dst, src []byte) {
		n := min(len(dst)/dstBlock, len(src)/srcBlock)
		body(unsafe.SliceData(dst), unsafe.SliceData(src), n)
		rest(dst[n*dstBlock:], src[n*srcBlock:])
	}
}

// dividing is the same as blocks, for division.
func dividing(block int, body func(acc *byte, blocks, n int), rest func(acc []byte, n int)) func(acc []byte, n int) {
	return func(acc []byte, n int) {
		whole := len(acc) / block
		body(unsafe.SliceData(acc), whole, n)
		rest(acc[whole*block:], n)
	}
}
