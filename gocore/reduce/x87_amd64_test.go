//go:build amd64 && !purego

package reduce

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"fptps/gocore/wire"
)

// The reference for longdouble: big.Float's arithmetic with x87's 15 bits of exponent and 64 of significand. The first bit of the
// significand is explicit; a number above the denormals without it is invalid and treated as NaN.

func init() {
	m := model{16, drawX87, sumX87, quotientX87, nanX87}
	models[wire.LongDouble], models[wire.CLongDouble] = m, m
}

func TestLongDoubleIsSupported(t *testing.T) {
	withEachKernelSet(t, func(t *testing.T) {
		if !Supported(wire.LongDouble) || !Supported(wire.CLongDouble) {
			t.Error("longdouble is not supported on amd64")
		}
	})
}

const (
	maxExponent = 0x7fff
	bias        = 16383 + 63 // the value is significand * 2^(exponent-bias)
	firstBit    = 1 << 63
	quietBit    = 1 << 62
)

type x87 struct {
	negative    bool
	exponent    int
	significand uint64
}

var x87NaN = x87{true, maxExponent, firstBit | quietBit}

func decodeX87(a []byte) x87 {
	head := le.Uint16(a[8:])
	return x87{head>>15 != 0, int(head & maxExponent), le.Uint64(a)}
}

// encode returns x with the padding of a.
func (x x87) encode(a []byte) []byte {
	head := uint16(x.exponent)
	if x.negative {
		head |= 1 << 15
	}
	b := le.AppendUint16(le.AppendUint64(nil, x.significand), head)
	return append(b, a[10:]...)
}

func (x x87) isNaN() bool {
	invalid := x.exponent != 0 && x.significand&firstBit == 0
	return invalid || x.exponent == maxExponent && x.significand != firstBit
}

func (x x87) isInf() bool { return x.exponent == maxExponent && x.significand == firstBit }

func (x x87) value() *big.Float {
	v := new(big.Float).SetPrec(64).SetUint64(x.significand)
	v.SetMantExp(v, max(x.exponent, 1)-bias)
	if x.negative {
		v.Neg(v)
	}
	return v
}

// round is the x87 number nearest to v; v has enough digits for correct rounding.
func round(v *big.Float) x87 {
	x := x87{negative: v.Signbit()}
	if v.Sign() == 0 {
		return x
	}
	// Denormals have fewer digits.
	digits := min(64, 64+v.MantExp(nil)-64-(1-bias))
	r := new(big.Float).SetPrec(uint(digits)).Set(v)
	x.exponent = max(r.MantExp(nil)-64+bias, 1)
	if x.exponent >= maxExponent {
		return x87{x.negative, maxExponent, firstBit}
	}
	r.SetMantExp(r, bias-x.exponent)
	x.significand, _ = r.Abs(r).Uint64()
	if x.significand&firstBit == 0 {
		x.exponent = 0
	}
	return x
}

func sumX87(a, b []byte) []byte {
	x, y := decodeX87(a), decodeX87(b)
	switch {
	case x.isNaN() || y.isNaN() || x.isInf() && y.isInf() && x.negative != y.negative:
		return x87NaN.encode(a)
	case x.isInf():
		return a
	case y.isInf():
		return y.encode(a)
	}
	return round(new(big.Float).SetPrec(40000).Add(x.value(), y.value())).encode(a)
}

func quotientX87(a []byte, n int) []byte {
	x := decodeX87(a)
	if x.isNaN() {
		return x87NaN.encode(a)
	}
	if x.isInf() {
		return a
	}
	return round(new(big.Float).SetPrec(300).Quo(x.value(), big.NewFloat(float64(n)))).encode(a)
}

func nanX87(a []byte) (is, quiet bool) {
	x := decodeX87(a)
	return x.isNaN(), x.significand>>62 == 3
}

func drawX87(r *rand.Rand, part []byte) {
	drawBits(r, part) // the padding too; the number is often one of the invalid
	special := [...]x87{
		{}, {significand: firstBit - 1}, {significand: quietBit + 1}, {exponent: 1, significand: firstBit}, {exponent: 16383, significand: firstBit},
		{exponent: maxExponent - 1, significand: 1<<64 - 1}, {exponent: maxExponent, significand: firstBit},
		{exponent: maxExponent, significand: firstBit + 1}, {exponent: maxExponent, significand: firstBit | quietBit}, {exponent: 7, significand: 1},
	}
	x := x87{exponent: 16383 - 12 + r.IntN(24), significand: r.Uint64() | firstBit}
	switch r.IntN(3) {
	case 0:
		x = special[r.IntN(len(special))]
	case 1:
		return
	}
	x.negative = r.IntN(2) == 0
	copy(part, x.encode(part))
}
