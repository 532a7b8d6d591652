package aggregate

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"fptps/gocore/wire"
)

// someRows is a contribution of rows of int32: each element of row n is value*n.
func someRows(round uint64, row int, value int32, numbers []int) (wire.Header, []byte) {
	var payload []byte
	for _, n := range numbers {
		for range row / 4 {
			payload = binary.LittleEndian.AppendUint32(payload, uint32(value*int32(n)))
		}
	}
	h := wire.Header{Kind: wire.Contrib, Codec: wire.CodecRows, DType: wire.Int32, Run: 1, Round: round, RawLen: uint32(len(payload))}
	for _, n := range numbers {
		payload = wire.AppendRow(payload, n)
	}
	h.WireLen = uint32(len(payload))
	return h, payload
}

// TestSumsOfRows compares sums of random rows of several workers with maps.
func TestSumsOfRows(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		workers, row := 1+rng.IntN(4), 4*(1+rng.IntN(20))
		pool := NewPool()
		slots := NewSlots(NewMembers(workers), pool, time.Time{})
		per := wire.RowsPerPacket(row)
		for round := range uint64(4) {
			want := map[int]int32{}
			var sum Sum
			for rank := range workers {
				var numbers []int
				for n := rng.IntN(per); n < per && len(numbers) < per-1; n += 1 + rng.IntN(1+rng.IntN(per)) {
					numbers = append(numbers, n)
				}
				if rng.IntN(4) == 0 {
					numbers = nil
				}
				for _, n := range numbers {
					want[n] += int32(rank+1) * int32(n)
				}
				h := wire.Header{Kind: wire.Empty, Codec: wire.CodecRows, DType: wire.Int32, Run: 1, Round: round, RawLen: wire.PacketBytes}
				var sums []Sum
				var err error
				if numbers == nil {
					sums, err = slots.AddEmpty(rank, &h, nil)
				} else {
					var payload []byte
					h, payload = someRows(round, row, int32(rank+1), numbers)
					var done bool
					if sum, done, err = slots.Add(rank, &h, payload, nil); done {
						sums = []Sum{sum}
					}
				}
				if err != nil || len(sums) == 1 != (rank == workers-1) {
					t.Fatalf("error %v, %d sums", err, len(sums))
				}
				if len(sums) == 1 {
					sum = sums[0]
				}
			}
			if h := sum.Header; h.Codec != wire.CodecRows || h.RawLen != wire.PacketBytes {
				t.Fatalf("%+v", h)
			}
			if (sum.Buffer == nil) != (len(want) == 0) {
				t.Fatalf("%d rows, buffer %v", len(want), sum.Buffer)
			}
			last := -1
			sum.Rows.Each(func(from, to int) {
				if from <= last || from%row != 0 || to%row != 0 || to <= from {
					t.Fatalf("rows from %d to %d after %d, of %d bytes", from, to, last, row)
				}
				last = to
				for at := from; at < to; at += 4 {
					value, touched := want[at/row]
					if got := int32(binary.LittleEndian.Uint32(sum.Buffer.Bytes[at:])); !touched || got != value {
						t.Fatalf("row %d has %d, expected %d (%v)", at/row, got, value, touched)
					}
				}
				for n := from / row; n < to/row; n++ {
					delete(want, n)
				}
			})
			if len(want) > 0 {
				t.Fatalf("rows %v are missing", want)
			}
			if sum.Buffer != nil {
				sum.Buffer.Release()
			}
		}
		if pool.Lent() != 0 {
			t.Fatalf("%d buffers are lent", pool.Lent())
		}
	}
}

// TestRowsOfSumsThatOneCallCompletes: each sum of a run that an Empty completes has the rows of its own packet, also where
// the packet after it begins its round in the same call.
func TestRowsOfSumsThatOneCallCompletes(t *testing.T) {
	slots := NewSlots(NewMembers(2), NewPool(), time.Time{})
	for round := range uint64(3) {
		for packet := uint32(0); packet < 8; packet += 2 {
			h, payload := someRows(round+1, 8, 1, []int{int(packet) + 1})
			h.Packet = packet
			if _, _, err := slots.Add(0, &h, payload, nil); err != nil {
				t.Fatal(err)
			}
		}
		h := wire.Header{Kind: wire.Empty, Codec: wire.CodecRows, DType: wire.Int32, Run: 8, Round: round + 1, RawLen: wire.PacketBytes}
		sums, err := slots.AddEmpty(1, &h, nil)
		if err != nil || len(sums) != 4 {
			t.Fatalf("%d sums, %v", len(sums), err)
		}
		for _, sum := range sums {
			var rows []int
			sum.Rows.Each(func(from, to int) { rows = append(rows, from/8, to/8) })
			if want := int(sum.Header.Packet) + 1; len(rows) != 2 || rows[0] != want || rows[1] != want+1 {
				t.Errorf("round %d, packet %d: rows %v", round+1, sum.Header.Packet, rows)
			}
			sum.Buffer.Release()
		}
		for packet := uint32(1); packet < 8; packet += 2 {
			h := wire.Header{Kind: wire.Empty, Codec: wire.CodecRows, DType: wire.Int32, Packet: packet, Run: 1, Round: round + 1, RawLen: wire.PacketBytes}
			if _, err := slots.AddEmpty(0, &h, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A whole packet, without numbers, and single rows of another worker.
func TestWholePacketAndRows(t *testing.T) {
	slots := NewSlots(NewMembers(2), NewPool(), time.Time{})
	h, payload := someRows(0, 8, 1, []int{0, 1, 2})
	h.WireLen = h.RawLen
	if _, _, err := slots.Add(0, &h, payload[:h.RawLen], nil); err != nil {
		t.Fatal(err)
	}
	h, payload = someRows(0, 8, 10, []int{2, 3, 9})
	sum, done, err := slots.Add(1, &h, payload, nil)
	if !done || err != nil {
		t.Fatal(done, err)
	}
	var spans [][2]int
	sum.Rows.Each(func(from, to int) { spans = append(spans, [2]int{from, to}) })
	if len(spans) != 2 || spans[0] != [2]int{0, 32} || spans[1] != [2]int{72, 80} {
		t.Errorf("rows %v", spans)
	}
	for row, want := range map[int]uint32{0: 0, 1: 1, 2: 22, 3: 30, 9: 90} {
		if got := binary.LittleEndian.Uint32(sum.Buffer.Bytes[8*row:]); got != want {
			t.Errorf("row %d has %d, expected %d", row, got, want)
		}
	}
}

func TestRowsThatDoNotFitAreRefused(t *testing.T) {
	for name, change := range map[string]func(h *wire.Header, payload []byte){
		"rows of another size":  func(h *wire.Header, _ []byte) { h.RawLen, h.WireLen = 16, 18 },
		"a row beyond":          func(_ *wire.Header, payload []byte) { payload[19] = 0xff },
		"rows in another order": func(_ *wire.Header, payload []byte) { payload[16] = 9 },
		"a plain packet": func(h *wire.Header, _ []byte) {
			h.Codec, h.RawLen = wire.CodecPlain, h.WireLen
		},
	} {
		for _, policy := range []wire.Policy{wire.Sync, wire.Ordered} { // ordered ones wait for rank 0, but are refused at once
			slots := NewSlots(NewMembers(3), NewPool(), time.Time{})
			h, payload := someRows(1, 8, 1, []int{0, 1})
			h.DType, h.Policy = wire.Float32, policy
			if _, _, err := slots.Add(1, &h, payload, nil); err != nil {
				t.Fatal(err)
			}
			payload = slices.Clone(payload)
			change(&h, payload)
			if _, _, err := slots.Add(2, &h, payload[:h.WireLen], nil); err == nil {
				t.Errorf("%s is taken (%v)", name, policy)
			}
		}
	}
}
