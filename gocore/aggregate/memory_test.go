package aggregate

import (
	"encoding/binary"
	"runtime"
	"slices"
	"testing"
	"time"

	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// TestLentContributions: from round 1 on, a contribution outside of the pool takes no buffer before there is another one to
// add it to, and is in the sum whatever follows.
func TestLentContributions(t *testing.T) {
	for _, dtype := range []wire.DType{wire.Uint32, wire.BFloat16} {
		pool := NewPool()
		slots := NewSlots(NewMembers(3), pool, time.Time{})
		elements := func(n int) []byte {
			if dtype == wire.BFloat16 {
				b := make([]byte, 2)
				reduce.Narrow(dtype, b, binary.LittleEndian.AppendUint32(nil, [4]uint32{0, 0x3f800000, 0x40000000, 0x40400000}[n])) // 0 to 3
				return b
			}
			return binary.LittleEndian.AppendUint32(nil, uint32(n))
		}
		header := func(packet uint32, round uint64) *wire.Header {
			raw := uint32(dtype.Size())
			return &wire.Header{Kind: wire.Contrib, DType: dtype, Packet: packet, Run: 1, Round: round, RawLen: raw, WireLen: raw}
		}
		add := func(rank int, h *wire.Header, n int, pooled bool) (Sum, bool) {
			payload := elements(n)
			var owned *Buffer
			if pooled {
				owned = pool.Get(len(payload))
				copy(owned.Bytes, payload)
				payload = owned.Bytes
			}
			sum, done, err := slots.Add(rank, h, payload, owned)
			if err != nil {
				t.Fatal(err)
			}
			return sum, done
		}
		check := func(what string, sum Sum, want int) {
			t.Helper()
			if sum.Buffer == nil || !slices.Equal(sum.Buffer.Bytes, elements(want)) {
				t.Fatalf("%v, %s: %+v, expected %d", dtype, what, sum, want)
			}
			sum.Buffer.Release()
			if pool.Lent() != 0 {
				t.Errorf("%v, %s: %d buffers are lent", dtype, what, pool.Lent())
			}
		}
		empty := func(rank int, packet uint32) []Sum {
			h := header(packet, 1)
			h.Kind, h.WireLen = wire.Empty, 0
			sums, err := slots.AddEmpty(rank, h, nil)
			if err != nil {
				t.Fatal(err)
			}
			return sums
		}

		add(0, header(0, 1), 1, false)
		empty(2, 0)
		if pool.Lent() != 0 {
			t.Errorf("%v: a buffer is lent for the first contribution", dtype)
		}
		sum, _ := add(1, header(0, 1), 2, true)
		check("then another", sum, 3)

		add(0, header(1, 1), 1, false)
		empty(1, 1)
		check("then zeros alone", empty(2, 1)[0], 1)

		add(0, header(2, 1), 1, false)
		add(1, header(2, 1), 1, false)
		sum, _ = add(2, header(2, 1), 1, false)
		check("then another outside of the pool", sum, 3)

		payload := elements(1)
		if _, _, err := slots.Add(0, header(3, 0), payload, nil); err != nil {
			t.Fatal(err)
		}
		copy(payload, elements(2))
		add(1, header(3, 0), 1, true)
		sum, _ = add(2, header(3, 0), 1, true)
		check("round 0, and the array is written to", sum, 3)
	}
}

// TestZerosOfRoundZero: an initial value of zeros takes no buffer, and one that is almost zeros does.
func TestZerosOfRoundZero(t *testing.T) {
	pool := NewPool()
	slots := NewSlots(NewMembers(1), pool, time.Time{})
	for at := range 4 * ints {
		h := contribution(0, uint32(at), 0)
		payload := make([]byte, 4*ints)
		sum, done, err := slots.Add(0, h, payload, nil)
		if !done || err != nil || sum.Buffer != nil || sum.Header.RawLen != 4*ints || sum.Header.WireLen != 0 {
			t.Errorf("zeros: %+v %v %v", sum, done, err)
		}
		h.Tensor, payload[at] = 1, 1
		owned := pool.Get(len(payload))
		copy(owned.Bytes, payload)
		sum, _, err = slots.Add(0, h, owned.Bytes, owned)
		if err != nil || sum.Buffer == nil || !slices.Equal(sum.Buffer.Bytes, payload) {
			t.Fatalf("a one at byte %d: %+v %v", at, sum, err)
		}
		sum.Buffer.Release()
	}
	if pool.Lent() != 0 {
		t.Errorf("%d buffers are lent", pool.Lent())
	}
}

// heapBytes is the memory of all live objects.
func heapBytes() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// TestMemoryOfAPacket: what lasts between rounds is small beside the packet's elements, also after one worker was far ahead.
func TestMemoryOfAPacket(t *testing.T) {
	const packets = 20_000
	slots := NewSlots(NewMembers(2), NewPool(), time.Time{})
	before := heapBytes()
	run := &wire.Header{Kind: wire.Empty, DType: wire.Float32, Run: packets, RawLen: wire.PacketBytes}
	for rank := range 2 {
		if _, err := slots.AddEmpty(rank, run, nil); err != nil {
			t.Fatal(err)
		}
	}
	each := (heapBytes() - before) / packets
	if runtime.KeepAlive(slots); each > 100 {
		t.Errorf("%d bytes for each packet", each)
	}
}
