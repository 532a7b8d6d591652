package kv

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"log/slog"
	"testing"

	"fptps/gocore/aggregate"
	"fptps/gocore/store"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// FuzzAsk: every ask gets one answer, all buffers come back, and the values in the store stay.
func FuzzAsk(f *testing.F) {
	rule := store.Rule{Kind: store.SGD, Rate: 0.5, Momentum: 0.9}.Text()
	for op := wire.AskRule; op <= wire.AskRows; op++ {
		for _, tensor := range []uint32{1, 2, 3, 4} {
			f.Add(uint8(op), uint8(0), tensor, uint32(0), uint16(store.Part(store.ArrayValue, 0)), uint32(8), []byte("12345678"))
			f.Add(uint8(op), uint8(0), tensor, uint32(1), uint16(store.Part(store.ArraySteps, 0)), uint32(8), make([]byte, 8))
			f.Add(uint8(op), uint8(0), tensor, uint32(0), uint16(65535), uint32(wire.PacketBytes), rule)
			f.Add(uint8(op), uint8(wire.CodecRows), tensor, uint32(0), uint16(0), uint32(24), []byte{0, 0, 7, 0, 9, 0})
			f.Add(uint8(op), uint8(wire.CodecRows), tensor, uint32(0), uint16(0), uint32(8), []byte{0, 255})
		}
	}
	f.Fuzz(func(t *testing.T, op, codec uint8, tensor, packet uint32, part uint16, bytes uint32, payload []byte) {
		var sent answers
		a := NewAggregator(8, aggregate.NewMembers(1), &sent, false, slog.New(slog.DiscardHandler))
		h := Handler{Self: 8, Aggregator: a}
		for id, dtype := range map[uint32]wire.DType{1: wire.Float32, 2: wire.Float16, 3: wire.Int8, 4: wire.Float32} {
			first := wire.Header{Kind: wire.Empty, DType: dtype, Tensor: id, Run: 2, RawLen: 64, Policy: wire.Async}
			if id == 4 {
				first.Codec, first.RawLen = wire.CodecRows, wire.PacketBytes
			}
			if err := h.Arrived(9, &first, transport.Destination{}); err != nil {
				t.Fatal(err)
			}
		}
		sent = nil
		header := wire.Header{Kind: wire.Ask, Op: wire.Op(op), Codec: wire.Codec(codec), Tensor: tensor, Packet: packet, Run: 1, Number: 7, Part: part, RawLen: bytes}
		if len(payload) > 0 {
			payload = payload[:min(len(payload), wire.PacketBytes)]
			header.WireLen = uint32(len(payload))
			if header.Codec == wire.CodecPlain {
				header.RawLen = header.WireLen
			}
		}
		var encoded [wire.HeaderBytes]byte
		header.Put(encoded[:])
		if header.Get(encoded[:]) != nil {
			return
		}
		var l transport.Destination
		if len(payload) > 0 {
			var err error
			if l, err = h.Place(9, &header); err != nil {
				t.Fatal(err)
			}
			copy(l.Bytes, payload)
		}
		if err := h.Arrived(9, &header, l); err != nil {
			t.Fatal(err)
		}
		if len(sent) != 1 || sent[0].Header.Kind != wire.Answer || sent[0].Header.Number != 7 || len(sent[0].Data) > wire.PacketBytes {
			t.Errorf("answered %+v", sent)
		}
		if a.pool.Lent() != a.store.BufferCount() {
			t.Errorf("%d buffers are lent, the store holds %d", a.pool.Lent(), a.store.BufferCount())
		}
		for id := uint32(1); id <= 4; id++ {
			if b, err := a.store.Read(id, 0, store.Part(store.ArraySent, 0), 64); err != nil {
				t.Errorf("tensor %d is lost: %v", id, err)
			} else {
				b.Release()
			}
		}
	})
}

// FuzzContributions: whatever two workers contribute, nothing crashes.
func FuzzContributions(f *testing.F) {
	var script []byte
	add := func(h wire.Header, payload []byte) {
		h.Run, h.RawLen, h.WireLen = max(h.Run, 1), max(h.RawLen, uint32(len(payload))), uint32(len(payload))
		var encoded [wire.HeaderBytes]byte
		h.Put(encoded[:])
		script = append(append(append(script, byte(h.Priority)), encoded[:]...), payload...)
	}
	for _, policy := range []wire.Policy{wire.Sync, wire.Ordered, wire.Bounded(1), wire.Async} {
		script = nil
		for round := range uint64(3) {
			for worker := range int32(2) {
				dense := wire.Header{DType: wire.Float32, Tensor: 1, Round: round, Policy: policy, Priority: worker}
				table := dense
				table.Tensor, table.Codec = 2, wire.CodecRows
				dense.Kind, table.Kind = wire.Contrib, wire.Contrib
				add(dense, make([]byte, 16))
				table.RawLen = 16
				add(table, append(make([]byte, 16), 1, 0, 5, 0))
				table.Kind, table.Packet, table.RawLen = wire.Empty, 1, wire.PacketBytes
				add(table, nil)
			}
		}
		f.Add(script)
	}
	for _, policy := range []wire.Policy{wire.Sync, wire.Ordered} { // as after the death of another aggregator
		script = nil
		add(wire.Header{Kind: wire.Contrib, DType: wire.Float32, Tensor: 1, Round: 5, Policy: policy}, make([]byte, 16))
		add(wire.Header{Kind: wire.Have, Tensor: 1, Run: 3, Round: 5, Priority: 1}, nil)
		add(wire.Header{Kind: wire.Kept, DType: wire.Float32, Tensor: 1, Round: 5, Priority: 1}, make([]byte, 16))
		add(wire.Header{Kind: wire.Empty, DType: wire.Float32, Tensor: 1, Packet: 1, Run: 2, Round: 5, RawLen: 16, Policy: policy}, nil)
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		var sent answers
		a := NewAggregator(8, aggregate.NewMembers(2), &sent, false, slog.New(slog.DiscardHandler))
		a.Recover()
		h := Handler{Self: 8, Aggregator: a}
		for len(script) > wire.HeaderBytes {
			node := 9 + 2*uint32(script[0]&1)
			header, ok := mended(script[1:])
			script = script[1+wire.HeaderBytes:]
			if !ok || header.Tensor > 3 || header.Run > 4 || len(script) < int(header.WireLen) {
				return
			}
			payload := script[:header.WireLen]
			script = script[header.WireLen:]
			var l transport.Destination
			if len(payload) > 0 {
				var err error
				if l, err = h.Place(node, &header); err != nil {
					return
				}
				copy(l.Bytes, payload)
			}
			if h.Arrived(node, &header, l) != nil {
				return // the connection is closed
			}
		}
	})
}

// mended reads a header whose checksum need not be right.
func mended(b []byte) (h wire.Header, ok bool) {
	b = bytes.Clone(b[:wire.HeaderBytes])
	copy(b, "FP\x01")
	binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], crc32.MakeTable(crc32.Castagnoli)))
	return h, h.Get(b) == nil
}
