package kv

import (
	"sync/atomic"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/store"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// tensor is one key of this worker. Its rounds go one at a time (idea 6): a push
// that comes while the last one's sum is not whole waits in queue.
type tensor struct {
	key     uint64
	id      uint32
	size    uint64
	dtype   wire.DType
	policy  wire.Policy
	packets uint32
	runs    []plan.Run
	table   *table // nil: it is none

	last    *operation   // the last push, whatever its state; a pull means its sum
	active  *operation   // in its round, nil when all sums are here
	queue   []*operation // pushes to come, in order
	round   uint64       // of active, or of the last one that was
	next    uint64       // the number of the next round
	kept    []byte       // the sum of the last push, or nil
	begun   time.Time    // when round began, to the second
	missing []string     // whom the aggregators last said that active waits for
	readers int          // pulls that copy from kept just now

	rule  *store.Rule // that this worker has given the aggregators, nil: none
	rate  float32     // the learning rate that the rounds to come tell them
	rated bool        // there is one
}

// verb is what the caller asked for.
type verb uint8

const (
	verbInit verb = iota
	verbPush
	verbPushPull
	verbSkip
)

// operation is one round of one tensor as this worker takes part in it.
type operation struct {
	worker   *Worker
	tensor   *tensor
	verb     verb
	ticket   *Ticket
	source   []byte    // what is pushed; nil contributes EMPTY
	borrowed bool      // source is the caller's, noted in flights
	parts    []rowPart // of a table, what is pushed; nothing contributes EMPTY
	op       wire.Op
	priority int32

	pulls []pull   // where the sum is wanted; the first is where packets are read to
	got   []uint64 // packets whose sum is here
	count uint32
	err   error
	whole bool
	after []*rowPull // pulls of rows that wait for it

	queued atomic.Int32 // runs that the transport still refers to
}

// pull is one array that wants the sum. Ticket is nil for the operation's own.
type pull struct {
	memory []byte
	ticket *Ticket
	caller bool // memory is the caller's, noted in flights
}

// keeps tells whether the sum outlives the round, for pulls to come.
func (o *operation) keeps() bool { return o.verb != verbPushPull }

// region is packet p's part of a whole tensor's memory.
func (t *tensor) region(memory []byte, p uint32) []byte {
	from := int(p) * wire.PacketBytes
	return memory[from:min(from+wire.PacketBytes, len(memory))]
}

// begin starts o's round and gives its contributions.
func (t *tensor) begin(o *operation) []sending {
	t.active, t.round = o, t.next
	t.next++
	t.missing = nil
	o.got = make([]uint64, (t.packets+63)/64)
	if t.table != nil {
		return t.beginRows(o)
	}
	if o.keeps() {
		if t.kept == nil {
			t.kept = make([]byte, t.size)
		}
		o.pulls = append(o.pulls, pull{memory: t.kept})
	} else {
		t.kept = nil
	}
	out := make([]sending, 0, len(t.runs))
	for _, run := range t.runs {
		if o.source == nil {
			out = t.zeros(o, run, out)
			continue
		}
		from := uint64(run.First) * wire.PacketBytes
		data := o.source[from:min(from+uint64(run.Count)*wire.PacketBytes, t.size)]
		out = append(out, sending{run.Node, run.Lane, t.header(wire.Contrib, o, run.First), data, o})
	}
	o.queued.Add(int32(len(out)))
	return out
}

// zeros appends EMPTY for a run of packets, in as many headers as it takes.
func (t *tensor) zeros(o *operation, run plan.Run, out []sending) []sending {
	for end := run.First + run.Count; run.First < end; run.First += wire.MaxRun {
		h := t.header(wire.Empty, o, run.First)
		h.Run = min(end-run.First, wire.MaxRun)
		h.RawLen = uint32(wire.PacketLen(t.size, run.First+h.Run-1))
		out = append(out, sending{run.Node, run.Lane, h, nil, o})
	}
	return out
}

func (t *tensor) header(kind wire.Kind, o *operation, first uint32) wire.Header {
	h := wire.Header{
		Kind: kind, DType: t.dtype, Op: o.op, Tensor: t.id, Packet: first, Run: 1, Round: t.round, Priority: o.priority,
		Contributors: uint16(t.policy),
	}
	if t.table != nil {
		h.Codec = wire.CodecRows
	}
	if t.rated {
		h.Flags, h.LearningRate = wire.FlagLearningRate, t.rate
	}
	return h
}

// sending is a run of packets on its way to the transport, which is called only
// when the worker's lock is free.
type sending struct {
	node   uint32
	lane   int
	header wire.Header
	data   []byte
	owner  transport.Releaser
}

// wants tells whether the tensor waits for the sum h of node, which has to be the
// one that sums this packet: a payload of another may still be on its way into the
// caller's array when the ticket has ended.
func (t *tensor) wants(node uint32, h *wire.Header) bool {
	o := t.active
	return o != nil && h.Round == t.round && h.Packet < t.packets && h.Codec == wire.CodecPlain && t.table == nil && o.got[h.Packet/64]>>(h.Packet%64)&1 == 0 &&
		int(h.RawLen) == wire.PacketLen(t.size, h.Packet) && h.DType == t.dtype && t.owner(h.Packet) == node
}

// owner is the node that sums a packet.
func (t *tensor) owner(packet uint32) uint32 { return t.run(packet).Node }

// run is the run that a packet is in.
func (t *tensor) run(packet uint32) plan.Run {
	i := 0
	for t.runs[i].First+t.runs[i].Count <= packet {
		i++
	}
	return t.runs[i]
}

// arrived notes that the sum of packet h is in landed (nil: it is all zeros, or
// there is none) and brings it to every other place where it is wanted.
func (t *tensor) arrived(h *wire.Header, landed []byte) {
	o := t.active
	if h.Flags&wire.FlagClash != 0 {
		o.err = fault.New(fault.Mismatch, "key %d round %d: some workers asked for op=\"sum\" and others for op=\"mean\": use the same everywhere",
			t.key, t.round)
	}
	for _, p := range o.pulls {
		region := t.region(p.memory, h.Packet)
		switch {
		case landed == nil:
			clear(region)
		case &region[0] != &landed[0]:
			copy(region, landed)
		}
	}
	o.got[h.Packet/64] |= 1 << (h.Packet % 64)
	o.count++
	o.whole = o.count == t.packets
}

// join adds a pull to a push whose sum is not whole: what is here already is
// copied, the rest will be read straight into memory where no other pull was first.
func (t *tensor) join(o *operation, p pull) {
	if o == t.active {
		for packet := range t.packets {
			if o.got[packet/64]>>(packet%64)&1 == 1 {
				copy(t.region(p.memory, packet), t.region(t.kept, packet))
			}
		}
	}
	o.pulls = append([]pull{p}, o.pulls...)
}
