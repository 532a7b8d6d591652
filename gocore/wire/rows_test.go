package wire

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
)

// rowsPayload is a contribution of rows with these numbers: element i of it is i.
func rowsPayload(row int, numbers ...int) (Header, []byte) {
	h := Header{Kind: Contrib, Codec: CodecRows, DType: Uint8, Run: 1, Round: 1, RawLen: uint32(row * len(numbers))}
	var payload []byte
	for i := range row * len(numbers) {
		payload = append(payload, byte(i))
	}
	for _, n := range numbers {
		payload = AppendRow(payload, n)
	}
	h.WireLen = uint32(len(payload))
	return h, payload
}

func TestEachRow(t *testing.T) {
	for _, tc := range []struct {
		row     int
		numbers []int
		want    string
	}{
		{4, []int{0}, "[0:00010203]"},
		{4, []int{3, 4, 9}, "[12:0001020304050607 36:08090a0b]"},
		{1, []int{0, 2, 3, 5459}, "[0:00 2:0102 5459:03]"},
		{PacketBytes / 2, []int{0, 1}, ""},
		{PacketBytes / 2, []int{2}, "error"},
		{4, []int{PacketBytes / 4}, "error"},
		{4, []int{1, 1}, "error"},
		{4, []int{2, 1}, "error"},
		{4, []int{1, 2, 3, 2}, "error"},
	} {
		h, payload := rowsPayload(tc.row, tc.numbers...)
		var got []string
		err := h.EachRow(payload, func(at int, elements []byte) { got = append(got, fmt.Sprintf("%d:%x", at, elements)) })
		if text := fmt.Sprint(got); (err != nil) != (tc.want == "error") || err == nil && tc.want != "" && text != tc.want {
			t.Errorf("rows %v of %d bytes: %s, error %v; expected %s", tc.numbers, tc.row, text, err, tc.want)
		}
	}
}

func TestRowsWithoutNumbersAreTheFirst(t *testing.T) {
	h := Header{Kind: Contrib, Codec: CodecRows, DType: Uint8, Run: 1, RawLen: 8, WireLen: 8}
	var got []byte
	if err := h.EachRow([]byte("12345678"), func(at int, elements []byte) { got = append(got, elements...) }); err != nil || string(got) != "12345678" {
		t.Errorf("%q, error %v", got, err)
	}
	if h.RowBytes() != 0 {
		t.Errorf("rows of %d bytes", h.RowBytes())
	}
}

func TestEachAsked(t *testing.T) {
	var numbers []byte
	for _, n := range []int{1, 2, 7} {
		numbers = AppendRow(numbers, n)
	}
	h := Header{Kind: Ask, Op: AskRows, Codec: CodecRows, Run: 1, RawLen: 12, WireLen: uint32(len(numbers))}
	var got [][3]int
	if err := h.EachAsked(numbers, func(at, from, end int) { got = append(got, [3]int{at, from, end}) }); err != nil || !slices.Equal(got, [][3]int{{4, 0, 8}, {28, 8, 12}}) {
		t.Errorf("%v, error %v", got, err)
	}
}

// TestRowsFit: as many rows as fit in a packet, and all but one of them with their numbers.
func TestRowsFit(t *testing.T) {
	for row := 1; row <= PacketBytes; row++ {
		n := RowsPerPacket(row)
		fits := func(n int) bool { return n*row <= PacketBytes && (n-1)*(row+2) <= PacketBytes }
		if n < 1 || !fits(n) || fits(n+1) {
			t.Fatalf("%d rows of %d bytes", n, row)
		}
	}
}

// What a table's packets are, beside those in header_test.go.
func TestRowsOnTheWire(t *testing.T) {
	contrib, payload := rowsPayload(8, 1, 5)
	empty := Header{Kind: Empty, Codec: CodecRows, DType: Float32, Packet: 3, Run: 9, RawLen: PacketBytes}
	done := Header{Kind: Sum, Codec: CodecRows, DType: Float32, Packet: 3, Run: 9, RawLen: PacketBytes, Contributors: 2}
	ask := Header{Kind: Ask, Op: AskRows, Codec: CodecRows, Run: 1, RawLen: 24, WireLen: 6}
	for _, h := range []Header{contrib, empty, done, ask} {
		var back Header
		if err := back.Get(encode(h)); err != nil || back != h {
			t.Errorf("%+v came back as %+v, error %v", h, back, err)
		}
	}
	if !bytes.Equal(payload[16:], []byte{1, 0, 5, 0}) {
		t.Errorf("the numbers are %x", payload[16:])
	}
	for name, tc := range map[string]struct {
		h      Header
		change func(*Header)
	}{
		"codec beyond":            {contrib, func(h *Header) { h.Codec = codecEnd }},
		"no rows":                 {contrib, func(h *Header) { h.RawLen, h.WireLen = 0, 0 }},
		"fewer bytes than rows":   {contrib, func(h *Header) { h.WireLen = h.RawLen - 2 }},
		"half a number":           {contrib, func(h *Header) { h.WireLen++ }},
		"rows of unequal size":    {contrib, func(h *Header) { h.WireLen += 2 }},
		"part of an element":      {contrib, func(h *Header) { h.DType = LongDouble }},
		"rows of half elements":   {contrib, func(h *Header) { h.DType, h.RawLen, h.WireLen = Float64, 8, 12 }},
		"no type":                 {contrib, func(h *Header) { h.DType = 0 }},
		"contribution, run":       {contrib, func(h *Header) { h.Run = 2 }},
		"empty, payload":          {empty, func(h *Header) { h.WireLen = 4 }},
		"empty of another length": {empty, func(h *Header) { h.RawLen = 8 }},
		"empty, no type":          {empty, func(h *Header) { h.DType = 0 }},
		"empty, run 0":            {empty, func(h *Header) { h.Run = 0 }},
		"empty, run beyond":       {empty, func(h *Header) { h.Run = MaxRun + 1 }},
		"sum, payload":            {done, func(h *Header) { h.WireLen = PacketBytes }},
		"sum, out of range":       {done, func(h *Header) { h.Packet, h.Run = MaxTensorBytes/PacketBytes-1, 2 }},
		"ask for nothing":         {ask, func(h *Header) { h.WireLen = 0 }},
		"ask for no bytes":        {ask, func(h *Header) { h.RawLen = 0 }},
		"ask, rows of unequal":    {ask, func(h *Header) { h.RawLen = 25 }},
		"ask, half a number":      {ask, func(h *Header) { h.WireLen = 7 }},
		"ask for something else":  {ask, func(h *Header) { h.Op = AskClock }},
		"ask for rows, plain":     {ask, func(h *Header) { h.Codec = CodecPlain }},
		"ask, run":                {ask, func(h *Header) { h.Run = 2 }},
		"answer":                  {ask, func(h *Header) { h.Kind = Answer }},
		"missing":                 {contrib, func(h *Header) { h.Kind = Missing }},
		"goodbye":                 {done, func(h *Header) { h.Kind = Goodbye }},
	} {
		h := tc.h
		tc.change(&h)
		var back Header
		if err := back.Get(encode(h)); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func FuzzRows(f *testing.F) {
	for _, numbers := range [][]int{{0}, {1, 2, 9}, {5, 4}, {65535}} {
		h, payload := rowsPayload(8, numbers...)
		f.Add(encode(h), payload)
	}
	f.Fuzz(func(t *testing.T, header, payload []byte) {
		b := make([]byte, HeaderBytes)
		copy(b, header)
		b[0], b[1], b[2] = 'F', 'P', version
		mend(b, 60)
		var h Header
		if h.Get(b) != nil || h.Codec != CodecRows || h.WireLen == 0 || len(payload) < int(h.WireLen) {
			return
		}
		payload = payload[:h.WireLen]
		end := 0
		within := func(at, n int) {
			if at < end || n <= 0 || at+n > PacketBytes {
				t.Errorf("%d bytes at %d after %d", n, at, end)
			}
			end = at + n
		}
		if h.Kind == Ask {
			h.EachAsked(payload, func(at, from, to int) { within(at, to-from) })
		} else {
			h.EachRow(payload, func(at int, elements []byte) { within(at, len(elements)) })
		}
	})
}
