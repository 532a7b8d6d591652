//go:build amd64 && !purego

#include "textflag.h"

// The 16-bit floats with AVX2 and F16C, in blocks of 16 elements: 32 bytes of floats, 64 bytes of the accumulator.

// func avxWidenF16(acc, src *byte, blocks int)
TEXT ·avxWidenF16(SB), NOSPLIT, $0-24
	MOVQ acc+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ blocks+16(FP), CX

loop:
	SUBQ      $1, CX
	JLT       done
	VCVTPH2PS (SI), Y0
	VCVTPH2PS 16(SI), Y1
	VMOVDQU   Y0, (DI)
	VMOVDQU   Y1, 32(DI)
	ADDQ      $32, SI
	ADDQ      $64, DI
	JMP       loop

done:
	VZEROUPPER
	RET

// func avxAddWideF16(acc, src *byte, blocks int)
TEXT ·avxAddWideF16(SB), NOSPLIT, $0-24
	MOVQ acc+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ blocks+16(FP), CX

loop:
	SUBQ      $1, CX
	JLT       done
	VCVTPH2PS (SI), Y0
	VCVTPH2PS 16(SI), Y1
	VMOVDQU   (DI), Y2
	VMOVDQU   32(DI), Y3
	VADDPS    Y0, Y2, Y2
	VADDPS    Y1, Y3, Y3
	VMOVDQU   Y2, (DI)
	VMOVDQU   Y3, 32(DI)
	ADDQ      $32, SI
	ADDQ      $64, DI
	JMP       loop

done:
	VZEROUPPER
	RET

// func avxNarrowF16(dst, acc *byte, blocks int)
// It may work in place: block i of dst lies at half the offset of block i of acc, so that every block is read before it is overwritten.
TEXT ·avxNarrowF16(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ acc+8(FP), SI
	MOVQ blocks+16(FP), CX

loop:
	SUBQ      $1, CX
	JLT       done
	VMOVDQU   (SI), Y0
	VMOVDQU   32(SI), Y1
	VCVTPS2PH $0, Y0, (DI)   // 0: to nearest even, whatever MXCSR says
	VCVTPS2PH $0, Y1, 16(DI)
	ADDQ      $64, SI
	ADDQ      $32, DI
	JMP       loop

done:
	VZEROUPPER
	RET

// func avxWidenBF16(acc, src *byte, blocks int)
TEXT ·avxWidenBF16(SB), NOSPLIT, $0-24
	MOVQ acc+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ blocks+16(FP), CX

loop:
	SUBQ      $1, CX
	JLT       done
	VPMOVZXWD (SI), Y0
	VPMOVZXWD 16(SI), Y1
	VPSLLD    $16, Y0, Y0
	VPSLLD    $16, Y1, Y1
	VMOVDQU   Y0, (DI)
	VMOVDQU   Y1, 32(DI)
	ADDQ      $32, SI
	ADDQ      $64, DI
	JMP       loop

done:
	VZEROUPPER
	RET

// func avxAddWideBF16(acc, src *byte, blocks int)
TEXT ·avxAddWideBF16(SB), NOSPLIT, $0-24
	MOVQ acc+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ blocks+16(FP), CX

loop:
	SUBQ      $1, CX
	JLT       done
	VPMOVZXWD (SI), Y0
	VPMOVZXWD 16(SI), Y1
	VPSLLD    $16, Y0, Y0
	VPSLLD    $16, Y1, Y1
	VMOVDQU   (DI), Y2
	VMOVDQU   32(DI), Y3
	VADDPS    Y0, Y2, Y2
	VADDPS    Y1, Y3, Y3
	VMOVDQU   Y2, (DI)
	VMOVDQU   Y3, 32(DI)
	ADDQ      $32, SI
	ADDQ      $64, DI
	JMP       loop

done:
	VZEROUPPER
	RET

// ROUND converts each float32 of X to a bfloat16 in 32 bits: (x + 0x7fff + x>>16&1) >> 16. A NaN could carry into another
// value, so it becomes x>>16 with the quiet bit set. VCMPPS 3 is "unordered": NaN.
#define ROUND(X, HIGH, ODD, NAN) \
	VCMPPS    $3, X, X, NAN     \
	VPSRLD    $16, X, HIGH      \
	VPAND     Y14, HIGH, ODD    \
	VPADDD    Y13, X, X         \
	VPADDD    ODD, X, X         \
	VPSRLD    $16, X, X         \
	VPOR      Y15, HIGH, HIGH   \
	VPBLENDVB NAN, HIGH, X, X

// func avxNarrowBF16(dst, acc *byte, blocks int)
// It may work in place, as avxNarrowF16.
TEXT ·avxNarrowBF16(SB), NOSPLIT, $0-24
	MOVQ         dst+0(FP), DI
	MOVQ         acc+8(FP), SI
	MOVQ         blocks+16(FP), CX
	MOVL         $0x7fff, AX
	VMOVD        AX, X13
	VPBROADCASTD X13, Y13
	MOVL         $1, AX
	VMOVD        AX, X14
	VPBROADCASTD X14, Y14
	MOVL         $0x40, AX     // the quiet bit of a bfloat16
	VMOVD        AX, X15
	VPBROADCASTD X15, Y15

loop:
	SUBQ      $1, CX
	JLT       done
	VMOVDQU   (SI), Y0
	VMOVDQU   32(SI), Y4
	ROUND(Y0, Y1, Y2, Y3)
	ROUND(Y4, Y5, Y6, Y7)
	VPACKUSDW Y4, Y0, Y0       // lane by lane: quarters 0 and 2 are Y0's, 1 and 3 Y4's
	VPERMQ    $0xd8, Y0, Y0    // in order again
	VMOVDQU   Y0, (DI)
	ADDQ      $64, SI
	ADDQ      $32, DI
	JMP       loop

done:
	VZEROUPPER
	RET
