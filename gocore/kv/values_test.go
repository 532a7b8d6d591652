package kv

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// What the ranks push, and the simple model of its sum: small whole numbers, so that
// every sum and mean is exact in every element type and results are compared bit
// by bit.

// mix is a number without a pattern; equal arguments give equal numbers.
func mix(args ...int) uint64 {
	x := uint64(0x243f6a8885a308d3)
	for _, a := range args {
		x = (x ^ uint64(a)) * 0x9e3779b97f4a7c15
		x ^= x >> 29
	}
	return x
}

// value is element i of what rank pushes to key in a round: different for every
// rank, and divisible by unit, so that a mean is whole.
func value(dtype wire.DType, unit, rank int, key, round uint64, i int) int {
	m := mix(int(key), int(round), rank, i)
	switch {
	case dtype == wire.Bool:
		return int(m>>20) % 4 / 3
	case unit > 6:
		return unit * (rank + int(m>>20)%2)
	}
	return unit * (3*rank + int(m>>20)%3)
}

// unitOf is a number that can be divided by any number of workers up to this one.
func unitOf(workers int) int { return []int{1, 1, 2, 6, 12}[workers] }

// part describes the contributions to a round: the ranks that have values, and the operation.
type part struct {
	ranks   []int
	op      wire.Op
	workers int // contributors, with those of EMPTY; 0: as many as the unit of the values
}

// without is the part in a sum without dead workers. In round 0 the leader's values count.
func (p part) without(dead []int, workers int, round uint64) part {
	p.workers = workers - len(dead)
	p.ranks = slices.DeleteFunc(slices.Clone(p.ranks), func(rank int) bool { return slices.Contains(dead, rank) })
	if round == 0 {
		leader := 0
		for slices.Contains(dead, leader) {
			leader++
		}
		p.ranks = []int{leader}
	}
	return p
}

// expect is the model: element i of the sum, or mean, of a round.
func (p part) expect(dtype wire.DType, unit int, key, round uint64, i int) int {
	sum := 0
	for _, rank := range p.ranks {
		sum += value(dtype, unit, rank, key, round, i)
	}
	switch {
	case dtype == wire.Bool:
		return min(sum, 1)
	case p.op == wire.OpMean && p.workers > 0:
		return sum / p.workers
	case p.op == wire.OpMean:
		return sum / unit
	}
	return sum
}

// pushed is a whole array of values.
func pushed(dtype wire.DType, elements, unit, rank int, key, round uint64) []byte {
	b := make([]byte, 0, elements*dtype.Size())
	for i := range elements {
		b = appendElement(b, dtype, value(dtype, unit, rank, key, round, i))
	}
	return b
}

// expected is a whole array of the model's results.
func (p part) expected(dtype wire.DType, elements, unit int, key, round uint64) []byte {
	b := make([]byte, 0, elements*dtype.Size())
	for i := range elements {
		b = appendElement(b, dtype, p.expect(dtype, unit, key, round, i))
	}
	return b
}

// appendElement encodes n, at least 0 and at most 256, as one element.
func appendElement(b []byte, dtype wire.DType, n int) []byte {
	le := binary.LittleEndian
	switch dtype {
	case wire.Bool, wire.Int8, wire.Uint8:
		return append(b, byte(n))
	case wire.Int16, wire.Uint16:
		return le.AppendUint16(b, uint16(n))
	case wire.Int32, wire.Uint32:
		return le.AppendUint32(b, uint32(n))
	case wire.Int64, wire.Uint64, wire.Timedelta64:
		return le.AppendUint64(b, uint64(n))
	case wire.Float16:
		if n == 0 {
			return le.AppendUint16(b, 0)
		}
		exponent := bits.Len(uint(n)) - 1
		return le.AppendUint16(b, uint16(exponent+15)<<10|uint16(n<<(10-exponent))&0x3ff)
	case wire.BFloat16:
		return le.AppendUint16(b, uint16(math.Float32bits(float32(n))>>16))
	case wire.Float32:
		return le.AppendUint32(b, math.Float32bits(float32(n)))
	case wire.Float64:
		return le.AppendUint64(b, math.Float64bits(float64(n)))
	case wire.LongDouble:
		var mantissa uint64
		var exponent uint16
		if n > 0 {
			shift := bits.LeadingZeros64(uint64(n))
			mantissa, exponent = uint64(n)<<shift, uint16(16383+63-shift)
		}
		b = le.AppendUint64(b, mantissa)
		b = le.AppendUint16(b, exponent)
		return append(b, 0, 0, 0, 0, 0, 0)
	case wire.Complex64:
		return appendElement(appendElement(b, wire.Float32, n), wire.Float32, n)
	case wire.Complex128:
		return appendElement(appendElement(b, wire.Float64, n), wire.Float64, n)
	case wire.CLongDouble:
		return appendElement(appendElement(b, wire.LongDouble, n), wire.LongDouble, n)
	}
	panic(fmt.Sprint("no encoding of ", dtype))
}

// supported lists the element types that this processor can sum.
func supported() (all []wire.DType) {
	for _, d := range wire.DTypes() {
		if reduce.Supported(d) {
			all = append(all, d)
		}
	}
	return all
}

func canMean(d wire.DType) bool { return reduce.CanDivide(d) && reduce.Supported(d) }
