package transport

import (
	"math"

	"fptps/gocore/wire"
)

// run is an Outgoing in a queue, with the number of its packets already popped.
type run struct {
	Outgoing
	urgency       int64
	nonPreemptive bool   // once begun, it is sent completely, before more urgent runs
	begun         bool   // it is nonPreemptive and its first packet was popped
	seq           uint64 // order of the calls to Send
	packets       int    // at least 1
	next          int    // index of the next packet to pop; in the heap while next < packets
}

// Schedule is the order in which the packets of a connection are sent. All but ByPacket
// exist for comparison.
type Schedule uint8

// The schedules.
const (
	ByPacket  Schedule = iota // the most urgent packet first
	ByMessage                 // the most urgent run first, not preempted
	InOrder                   // in the order of Send
)

// init makes r the run of m.
func (r *run) init(m *Outgoing, seq uint64, order Schedule) {
	u := urgency(&m.Header)
	if order == InOrder && u > probeUrgency {
		u = 0
	}
	*r = run{
		Outgoing: *m, seq: seq, urgency: u, nonPreemptive: order == ByMessage,
		packets: max(1, (len(m.Data)+wire.PacketBytes-1)/wire.PacketBytes),
	}
}

// urgency orders packets by priority; at equal priority sums come first, because workers
// wait for a sum, while a contribution may not be the last of its round. An acknowledgement comes first. A probe comes after
// everything else; Goodbye ends a connection and comes last.
func urgency(h *wire.Header) int64 {
	switch h.Kind {
	case wire.Ack:
		return math.MaxInt64
	case wire.Goodbye:
		return math.MinInt64
	case wire.Probe:
		return probeUrgency
	case wire.Sum:
		return int64(h.Priority)<<1 | 1
	}
	return int64(h.Priority) << 1
}

// probeUrgency is below that of every priority.
const probeUrgency = math.MinInt64 + 1

// packet is the packet of a run with the given index.
type packet struct {
	run   *run
	index int
	ahead int // number of packets that its header announces; see batch.formTrains
}

// precedes reports whether p's header may announce next as the following packet.
func (p packet) precedes(next packet) bool {
	a, b := &p.run.Header, &next.run.Header
	number := a.Packet + uint32(p.index)
	return a.Tensor == b.Tensor && number+1 == b.Packet+uint32(next.index) && a.Round == b.Round && a.Number == b.Number && a.Kind == b.Kind &&
		wire.MayLead(a.Kind, number) && len(p.data()) > 0 && len(p.data()) == len(next.data())
}

func (p packet) last() bool { return p.index == p.run.packets-1 }

func (p packet) data() []byte {
	d := p.run.Data
	from := p.index * wire.PacketBytes
	return d[from:min(from+wire.PacketBytes, len(d))]
}

func (p packet) size() int { return wire.HeaderBytes + len(p.data()) }

func (p packet) header() wire.Header {
	h := p.run.Header
	h.Packet += uint32(p.index)
	h.Ahead = uint16(p.ahead)
	h.WireLen = uint32(len(p.data()))
	if h.WireLen > 0 && h.Codec == wire.CodecPlain {
		h.RawLen = h.WireLen
	}
	if h.Kind == wire.Contrib && p.last() {
		h.Flags |= wire.FlagLast
	}
	return h
}

// queue holds the packets that wait for one connection: a heap of runs, ordered by urgency,
// and at equal urgency by the order of Send. Bound packets come first: a partly written
// packet and those that its header has announced. They cannot be overtaken.
type queue struct {
	heap  []*run
	bound []packet // already popped, in order; the first may be partly written
	sent  int      // bytes of the first bound packet that were written, header included
	begun stamps   // of its header, if a part of that was written
}

func (q *queue) empty() bool { return len(q.heap) == 0 && len(q.bound) == 0 }

// length is the number of packets that wait.
func (q *queue) length() int {
	n := len(q.bound)
	for _, r := range q.heap {
		n += r.packets - r.next
	}
	return n
}

// urgency is that of the most urgent packet. Bound packets inherit it (priority
// inheritance): they must be sent before it. The queue must not be empty.
func (q *queue) urgency() int64 {
	most := int64(math.MinInt64)
	if len(q.heap) > 0 {
		most = q.heap[0].urgency
	}
	for _, p := range q.bound {
		most = max(most, p.run.urgency)
	}
	return most
}

// pop removes the next packet from the heap, which must not be empty. It does not return
// bound packets.
func (q *queue) pop() packet {
	r := q.heap[0]
	p := packet{run: r, index: r.next}
	r.begun = r.nonPreemptive // it stays at the top of the heap
	if r.next++; r.next == r.packets {
		q.removeTop()
	}
	return p
}

// unpop undoes a pop. Pops are undone in reverse order.
func (q *queue) unpop(p packet) {
	if p.run.next == p.run.packets {
		q.push(p.run)
	}
	p.run.next = p.index
}

// drain empties the queue and calls drop once for every run.
func (q *queue) drain(drop func(*run)) {
	for _, p := range q.bound {
		if p.last() { // else its run is still in the heap, or a later bound packet is its last
			drop(p.run)
		}
	}
	for _, r := range q.heap {
		drop(r)
	}
	*q = queue{}
}

func before(a, b *run) bool {
	if a.begun != b.begun {
		return a.begun
	}
	return a.urgency > b.urgency || a.urgency == b.urgency && a.seq < b.seq
}

func (q *queue) push(r *run) {
	q.heap = append(q.heap, r)
	i := len(q.heap) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !before(r, q.heap[up]) {
			break
		}
		q.heap[i] = q.heap[up]
		i = up
	}
	q.heap[i] = r
}

func (q *queue) removeTop() {
	n := len(q.heap) - 1
	r := q.heap[n]
	q.heap[n] = nil
	q.heap = q.heap[:n]
	if n == 0 {
		return
	}
	i := 0
	for {
		down := 2*i + 1
		if down+1 < n && before(q.heap[down+1], q.heap[down]) {
			down++
		}
		if down >= n || !before(q.heap[down], r) {
			break
		}
		q.heap[i] = q.heap[down]
		i = down
	}
	q.heap[i] = r
}
