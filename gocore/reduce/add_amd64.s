//go:build amd64 && !purego

#include "textflag.h"

// Sums and divisions by AVX2, in blocks of 64 bytes. Loads and stores are the unaligned ones.

// SUM is the loop of a kernel with dst in DI, src in SI, the number of blocks in CX. dst is OP's first operand, so that the sum
// of two NaNs is dst's, as in Go.
#define SUM(OP) \
loop: \
	SUBQ    $1, CX         \
	JLT     done           \
	VMOVDQU (DI), Y0       \
	VMOVDQU 32(DI), Y1     \
	OP      (SI), Y0, Y0   \
	OP      32(SI), Y1, Y1 \
	VMOVDQU Y0, (DI)       \
	VMOVDQU Y1, 32(DI)     \
	ADDQ    $64, SI        \
	ADDQ    $64, DI        \
	JMP     loop           \
done: \
	VZEROUPPER             \
	RET

// DIVIDE is the loop of a kernel with acc in DI, the number of blocks in CX, the divisor in every element of Y2.
#define DIVIDE(OP) \
loop: \
	SUBQ    $1, CX         \
	JLT     done           \
	VMOVDQU (DI), Y0       \
	VMOVDQU 32(DI), Y1     \
	OP      Y2, Y0, Y0     \
	OP      Y2, Y1, Y1     \
	VMOVDQU Y0, (DI)       \
	VMOVDQU Y1, 32(DI)     \
	ADDQ    $64, DI        \
	JMP     loop           \
done: \
	VZEROUPPER             \
	RET

// func avxAddU8(dst, src *byte, blocks int)
TEXT ·avxAddU8(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ blocks+16(FP), CX
	SUM(VPADDB)

// func avxAddU16(dst, src *byte, blocks int)
TEXT ·avxAddU16(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ blocks+16(FP), CX
	SUM(VPADDW)

// func avxAddU32(dst, src *byte, blocks int)
TEXT ·avxAddU32(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ blocks+16(FP), CX
	SUM(VPADDD)

// func avxAddU64(dst, src *byte, blocks int)
TEXT ·avxAddU64(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ blocks+16(FP), CX
	SUM(VPADDQ)

// func avxAddF32(dst, src *byte, blocks int)
TEXT ·avxAddF32(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ blocks+16(FP), CX
	SUM(VADDPS)

// func avxAddF64(dst, src *byte, blocks int)
TEXT ·avxAddF64(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ blocks+16(FP), CX
	SUM(VADDPD)

// func avxOr(dst, src *byte, blocks int)
// A byte of dst becomes min(dst|src, 1).
TEXT ·avxOr(SB), NOSPLIT, $0-24
	MOVQ         dst+0(FP), DI
	MOVQ         src+8(FP), SI
	MOVQ         blocks+16(FP), CX
	MOVL         $0x01010101, AX
	VMOVD        AX, X2
	VPBROADCASTD X2, Y2

loop:
	SUBQ    $1, CX
	JLT     done
	VMOVDQU (DI), Y0
	VMOVDQU 32(DI), Y1
	VPOR    (SI), Y0, Y0
	VPOR    32(SI), Y1, Y1
	VPMINUB Y2, Y0, Y0
	VPMINUB Y2, Y1, Y1
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	ADDQ    $64, SI
	ADDQ    $64, DI
	JMP     loop

done:
	VZEROUPPER
	RET

// func avxDivideF32(acc *byte, blocks, n int)
TEXT ·avxDivideF32(SB), NOSPLIT, $0-24
	MOVQ         acc+0(FP), DI
	MOVQ         blocks+8(FP), CX
	VXORPS       X2, X2, X2
	VCVTSI2SSQ   n+16(FP), X2, X2
	VBROADCASTSS X2, Y2
	DIVIDE(VDIVPS)

// func avxDivideF64(acc *byte, blocks, n int)
TEXT ·avxDivideF64(SB), NOSPLIT, $0-24
	MOVQ         acc+0(FP), DI
	MOVQ         blocks+8(FP), CX
	VXORPS       X2, X2, X2
	VCVTSI2SDQ   n+16(FP), X2, X2
	VBROADCASTSD X2, Y2
	DIVIDE(VDIVPD)
