package aggregate

import (
	"fmt"
	"math/bits"

	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// Rows is a set of rows of one packet of a table.
type Rows struct {
	first int      // bytes at the packet's start: a contribution of all its rows, which does not say how long a row is
	row   int      // bytes of a row; 0 while set is empty
	set   []uint64 // a bit for each row of the packet
}

// Each calls f with the byte ranges of the packet that the rows of the set occupy, in ascending order and without overlap.
// Neighbouring rows share one range.
func (r *Rows) Each(f func(from, to int)) {
	from, to := 0, r.first
	for i, word := range r.set {
		for ; word != 0; word &= word - 1 {
			at := (i*64 + bits.TrailingZeros64(word)) * r.row
			if at > to {
				if to > from {
					f(from, to)
				}
				from = at
			}
			to = max(to, at+r.row)
		}
	}
	if to > from {
		f(from, to)
	}
}

// add adds the rows, of row bytes each, that occupy the bytes from up to to.
func (r *Rows) add(row, from, to int) {
	if need := (wire.PacketBytes/row + 63) / 64; len(r.set) < need {
		r.set = append(r.set, make([]uint64, need-len(r.set))...)
	}
	r.row = row
	for n := from / row; n < to/row; n++ {
		r.set[n/64] |= 1 << (n % 64)
	}
}

func (r *Rows) cleared() Rows {
	clear(r.set)
	return Rows{set: r.set}
}

// addRows adds the rows of a contribution to a slot's sum and to its set of rows.
func (t *Slots) addRows(s *slot, h *wire.Header, payload []byte) error {
	if s.acc == nil {
		s.acc = t.pool.Get(reduce.AccBytes(h.DType, wire.PacketBytes))
		clear(s.acc.Bytes)
	}
	return s.eachRow(h, payload, func(at int, elements []byte) { AddAt(h.DType, s.acc.Bytes, at, elements) })
}

// eachRow adds the rows of a contribution to a slot's set of rows, and calls f for their elements as EachRow does. After an
// error f may have been called for a part of them.
func (s *slot) eachRow(h *wire.Header, payload []byte, f func(at int, elements []byte)) error {
	row := h.RowBytes()
	if row > 0 && s.rows.row > 0 && s.rows.row != row {
		return fmt.Errorf("tensor %d packet %d: this worker sent rows of %d bytes, others rows of %d", h.Tensor, h.Packet, row, s.rows.row)
	}
	if row == 0 {
		s.rows.first = max(s.rows.first, int(h.RawLen))
	}
	return h.EachRow(payload, func(at int, elements []byte) {
		if row > 0 {
			s.rows.add(row, at, at+len(elements))
		}
		f(at, elements)
	})
}

// AddAt adds elements to an accumulator of a packet, at the place of the packet's byte at. The accumulator has elements of
// type d, or of the wider type in which d is summed.
func AddAt(d wire.DType, acc []byte, at int, elements []byte) {
	if !reduce.Wide(d) {
		reduce.Add(d, acc[at:][:len(elements)], elements)
		return
	}
	reduce.AddWide(d, acc[reduce.AccBytes(d, at):][:reduce.AccBytes(d, len(elements))], elements)
}

// Pack appends to payload the rows of the set, of the elements of a whole packet, as wire.CodecRows has them. raw is the number of bytes of the
// elements. The first rows of a packet need no numbers if they are the only ones.
func (r *Rows) Pack(elements, payload []byte) (packed []byte, raw int) {
	start, end := len(payload), 0
	r.Each(func(from, to int) {
		payload = append(payload, elements[from:to]...)
		end = to
	})
	if raw = len(payload) - start; raw == end {
		return payload, raw
	}
	r.Each(func(from, to int) {
		for n := from / r.row; n < to/r.row; n++ {
			payload = wire.AppendRow(payload, n)
		}
	})
	return payload, raw
}

// SpreadRows is the reverse of Pack: the elements of a whole packet, zeros where no row is, and the set of rows. The header has been checked, and the
// payload by EachRow.
func SpreadRows(pool *Pool, h *wire.Header, payload []byte) (elements *Buffer, set Rows) {
	elements = pool.Get(wire.PacketBytes)
	clear(elements.Bytes)
	row := h.RowBytes()
	if row == 0 {
		set.first = int(h.RawLen)
	}
	_ = h.EachRow(payload, func(at int, rows []byte) {
		if row > 0 {
			set.add(row, at, at+len(rows))
		}
		copy(elements.Bytes[at:], rows)
	})
	return elements, set
}
