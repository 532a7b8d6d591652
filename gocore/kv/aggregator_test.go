package kv

import (
	"log/slog"
	"slices"
	"testing"

	"fptps/gocore/aggregate"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// sentPackets keeps what an aggregator sends to node 9.
type sentPackets []uint32

func (s *sentPackets) Send(node uint32, m transport.Outgoing) {
	if node == 9 {
		*s = append(*s, m.Header.Tensor<<8|m.Header.Packet)
	}
	if m.Owner != nil {
		m.Owner.Release()
	}
}

// TestHeldSums: held sums of a tensor leave together, when the last is complete.
func TestHeldSums(t *testing.T) {
	for _, tc := range []struct {
		hold bool
		want [][]uint32 // what has left after each packet of the second worker
	}{
		{false, [][]uint32{{0x100}, {0x100, 0x200}, {0x100, 0x200, 0x101}, {0x100, 0x200, 0x101, 0x201}}},
		{true, [][]uint32{nil, nil, {0x100, 0x101}, {0x100, 0x101, 0x200, 0x201}}},
	} {
		var sent sentPackets
		a := NewAggregator(8, aggregate.NewMembers(2), &sent, tc.hold, slog.New(slog.DiscardHandler))
		h := Handler{Self: 8, Aggregator: a}
		add := func(node, tensor, packet uint32) {
			header := wire.Header{
				Kind: wire.Contrib, DType: wire.Uint8, Tensor: tensor, Packet: packet, Run: 1,
				RawLen: wire.PacketBytes, WireLen: wire.PacketBytes,
			}
			if packet == 1 {
				header.Flags = wire.FlagLast
			}
			l, err := h.Place(node, &header)
			if err == nil {
				err = h.Arrived(node, &header, l)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, tensor := range []uint32{1, 2} {
			add(9, tensor, 0)
			add(9, tensor, 1)
		}
		for i, p := range [][2]uint32{{1, 0}, {2, 0}, {1, 1}, {2, 1}} {
			add(11, p[0], p[1])
			if !slices.Equal([]uint32(sent), tc.want[i]) {
				t.Errorf("hold %v, after %d packets: %x, expected %x", tc.hold, i+1, sent, tc.want[i])
			}
		}
		if lent := a.pool.Lent() - a.store.BufferCount(); lent != 0 {
			t.Errorf("hold %v: %d buffers are still lent", tc.hold, lent)
		}
	}
}

// sentMemory records the addresses of the payloads that an aggregator sends.
type sentMemory []*byte

func (s *sentMemory) Send(_ uint32, m transport.Outgoing) {
	if m.Header.Round > 0 {
		*s = append(*s, &m.Data[0])
		m.Owner.Release()
	}
}

// TestTheFirstPacketBecomesTheSum: later contributions are added in the first one's buffer, which is then sent to all workers.
func TestTheFirstPacketBecomesTheSum(t *testing.T) {
	workers := []uint32{9, 11, 13}
	var sent sentMemory
	h := Handler{Self: 8, Aggregator: NewAggregator(8, aggregate.NewMembers(len(workers)), &sent, false, slog.New(slog.DiscardHandler))}
	header := wire.Header{
		Kind: wire.Contrib, DType: wire.Float32, Tensor: 1, Run: 1, RawLen: wire.PacketBytes, WireLen: wire.PacketBytes,
	}
	var first *byte
	for range 2 { // the reply to round 0 is empty
		first = nil
		for _, node := range workers {
			l, err := h.Place(node, &header)
			if first == nil {
				first = &l.Bytes[0]
			}
			if err == nil {
				err = h.Arrived(node, &header, l)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		header.Round++
	}
	if !slices.Equal(sent, sentMemory{first, first, first}) {
		t.Errorf("sent from %v, the first packet came to %v", sent, first)
	}
}
