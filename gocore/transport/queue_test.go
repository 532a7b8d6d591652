package transport

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// dumbQueue is the reference for queue: packets in a slice, sorted for every pop. The first
// ones are bound, and sent bytes of the first one are written.
type dumbQueue struct {
	packets []dumbPacket
	bound   int
	sent    int
}

type dumbPacket struct {
	kind     wire.Kind
	priority int32
	seq      uint64
	index    int
	size     int
	number   uint32
	ahead    int
}

func (d *dumbQueue) push(m Outgoing, seq uint64) {
	for i := 0; i == 0 || i*wire.PacketBytes < len(m.Data); i++ {
		d.packets = append(d.packets, dumbPacket{m.Header.Kind, m.Header.Priority, seq, i,
			wire.HeaderBytes + min(wire.PacketBytes, len(m.Data)-i*wire.PacketBytes), m.Header.Packet + uint32(i), 0})
	}
}

func (d *dumbQueue) sort() {
	rest := d.packets[d.bound:]
	slices.SortFunc(rest, func(a, b dumbPacket) int {
		switch {
		case (a.kind == wire.Goodbye) != (b.kind == wire.Goodbye):
			return yes(b.kind == wire.Goodbye)
		case a.priority != b.priority:
			return yes(a.priority > b.priority)
		case (a.kind == wire.Sum) != (b.kind == wire.Sum):
			return yes(a.kind == wire.Sum)
		case a.seq != b.seq:
			return yes(a.seq < b.seq)
		}
		return yes(a.index < b.index)
	})
}

func yes(first bool) int {
	if first {
		return -1
	}
	return 1
}

// batch returns the packets that fit in a batch; write removes n bytes from the front.
func (d *dumbQueue) batch(train int) (packets []dumbPacket, bytes int) {
	d.sort()
	bytes = -d.sent
	for i, p := range d.packets {
		if i >= d.bound && (len(packets) == batchPackets || bytes >= batchBytes) {
			break
		}
		packets = append(packets, p)
		bytes += p.size
	}
	for i := d.bound; i < len(packets); i++ {
		end := i
		for end+1 < len(packets) && dumbPrecedes(packets[end], packets[end+1]) {
			end++
		}
		packets[i].ahead = (end - i) % train
		d.packets[i].ahead = packets[i].ahead
	}
	return packets, bytes
}

func dumbPrecedes(a, b dumbPacket) bool {
	return a.kind == b.kind && (a.kind == wire.Sum || a.kind == wire.Contrib) && a.number+1 == b.number && a.size == b.size && a.size > wire.HeaderBytes
}

func (d *dumbQueue) write(n int) {
	n += d.sent
	for len(d.packets) > 0 && n >= d.packets[0].size {
		n -= d.packets[0].size
		d.bound = d.packets[0].ahead
		d.packets = d.packets[1:]
	}
	if d.sent = n; n > 0 {
		d.bound = 1 + d.packets[0].ahead
	}
}

func randomOutgoing(rng *rand.Rand) Outgoing {
	kinds := []wire.Kind{wire.Contrib, wire.Sum, wire.Empty, wire.Missing}
	m := Outgoing{Header: wire.Header{Kind: kinds[rng.IntN(4)], Priority: int32(rng.IntN(5) - 2), Packet: rng.Uint32N(100)}}
	if m.Header.Kind != wire.Empty {
		m.Data = make([]byte, rng.IntN(1<<rng.UintN(19)))
	}
	if rng.IntN(2) == 0 { // sums of one tensor, as an aggregator sends them
		m.Header = wire.Header{Kind: wire.Sum, Packet: rng.Uint32N(8)}
		m.Data = make([]byte, wire.PacketBytes)
	}
	return m
}

// With random sends and short writes, every batch equals the reference's.
func TestQueueAndBatchEqualReference(t *testing.T) {
	rng := seeded(t, rand.Uint64())
	for range 300 {
		var q queue
		var d dumbQueue
		var b batch
		var seq uint64
		finished := map[uint64]int{}
		train := 1 + rng.IntN(wire.MaxAhead+1)
		for step := 0; step < 40 || !q.empty(); step++ {
			if step < 40 {
				for range rng.IntN(8) {
					seq++
					m := randomOutgoing(rng)
					r := new(run)
					r.init(&m, seq, ByPacket)
					q.push(r)
					d.push(m, seq)
				}
			}
			if q.empty() {
				continue
			}
			if rng.IntN(8) == 0 { // taken and given back untouched
				b.fill(&q, batchBytes, train)
				b.putBack(&q)
			}
			b.fill(&q, batchBytes, train)
			packets, bytes := d.batch(train)
			if got := describe(&b); !slices.Equal(got, packets) {
				t.Fatalf("batch\n%v, expected\n%v", got, packets)
			}
			if _, n := b.encode(stamps{}); n != bytes {
				t.Fatalf("batch of %d bytes, expected %d", n, bytes)
			}
			if b.clearVector(); slices.ContainsFunc(b.vector[:], func(v unix.Iovec) bool { return v.Base != nil }) {
				t.Fatal("the vector still points to memory that was lent")
			}
			// The kernel takes all, nothing, or some; meanwhile others send.
			n := []int{bytes, 0, rng.IntN(bytes + 1), rng.IntN(min(bytes, 200) + 1)}[rng.IntN(4)]
			if step < 40 && rng.IntN(2) == 0 {
				seq++
				m := Outgoing{Header: wire.Header{Kind: wire.Contrib, Priority: 9}, Data: make([]byte, 1)}
				r := new(run)
				r.init(&m, seq, ByPacket)
				q.push(r)
				d.write(n)
				d.push(m, seq)
			} else {
				d.write(n)
			}
			b.recordWritten(n)
			for _, p := range b.packets[:b.done] {
				if p.last() {
					finished[p.run.seq]++
				}
			}
			b.putBack(&q)
			if q.sent != d.sent {
				t.Fatalf("%d bytes of a packet are written, expected %d", q.sent, d.sent)
			}
		}
		if len(d.packets) != 0 {
			t.Fatalf("the queue is empty, %d packets should be left", len(d.packets))
		}
		for s := uint64(1); s <= seq; s++ {
			if finished[s] != 1 {
				t.Fatalf("run %d was finished %d times", s, finished[s])
			}
		}
	}
}

func describe(b *batch) (all []dumbPacket) {
	for _, p := range b.packets[:b.n] {
		h := p.header()
		all = append(all, dumbPacket{h.Kind, h.Priority, p.run.seq, int(h.Packet - p.run.Header.Packet), p.size(), h.Packet, int(h.Ahead)})
	}
	return all
}

const train = wire.MaxAhead + 1

func TestDrainDropsEveryRunOnce(t *testing.T) {
	rng := seeded(t, rand.Uint64())
	for range 300 {
		var q queue
		var b batch
		left := map[uint64]bool{}
		for seq := range uint64(1 + rng.IntN(10)) {
			m := randomOutgoing(rng)
			r := new(run)
			r.init(&m, seq, ByPacket)
			q.push(r)
			left[seq] = true
		}
		b.fill(&q, batchBytes, train)
		_, bytes := b.encode(stamps{})
		b.recordWritten(rng.IntN(bytes + 1))
		for _, p := range b.packets[:b.done] {
			if p.last() {
				delete(left, p.run.seq)
			}
		}
		b.putBack(&q)
		q.drain(func(r *run) {
			if !left[r.seq] {
				t.Fatalf("run %d given, but it was through or given already", r.seq)
			}
			delete(left, r.seq)
		})
		if len(left) != 0 || !q.empty() {
			t.Fatalf("runs %v were not given", left)
		}
	}
}

// Priority inheritance: a partly written packet takes the urgency of the packets behind it.
func TestPriorityInheritanceOfAPartlyWrittenPacket(t *testing.T) {
	var q queue
	var b batch
	push := func(priority int32, size int) {
		r := new(run)
		r.init(&Outgoing{Header: contrib(1, priority), Data: make([]byte, size)}, 1, ByPacket)
		q.push(r)
	}
	push(3, 100)
	b.fill(&q, batchBytes, train)
	b.recordWritten(70)
	b.putBack(&q)
	if got := q.urgency(); got != 3<<1 {
		t.Errorf("alone: urgency %d", got)
	}
	push(2, 1)
	if got := q.urgency(); got != 3<<1 {
		t.Errorf("before something less urgent: %d", got)
	}
	push(5, 1)
	if got := q.urgency(); got != 5<<1 {
		t.Errorf("before something more urgent: %d", got)
	}
	b.fill(&q, batchBytes, train)
	if v, bytes := b.encode(stamps{}); b.n != 3 || bytes != 94+2*65 || *v[0].Base != 0 || v[0].Len != 94 {
		t.Errorf("resumed batch of %d packets, %d bytes, begins with %d", b.n, bytes, v[0].Len)
	}
}

func TestUrgencyAtTheLimitsOfPriority(t *testing.T) {
	of := func(k wire.Kind, p int32) int64 { return urgency(&wire.Header{Kind: k, Priority: p}) }
	order := []int64{
		of(wire.Sum, math.MaxInt32), of(wire.Contrib, math.MaxInt32), of(wire.Sum, 0), of(wire.Empty, 0), of(wire.Sum, -1),
		of(wire.Sum, math.MinInt32), of(wire.Contrib, math.MinInt32), of(wire.Probe, math.MaxInt32), of(wire.Goodbye, math.MaxInt32),
	}
	for i := range order[1:] {
		if order[i] <= order[i+1] {
			t.Errorf("urgency %d of place %d is not above %d", order[i], i, order[i+1])
		}
	}
	if of(wire.Empty, 4) != of(wire.Contrib, 4) || of(wire.Missing, 4) != of(wire.Contrib, 4) {
		t.Error("contributions, empty ones and lists of the missing differ")
	}
}

func TestHeadersOfARun(t *testing.T) {
	var r run
	m := Outgoing{Header: contrib(5, 1), Data: make([]byte, 2*wire.PacketBytes+3)}
	m.Header.Packet = 10
	r.init(&m, 1, ByPacket)
	var got []string
	for i := range r.packets {
		h := packet{run: &r, index: i}.header()
		got = append(got, fmt.Sprint(h.Packet, h.RawLen, h.WireLen))
	}
	if want := []string{"10 16384 16384", "11 16384 16384", "12 3 3"}; !slices.Equal(got, want) {
		t.Errorf("headers %v, expected %v", got, want)
	}
	r.init(&Outgoing{Header: wire.Header{Kind: wire.Sum, RawLen: 128, WireLen: 128}}, 1, ByPacket)
	if h := (packet{run: &r}).header(); r.packets != 1 || h.RawLen != 128 || h.WireLen != 0 {
		t.Errorf("sum of zeros: %d packets, %+v", r.packets, h)
	}
}

func TestChoose(t *testing.T) {
	// Each row: the queues' heads by peer, and the order in which they are served
	// when every choice takes one packet.
	type heads map[uint32][]int32
	for _, tc := range []struct {
		self  uint32
		queue heads
		want  []uint32
	}{
		{9, heads{8: {0, 0}, 10: {0, 0}, 12: {0, 0}}, []uint32{10, 12, 8, 10, 12, 8}},
		{13, heads{8: {0, 0}, 10: {0, 0}, 12: {0}}, []uint32{8, 10, 12, 8, 10}},
		{11, heads{8: {0, 0}, 10: {0, 0}, 12: {0, 0}}, []uint32{12, 8, 10, 12, 8, 10}},
		{9, heads{8: {5, 1}, 10: {3, 2}, 12: {4, 0}}, []uint32{8, 12, 10, 10, 8, 12}},
		{9, heads{8: {-1}, 10: {-2}}, []uint32{8, 10}},
		{math.MaxUint32, heads{8: {0}, 10: {0}}, []uint32{8, 10}},
		{9, heads{}, nil},
	} {
		tb := connSet{lastServed: tc.self}
		for peer, priorities := range tc.queue {
			c := &conn{peer: peer, writable: true}
			for i, p := range priorities {
				r := new(run)
				r.init(&Outgoing{Header: contrib(1, p)}, uint64(i), ByPacket)
				c.queue.push(r)
			}
			tb.add(c)
		}
		var got []uint32
		for c := tb.choose(0).conn; c != nil; c = tb.choose(0).conn {
			got = append(got, c.peer)
			c.queue.pop()
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("node %d with %v serves %v, expected %v", tc.self, tc.queue, got, tc.want)
		}
	}
}

func TestChooseSkipsBlockedConnections(t *testing.T) {
	var tb connSet
	full, idle, open := &conn{peer: 8}, &conn{peer: 10}, &conn{peer: 12, writable: true}
	for _, c := range []*conn{open, full, idle} {
		tb.add(c)
	}
	for i, c := range []*conn{full, open} {
		r := new(run)
		r.init(&Outgoing{Header: contrib(1, int32(9-i))}, 1, ByPacket)
		c.queue.push(r)
	}
	if c := tb.choose(0); c.conn != open || !c.blocked {
		t.Errorf("chose %+v", c)
	}
	open.queue.pop()
	if c := tb.choose(0); c.conn != nil || !c.blocked {
		t.Errorf("chose %+v", c)
	}
	full.queue.pop()
	if c := tb.choose(0); c.conn != nil || c.blocked {
		t.Errorf("nothing is queued: chose %+v", c)
	}
	tb.remove(full)
	tb.remove(open)
	if len(tb.order) != 1 || tb.order[0] != idle || len(tb.byPeer) != 1 {
		t.Errorf("left in the table: %v", tb.order)
	}
}

// The order of packets under each schedule, if a more urgent run arrives after the first
// packet of a run of three.
func TestSchedules(t *testing.T) {
	for order, want := range map[Schedule]string{
		ByPacket:  "1 2 2 1 1 3",
		ByMessage: "1 1 1 2 2 3",
		InOrder:   "1 1 1 3 2 2",
	} {
		var q queue
		queued := uint64(0)
		send := func(tensor uint32, priority int32, packets int) {
			queued++
			r := new(run)
			r.init(&Outgoing{Header: contrib(tensor, priority), Data: make([]byte, packets*wire.PacketBytes)}, queued, order)
			q.push(r)
		}
		send(1, 0, 3)
		q.unpop(q.pop()) // a write that the kernel did not take
		p := q.pop()
		left := []string{fmt.Sprint(p.run.Header.Tensor)}
		send(3, -1, 1)
		send(2, 5, 2)
		if order == ByMessage {
			q.unpop(p) // begun once, it goes first
			left = nil
		}
		for !q.empty() {
			left = append(left, fmt.Sprint(q.pop().run.Header.Tensor))
		}
		if got := strings.Join(left, " "); got != want {
			t.Errorf("schedule %d: %s, expected %s", order, got, want)
		}
	}
	for kind, want := range map[wire.Kind]int64{wire.Goodbye: math.MinInt64, wire.Probe: probeUrgency} {
		last := new(run)
		last.init(&Outgoing{Header: wire.Header{Kind: kind}}, 1, InOrder)
		if last.urgency != want {
			t.Errorf("in order, kind %d would not come last", kind)
		}
	}
}
