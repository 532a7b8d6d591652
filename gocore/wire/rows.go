package wire

import (
	"encoding/binary"
	"fmt"
)

// A table is a tensor whose single rows are pushed and pulled. No row crosses packets: each packet holds RowsPerPacket rows, and
// the rest is padding, which is never sent. A payload of CodecRows holds rows of one packet: their elements (RawLen bytes), then
// the rows' numbers within the packet, ascending, as uint16s. Without numbers they are the first rows of the packet.

// RowsPerPacket is the number of rows of the given size in a packet: as many as fit, such that all but one also fit together with
// their numbers.
func RowsPerPacket(row int) int { return min(PacketBytes/row, 1+PacketBytes/(row+rowNumberBytes)) }

const rowNumberBytes = 2

// AppendRow appends the number of a row to the payload of CodecRows.
func AppendRow(payload []byte, number int) []byte {
	return binary.LittleEndian.AppendUint16(payload, uint16(number))
}

// rows is the number of rows that a CodecRows payload names by number.
func (h *Header) rows() int {
	if h.Kind == Ask {
		return int(h.WireLen) / rowNumberBytes
	}
	return int(h.WireLen-h.RawLen) / rowNumberBytes
}

// RowBytes is the size of the rows that a contribution names by number; 0 if it names none.
func (h *Header) RowBytes() int {
	if n := h.rows(); n > 0 {
		return int(h.RawLen) / n
	}
	return 0
}

// EachRow calls f with the elements of the rows in a payload, and their offset in the packet; successive rows are passed
// together. An error means that the payload is invalid; f may have been called for a part of it.
func (h *Header) EachRow(payload []byte, f func(at int, elements []byte)) error {
	row := h.RowBytes()
	if row == 0 {
		f(0, payload[:h.RawLen])
		return nil
	}
	return eachRun(payload[h.RawLen:], row, func(at, from, end int) { f(at, payload[from:end]) })
}

// EachAsked calls f with the offsets in the packet and in the answer of the rows that an AskRows names.
func (h *Header) EachAsked(payload []byte, f func(at, from, end int)) error {
	return eachRun(payload, int(h.RawLen)/h.rows(), f)
}

// eachRun calls f for each run of successive rows: at is their offset in the packet; from and end are their range among the
// named rows.
func eachRun(numbers []byte, row int, f func(at, from, end int)) error {
	number := func(i int) int { return int(binary.LittleEndian.Uint16(numbers[rowNumberBytes*i:])) }
	n := len(numbers) / rowNumberBytes
	for first := 0; first < n; {
		last := first
		for last+1 < n && number(last+1) == number(last)+1 {
			last++
		}
		if (number(last)+1)*row > PacketBytes || last+1 < n && number(last+1) <= number(last) {
			return fmt.Errorf("row %d of %d bytes is beyond the packet, or rows do not ascend", number(last), row)
		}
		f(number(first)*row, first*row, (last+1)*row)
		first = last + 1
	}
	return nil
}

// checkRows is checkKind for tables.
func (h *Header) checkRows() error {
	element := uint32(h.DType.Size())
	switch kind := h.Kind; {
	case kind == Contrib, kind == Replica && h.contributes() && h.WireLen > 0:
		if element == 0 || h.Run != 1 || h.RawLen == 0 || h.WireLen < h.RawLen || (h.WireLen-h.RawLen)%rowNumberBytes != 0 || h.RawLen%element != 0 {
			return fmt.Errorf("rows of %v: %d bytes (%d on the wire), run %d", h.DType, h.RawLen, h.WireLen, h.Run)
		}
		if n := uint32(h.rows()); n > 0 && (h.RawLen%n != 0 || h.RawLen/n%element != 0) {
			return fmt.Errorf("%d rows of %v in %d bytes", n, h.DType, h.RawLen)
		}
	case kind == Empty, kind == Sum, kind == Replica && h.contributes():
		if element == 0 || h.WireLen != 0 || h.Run == 0 || h.Run > MaxRun || h.RawLen != PacketBytes {
			return fmt.Errorf("%d packets without rows of %v, of %d bytes (%d on the wire)", h.Run, h.DType, h.RawLen, h.WireLen)
		}
	case kind == Ask:
		n := uint32(h.rows())
		if h.Op != AskRows || h.Flags != 0 || h.DType != 0 || h.Run != 1 || n == 0 || h.WireLen%rowNumberBytes != 0 || h.RawLen == 0 || h.RawLen%n != 0 {
			return fmt.Errorf("ask for %d rows, %d bytes, run %d", n, h.RawLen, h.Run)
		}
	default:
		return fmt.Errorf("rows in a packet of kind %d", h.Kind)
	}
	return nil
}
