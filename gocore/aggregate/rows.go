package aggregate

import (
	"fmt"
	"math/bits"

	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// Rows is a set of rows of one packet of a table.
type Rows struct {
	first int      // bytes at the packet's start that are rows of the set, whatever their size
	row   int      // bytes of a row; 0 while set is empty
	set   []uint64 // by number
}

// Each calls f with where rows of the set lie in the packet, from and to in bytes, in order and not overlapping. Rows that
// follow each other come together.
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

// add puts the rows of one size that lie from from to to in the set.
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

// addRows adds the rows of a contribution to a slot, and notes which they are.
func (t *Table) addRows(s *slot, h *wire.Header, payload []byte) error {
	if s.acc == nil {
		s.acc = t.pool.Get(reduce.AccBytes(h.DType, wire.PacketBytes))
		clear(s.acc.Bytes)
	}
	row := h.RowBytes()
	if row > 0 && s.rows.row > 0 && s.rows.row != row {
		return fmt.Errorf("tensor %d packet %d: rows of %d bytes, others sent rows of %d", h.Tensor, h.Packet, row, s.rows.row)
	}
	if row == 0 {
		s.rows.first = max(s.rows.first, int(h.RawLen))
	}
	return h.EachRow(payload, func(at int, elements []byte) {
		if row > 0 {
			s.rows.add(row, at, at+len(elements))
		}
		AddAt(h.DType, s.acc.Bytes, at, elements)
	})
}

// AddAt adds elements to what an accumulator, of the type's own or of the wider one in which it is summed, has for them at
// at bytes of a packet.
func AddAt(d wire.DType, acc []byte, at int, elements []byte) {
	if !reduce.Wide(d) {
		reduce.Add(d, acc[at:][:len(elements)], elements)
		return
	}
	reduce.AddWide(d, acc[reduce.AccBytes(d, at):][:reduce.AccBytes(d, len(elements))], elements)
}
