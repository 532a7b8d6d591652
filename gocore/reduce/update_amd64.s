//go:build amd64 && !purego

#include "textflag.h"

// Optimisers' steps with AVX2, in blocks of 64 bytes. The operations and their order are those of the portable kernels; none is
// fused. SPREAD broadcasts a float64 from memory, converted to the kernel's type.

#define SPREADF32(FROM, X, Y) \
	VCVTSD2SS    FROM, X, X \
	VBROADCASTSS X, Y

#define SPREADF64(FROM, X, Y) \
	VBROADCASTSD FROM, Y

// COMBINE has dst in DI, x in SI, y in DX, the number of blocks in CX, a in every element of Y2.
#define COMBINE(MUL, ADD) \
loop: \
	SUBQ    $1, CX         \
	JLT     done           \
	MUL     (DX), Y2, Y0   \
	MUL     32(DX), Y2, Y1 \
	ADD     (SI), Y0, Y0   \
	ADD     32(SI), Y1, Y1 \
	VMOVDQU Y0, (DI)       \
	VMOVDQU Y1, 32(DI)     \
	ADDQ    $64, SI        \
	ADDQ    $64, DX        \
	ADDQ    $64, DI        \
	JMP     loop           \
done: \
	VZEROUPPER             \
	RET

// ADAMHALF processes 32 bytes at OFFSET. dst is in DI, gradient in SI, weights in DX, mean in R8, square in R9; of AdamStep Mean is in
// Y15, Decay in Y14, Square in Y13, Root in Y12, Eps in Y11, Rate in Y10, Keep in Y9.
#define ADAMHALF(OFFSET, MUL, ADD, SUB, DIV, SQRT) \
	VMOVDQU OFFSET(R8), Y0      \
	VMOVDQU OFFSET(SI), Y1      \
	SUB     Y0, Y1, Y2          \
	MUL     Y2, Y15, Y2         \
	ADD     Y2, Y0, Y0          \
	VMOVDQU Y0, OFFSET(R8)      \
	MUL     Y1, Y13, Y2         \
	MUL     Y1, Y2, Y2          \
	MUL     OFFSET(R9), Y14, Y3 \
	ADD     Y2, Y3, Y3          \
	VMOVDQU Y3, OFFSET(R9)      \
	SQRT    Y3, Y3              \
	DIV     Y12, Y3, Y3         \
	ADD     Y11, Y3, Y3         \
	MUL     Y0, Y10, Y0         \
	DIV     Y3, Y0, Y0          \
	MUL     OFFSET(DX), Y9, Y4  \
	ADD     Y0, Y4, Y4          \
	VMOVDQU Y4, OFFSET(DI)

#define ADAM(SPREAD, MUL, ADD, SUB, DIV, SQRT) \
	MOVQ dst+0(FP), DI       \
	MOVQ gradient+8(FP), SI  \
	MOVQ weights+16(FP), DX  \
	MOVQ mean+24(FP), R8     \
	MOVQ square+32(FP), R9   \
	MOVQ blocks+40(FP), CX   \
	SPREAD(s_Mean+48(FP), X15, Y15) \
	SPREAD(s_Decay+56(FP), X14, Y14) \
	SPREAD(s_Square+64(FP), X13, Y13) \
	SPREAD(s_Root+72(FP), X12, Y12) \
	SPREAD(s_Eps+80(FP), X11, Y11) \
	SPREAD(s_Rate+88(FP), X10, Y10) \
	SPREAD(s_Keep+96(FP), X9, Y9) \
loop: \
	SUBQ $1, CX              \
	JLT  done                \
	ADAMHALF(0, MUL, ADD, SUB, DIV, SQRT)  \
	ADAMHALF(32, MUL, ADD, SUB, DIV, SQRT) \
	ADDQ $64, DI             \
	ADDQ $64, SI             \
	ADDQ $64, DX             \
	ADDQ $64, R8             \
	ADDQ $64, R9             \
	JMP  loop                \
done: \
	VZEROUPPER               \
	RET

// ADAGRADHALF processes 32 bytes at OFFSET. dst is in DI, gradient in SI, weights in DX, squares in R8; the rate is in Y15, eps in Y14.
#define ADAGRADHALF(OFFSET, MUL, ADD, DIV, SQRT) \
	VMOVDQU OFFSET(SI), Y0     \
	MUL     Y0, Y0, Y1         \
	ADD     OFFSET(R8), Y1, Y1 \
	VMOVDQU Y1, OFFSET(R8)     \
	SQRT    Y1, Y1             \
	ADD     Y14, Y1, Y1        \
	MUL     Y0, Y15, Y0        \
	DIV     Y1, Y0, Y0         \
	ADD     OFFSET(DX), Y0, Y0 \
	VMOVDQU Y0, OFFSET(DI)

#define ADAGRAD(SPREAD, MUL, ADD, DIV, SQRT) \
	MOVQ dst+0(FP), DI              \
	MOVQ gradient+8(FP), SI         \
	MOVQ weights+16(FP), DX         \
	MOVQ squares+24(FP), R8         \
	MOVQ blocks+32(FP), CX          \
	SPREAD(rate+40(FP), X15, Y15)   \
	SPREAD(eps+48(FP), X14, Y14)    \
loop: \
	SUBQ $1, CX                     \
	JLT  done                       \
	ADAGRADHALF(0, MUL, ADD, DIV, SQRT)  \
	ADAGRADHALF(32, MUL, ADD, DIV, SQRT) \
	ADDQ $64, DI                    \
	ADDQ $64, SI                    \
	ADDQ $64, DX                    \
	ADDQ $64, R8                    \
	JMP  loop                       \
done: \
	VZEROUPPER                      \
	RET

// func avxCombineF32(dst, x, y *byte, blocks int, a float64)
TEXT ·avxCombineF32(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), DX
	MOVQ blocks+24(FP), CX
	SPREADF32(a+32(FP), X2, Y2)
	COMBINE(VMULPS, VADDPS)

// func avxCombineF64(dst, x, y *byte, blocks int, a float64)
TEXT ·avxCombineF64(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), DX
	MOVQ blocks+24(FP), CX
	SPREADF64(a+32(FP), X2, Y2)
	COMBINE(VMULPD, VADDPD)

// func avxAdamF32(dst, gradient, weights, mean, square *byte, blocks int, s AdamStep)
TEXT ·avxAdamF32(SB), NOSPLIT, $0-104
	ADAM(SPREADF32, VMULPS, VADDPS, VSUBPS, VDIVPS, VSQRTPS)

// func avxAdamF64(dst, gradient, weights, mean, square *byte, blocks int, s AdamStep)
TEXT ·avxAdamF64(SB), NOSPLIT, $0-104
	ADAM(SPREADF64, VMULPD, VADDPD, VSUBPD, VDIVPD, VSQRTPD)

// func avxAdagradF32(dst, gradient, weights, squares *byte, blocks int, rate, eps float64)
TEXT ·avxAdagradF32(SB), NOSPLIT, $0-56
	ADAGRAD(SPREADF32, VMULPS, VADDPS, VDIVPS, VSQRTPS)

// func avxAdagradF64(dst, gradient, weights, squares *byte, blocks int, rate, eps float64)
TEXT ·avxAdagradF64(SB), NOSPLIT, $0-56
	ADAGRAD(SPREADF64, VMULPD, VADDPD, VDIVPD, VSQRTPD)
