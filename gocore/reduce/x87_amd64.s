//go:build amd64 && !purego

#include "textflag.h"

// longdouble on the x87 unit: numbers of 10 bytes at a stride of 16. Linux starts every thread with the unit rounding to its
// full 64 bits of fraction and with all exceptions masked. The register stack is empty on return.

// func x87Add(dst, src *byte, elements int)
TEXT ·x87Add(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ elements+16(FP), CX

loop:
	SUBQ   $1, CX
	JLT    done
	FMOVX  (SI), F0
	FMOVX  (DI), F0
	FADDDP F0, F1
	FMOVXP F0, (DI)
	ADDQ   $16, SI
	ADDQ   $16, DI
	JMP    loop

done:
	RET

// func x87Divide(acc *byte, elements, n int)
TEXT ·x87Divide(SB), NOSPLIT, $0-24
	MOVQ  acc+0(FP), DI
	MOVQ  elements+8(FP), CX
	FMOVV n+16(FP), F0       // stays below the elements

loop:
	SUBQ   $1, CX
	JLT    done
	FMOVX  (DI), F0
	FDIVD  F1, F0
	FMOVXP F0, (DI)
	ADDQ   $16, DI
	JMP    loop

done:
	FMOVDP F0, F0            // drop n
	RET
