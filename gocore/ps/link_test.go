package ps

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/transport"
	"fptps/gocore/van"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

func TestLayoutRoundTrip(t *testing.T) {
	sizes := []int{0, 1, 100, wire.PacketBytes - headBytes - 1, wire.PacketBytes - headBytes, wire.PacketBytes, 3*wire.PacketBytes + 1}
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		frames := make([][]byte, 1+random.IntN(maxFrames))
		for i := range frames {
			frames[i] = bytes.Repeat([]byte{byte(random.Uint32())}, sizes[random.IntN(len(sizes))])
		}
		b := encodeFirst(frames, new(pool).get)
		l, inside, err := decodeFirst(b)
		if err != nil || !slices.Equal(l, layoutOf(frames)) || len(b) > wire.PacketBytes {
			t.Fatalf("%d came back as %d, error %v, in %d bytes", layoutOf(frames), l, err, len(b))
		}
		for i, frame := range inside {
			if !bytes.Equal(frame, frames[i]) {
				t.Fatalf("frame %d of %d is another", i, l)
			}
		}
		if len(inside) < len(frames) && len(b)+len(frames[len(inside)]) <= wire.PacketBytes {
			t.Fatalf("%d frames of %d are inside, and the next fits", len(inside), l)
		}
	}
}

func TestInvalidFirstPackets(t *testing.T) {
	good := encodeFirst([][]byte{{1}, make([]byte, 8)}, new(pool).get)
	for name, change := range map[string]func([]byte) []byte{
		"nothing":        func([]byte) []byte { return nil },
		"half a head":    func(b []byte) []byte { return b[:headBytes-1] },
		"no frames":      func(b []byte) []byte { b[0] = 0; return b },
		"too many":       func(b []byte) []byte { b[0] = maxFrames + 1; return b },
		"a huge frame":   func(b []byte) []byte { binary.LittleEndian.PutUint64(b[16:], van.MaxFrame+1); return b },
		"a huge meta":    func(b []byte) []byte { binary.LittleEndian.PutUint64(b[8:], van.MaxMeta+1); return b },
		"a negative one": func(b []byte) []byte { binary.LittleEndian.PutUint64(b[16:], 1<<63); return b },
		"cut":            func(b []byte) []byte { return b[:len(b)-1] },
		"longer":         func(b []byte) []byte { return append(b, 0) },
	} {
		if _, _, err := decodeFirst(change(bytes.Clone(good))); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// traffic is an outbox connected to an inbox, without offices.
type traffic struct {
	hub
	box *outbox
	in  *inbox
	got []*delivery
	max int // largest cost of incomplete messages in the inbox
}

func newTraffic(t *testing.T, limit int) *traffic {
	f := &traffic{hub: hub{t: t, random: rand.New(rand.NewPCG(3, 4))}}
	f.box = &outbox{peer: 1, pool: new(pool), plane: hubPlane{&f.hub, 0}, limit: limit}
	f.in = &inbox{limit: limit, open: map[uint64]*incoming{}, pool: new(pool), answerBuffer: func(*pspb.Meta, layout) []byte { return nil }}
	return f
}

// step delivers the most urgent packet.
func (f *traffic) step() bool {
	runs := f.packets[[2]int{0, 1}]
	if len(runs) == 0 {
		return false
	}
	run := slices.MaxFunc(runs, func(a, b *transport.Outgoing) int { return int(a.Header.Priority) - int(b.Header.Priority) })
	data := run.Data[:min(wire.PacketBytes, len(run.Data))]
	h := run.Header
	h.WireLen = uint32(len(data))
	place := f.in.place(&h)
	if copy(place, data) != len(data) {
		f.t.Fatalf("a place of %d bytes for %d", len(place), len(data))
	}
	d, err := f.in.handleArrived(&h, place)
	if err != nil {
		f.t.Fatal(err)
	}
	if d != nil {
		f.got = append(f.got, d)
	}
	f.max = max(f.max, f.in.bytes)
	run.Data, run.Header.Packet = run.Data[len(data):], run.Header.Packet+1
	if len(run.Data) == 0 {
		f.packets[[2]int{0, 1}] = slices.DeleteFunc(runs, func(r *transport.Outgoing) bool { return r == run })
		run.Owner.Release()
	}
	return true
}

// Messages of all sizes and priorities arrive complete, requests for a common key in order, and incomplete messages never
// exceed the receiver's limit.
func TestMessagesOverPackets(t *testing.T) {
	const limit = 20 * wire.PacketBytes
	f := newTraffic(t, limit)
	type sent struct {
		m        *Message
		frames   [][]byte
		released bool
	}
	var all []*sent
	largest, overtaken := 0, 0
	for number := range 2000 {
		keys := f.random.Uint64N(6)
		m := &Message{Request: true, Push: true, Timestamp: int32(number), Priority: f.random.Int32N(9) - 4,
			KVs: KVs{Keys: []uint64{keys, keys + 1 + f.random.Uint64N(2)}}}
		vals := make([]byte, []int{1, 5000, wire.PacketBytes, 60000, 400000}[f.random.IntN(5)])
		binary.LittleEndian.PutUint32(append(vals[:0], 0, 0, 0, 0)[:4], uint32(number))
		meta, _ := van.Encode(&pspb.Meta{Timestamp: proto.Int32(int32(number))})
		s := &sent{m: m, frames: [][]byte{meta, make([]byte, 16), vals}}
		if number%7 == 0 {
			s.frames = s.frames[:1]
		}
		largest = max(largest, layoutOf(s.frames).cost())
		all = append(all, s)
		f.box.send(m, s.frames, func() { s.released = true })
		for range f.random.IntN(8) {
			f.step()
		}
	}
	for f.step() {
	}
	if len(f.got) != len(all) {
		t.Fatalf("%d messages came of %d", len(f.got), len(all))
	}
	seen := map[int]bool{}
	for at, d := range f.got {
		number := int(d.meta.GetTimestamp())
		s := all[number]
		if seen[number] || !s.released || !slices.EqualFunc(d.frames, s.frames[1:], bytes.Equal) {
			t.Fatalf("message %d: twice, not released, or other frames", number)
		}
		seen[number] = true
		for _, later := range f.got[at+1:] {
			if n := int(later.meta.GetTimestamp()); n < number {
				overtaken++
				if keyRangeOf(s.m).overlaps(keyRangeOf(all[n].m)) {
					t.Fatalf("message %d has overtaken %d", number, n)
				}
			}
		}
	}
	if f.max > max(limit, largest) || overtaken == 0 || f.box.mu.unsent.Len() > 0 || f.box.mu.bytes != 0 || f.in.bytes != 0 {
		t.Errorf("%d bytes were under way, %d times one has overtaken another; left: %d messages, %d and %d bytes",
			f.max, overtaken, f.box.mu.unsent.Len(), f.box.mu.bytes, f.in.bytes)
	}
}

// part makes a packet of a message.
func part(number uint64, packet uint32, payload []byte) (*wire.Header, []byte) {
	return &wire.Header{Kind: wire.Part, Run: 1, Number: number, Packet: packet, RawLen: uint32(len(payload)), WireLen: uint32(len(payload))}, payload
}

// Invalid packets are counted, and answered if they belong to a request; the same peer's valid messages are delivered.
func TestInvalidPackets(t *testing.T) {
	h := newHub(t, true, 1, 1)
	server := h.open(server0, 0, 0)
	give := func(number uint64, packet uint32, payload []byte) {
		header, payload := part(number, packet, payload)
		h.handlePacket(worker0, server0, header, payload)
	}
	request := func(ts int32, vals int) []byte {
		meta, frames := (&Message{Request: true, Push: true, Timestamp: ts, KVs: KVs{Keys: []uint64{1}, Vals: make([]byte, vals), DType: wire.Uint8}}).Encode()
		encoded, err := van.Encode(meta)
		if err != nil {
			t.Fatal(err)
		}
		return encodeFirst(append([][]byte{encoded}, frames...), new(pool).get)
	}
	packet := make([]byte, wire.PacketBytes)
	rejected := uint64(0)
	want := func(name string, more uint64) {
		t.Helper()
		if rejected += more; h.offices[server0].Rejected() != rejected {
			t.Fatalf("%s: %d are rejected, want %d", name, h.offices[server0].Rejected(), rejected)
		}
	}
	give(1, 0, []byte("rubbish"))
	give(1, 0, encodeFirst([][]byte{[]byte("\xff\xff")}, new(pool).get))
	give(1, 3, packet)
	want("rubbish", 3)

	give(2, 0, request(2, 2*wire.PacketBytes)) // complete, with one packet twice
	give(2, 1, packet)
	give(2, 1, packet)
	give(2, 2, packet)
	want("a part twice", 2)

	give(3, 0, request(3, 2*wire.PacketBytes))
	give(3, 1, packet[:100])
	give(3, 1, packet)
	give(3, 2, packet)
	want("a short part", 3)

	give(4, 0, request(4, 2*wire.PacketBytes))
	give(4, 0, request(4, 2*wire.PacketBytes))
	want("a message twice", 1)
	huge := request(5, 2*wire.PacketBytes)
	binary.LittleEndian.PutUint64(huge[8*(1+valuesFrame):], van.MaxFrame)
	give(5, 0, huge)
	want("too much at a time", 1)
	give(4, 1, packet)
	give(4, 2, packet)
	if e := h.event(server); e.Request == nil || e.Request.Timestamp != 4 || len(e.Request.KVs.Vals) != 2*wire.PacketBytes {
		t.Errorf("got %+v", e)
	}
	barrier, _ := van.Encode(&pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.Barrier)}})
	give(6, 0, encodeFirst([][]byte{barrier}, new(pool).get))
	want("the cluster's own", 1)
	h.wantRejected(server0, rejected, "worker 0")
	if _, more := server.poll(); more || len(h.offices[server0].links.get(worker0).in.open) > 0 || h.offices[server0].links.get(worker0).in.bytes != 0 {
		t.Error("something is left")
	}
	h.deliver()
	if got := h.offices[worker0].Rejected(); got != 2 { // both answers are without a request
		t.Errorf("%d answers, want those to the second 4 and to 5", got)
	}

	give(7, 0, request(7, 2*wire.PacketBytes))
	h.offices[server0].DropPartial(worker0) // the connection has ended
	if l := h.offices[server0].links.get(worker0); len(l.in.open) > 0 || l.in.bytes != 0 {
		t.Error("an incomplete message was kept")
	}
	if got := h.offices[server0].Place(worker1, &wire.Header{WireLen: 5}); len(got.Bytes) != 5 {
		t.Errorf("a stranger's part has a place of %d bytes", len(got.Bytes))
	}
}

// The values of a pull are received into the caller's array if their place in it is known, and in separate memory if not.
func TestReceiveInPlace(t *testing.T) {
	big := 3 * wire.PacketBytes // bytes of a value: not in the first packet
	for name, tc := range map[string]struct {
		lens    []int // in KiB, by key
		out     int   // elements of the array
		dtype   wire.DType
		inPlace bool
	}{
		"one server":                 {[]int{48}, big, wire.Uint8, true},
		"two servers, alike":         {[]int{48, 48}, 2 * big, wire.Uint8, true},
		"two servers, other lengths": {[]int{48, 96}, 3 * big, wire.Uint8, false},
		"an array too short":         {[]int{48}, big - 1, wire.Uint8, false},
		"another dtype":              {[]int{48}, big, wire.Int8, false},
		"no array":                   {[]int{48, 48}, 0, wire.Uint8, false},
	} {
		h := newHub(t, true, 1, 2)
		sums := []*Sum{
			{server: KVServer{h.open(server0, 0, 0)}, store: map[uint64]*entry{}},
			{server: KVServer{h.open(server1, 0, 0)}, store: map[uint64]*entry{}},
		}
		c := h.open(worker0, 0, 0)
		k := KVs{DType: wire.Uint8}
		for i, n := range tc.lens {
			k.Keys, k.Lens = append(k.Keys, Bounds(2)[i]), append(k.Lens, int32(n<<10))
			k.Vals = append(k.Vals, bytes.Repeat([]byte{byte(i + 1)}, n<<10)...)
		}
		if _, err := (KVWorker{c}).Push(k, Completion{}, 0, 0); err != nil {
			t.Fatal(err)
		}
		h.serveAll(sums...)
		h.event(c)
		var out []byte
		if tc.out > 0 {
			out = make([]byte, tc.out)
		}
		ts, err := KVWorker{c}.Pull(KVs{Keys: k.Keys, DType: tc.dtype}, Completion{Out: out}, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		h.serveAll(sums...)
		r := h.result(c, ts)
		if r.Err != nil || r.InPlace != tc.inPlace || !bytes.Equal(r.KVs.Vals, k.Vals) {
			t.Errorf("%s: in place %v, %d bytes, error %v", name, r.InPlace, len(r.KVs.Vals), r.Err)
		}
		if tc.inPlace && !bytes.Equal(out, k.Vals) {
			t.Errorf("%s: the array has other values", name)
		}
		c.Done(Event{Result: r})
	}
}

// A second answer does not end a request while the values of the first are still being received into the caller's array.
func TestNoEndWhileReceivingInPlace(t *testing.T) {
	var tracker Tracker
	out := make([]byte, 8)
	ts := tracker.Start(true, map[int][]uint64{server0: {1, 2}, server1: {3, 4}})
	tracker.SetOut(ts, out, wire.Uint8)
	if place := tracker.AnswerBuffer(ts, server1, 4, wire.Uint8, false); &place[0] != &out[4] || len(place) != 4 {
		t.Fatalf("a place of %d bytes", len(place))
	}
	if place := tracker.AnswerBuffer(ts, server1, 4, wire.Uint8, false); place != nil {
		t.Error("a place twice")
	}
	answer := func(id int, inPlace bool) error {
		keys := map[int][]uint64{server0: {1, 2}, server1: {3, 4}}[id]
		_, err := tracker.Answer(&Message{Peer: id, Timestamp: ts, Pull: true, inPlace: inPlace, KVs: KVs{Keys: keys, Vals: make([]byte, 4), DType: wire.Uint8}})
		return err
	}
	if answer(server1, false) == nil {
		t.Error("another answer was taken")
	}
	if err := answer(server0, false); err != nil {
		t.Error(err)
	}
	if err := answer(server1, true); err != nil {
		t.Error(err)
	}
	if place := tracker.AnswerBuffer(ts, server0, 4, wire.Uint8, false); place != nil {
		t.Error("a place after the end")
	}
}

// A sum does not change while it is being sent; the next push copies it first.
func TestSumWhileItIsSent(t *testing.T) {
	h := newHub(t, true, 1, 1)
	s := &Sum{server: KVServer{h.open(server0, 0, 0)}, store: map[uint64]*entry{}}
	c := h.open(worker0, 0, 0)
	ones := bytes.Repeat([]byte{1}, 2*wire.PacketBytes)
	exchange := func(push bool) int32 {
		k := KVs{Keys: []uint64{1}, DType: wire.Uint8}
		if push {
			k.Vals = ones
		}
		ts, err := KVWorker{c}.exchange(push, !push, k, Completion{}, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return ts
	}
	serve := func() {
		for at := [2]int{worker0, server0}; len(h.packets[at]) > 0; { // and no answer
			h.deliverPacketOn(at)
		}
		for e, ok := s.server.poll(); ok; e, ok = s.server.poll() {
			s.serve(e.Request)
		}
	}
	exchange(true)
	serve()
	h.deliver()
	h.event(c)
	first := exchange(false)
	serve()
	if s.store[1].readers.Load() != 1 {
		t.Error("the sum is copied before it has to be")
	}
	exchange(true)
	serve() // before the answer has left
	h.deliver()
	if r := h.result(c, first); !bytes.Equal(r.KVs.Vals, ones) {
		t.Errorf("the pull before the second push got %d", r.KVs.Vals[0])
	}
	h.event(c)
	last := exchange(false)
	h.serveAll(s)
	if r := h.result(c, last); r.KVs.Vals[0] != 2 || r.KVs.Vals[len(ones)-1] != 2 {
		t.Errorf("the pull after it got %d", r.KVs.Vals[0])
	}
	if s.store[1].readers.Load() != 0 {
		t.Error("the sum is still lent")
	}
}

// Any packets are handled without a panic, and within the limit of memory.
func FuzzArrived(f *testing.F) {
	f.Add([]byte("\x01\x00\x20\x00"), []byte{0, 1, 2})
	f.Add(encodeFirst([][]byte{{0x20, 0}, make([]byte, 8), make([]byte, wire.PacketBytes)}, new(pool).get), []byte{0, 1, 1, 2})
	f.Fuzz(func(t *testing.T, begin, order []byte) {
		in := &inbox{limit: maxOpen, open: map[uint64]*incoming{}, pool: new(pool), answerBuffer: func(*pspb.Meta, layout) []byte { return nil }}
		for _, o := range order {
			payload := begin
			if o != 0 {
				payload = make([]byte, wire.PacketBytes)[:1+int(o)*8191%wire.PacketBytes]
			}
			if len(payload) == 0 || len(payload) > wire.PacketBytes {
				return
			}
			h := &wire.Header{Kind: wire.Part, Packet: uint32(o) % 8, Number: uint64(o) / 64, WireLen: uint32(len(payload))}
			place := in.place(h)
			copy(place, payload)
			in.handleArrived(h, place)
			cost := 0
			for _, a := range in.open {
				cost += a.cost
			}
			if cost != in.bytes || len(in.open) > 1 && cost > maxOpen {
				t.Fatalf("%d bytes in %d messages, counted %d", cost, len(in.open), in.bytes)
			}
		}
	})
}
