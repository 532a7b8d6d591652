package kv

import (
	"container/list"
	"slices"
	"sync/atomic"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/store"
	"fptps/gocore/trace"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// tensor is one key of this worker. It has one round at a time under way: a push
// waits in queue until the sum of the push before it is whole.
type tensor struct {
	key     uint64
	name    string // of the key in texts: wire.KeyText
	shape   string // wire.Tensor's Shape
	label   string // wire.Tensor's Name
	id      uint32
	size    uint64
	dtype   wire.DType
	policy  wire.Policy
	packets uint32
	plan    uint16     // number of the plan of runs, modulo 2^16
	runs    []plan.Run // of the round that is under way, or of the last one
	epoch   uint16     // of that round
	before  []plan.Run // of the round before that
	earlier uint16     // its epoch
	changes []change   // of the plan, by ascending number, that concern later rounds
	table   *table     // nil: the tensor is not a table

	last    *operation    // the last push, whatever its state; a pull returns its sum
	active  *operation    // whose round is under way, nil if there is none
	queue   []*operation  // that wait for their round, in order
	round   uint64        // number of active's round, or of the last one
	next    uint64        // number of the next round
	kept    []byte        // the sum of the last push, or nil; see pull.go
	got     []uint64      // memory for the got of active
	again   bool          // the heir of a dead aggregator has a part of the value
	lost    string        // the dead aggregator that had a part of the initial value; "": none
	clashed uint64        // the last round of which there is no sum, as workers named different operations
	begun   time.Time     // when round began, to the second
	missing []string      // workers that active waits for, by the aggregators' last report
	place   *list.Element // in Worker.mu.late; nil if missing is nil
	since   uint64        // the first round in which this worker takes part; above 0 if it was admitted later
	readers int           // pulls that copy from kept, or wait for rows

	rule     *store.Rule // that this worker has set on the aggregators, nil: none
	updated  bool        // a sum has shown that the aggregators have a rule
	learning bool        // this worker asks which one
	rate     float32     // the learning rate that the next rounds carry, if rated
	rated    bool        // they carry one, if this worker leads

	clockSet bool      // by Resume, on this worker: the aggregators keep what no worker has
	held     bool      // a promise forbids to begin a round
	handing  *handOver // moves weights to other aggregators before the round's contributions leave; nil: none has to move
}

// adopted reports whether the others had begun with the tensor when this worker was admitted.
func (t *tensor) adopted() bool { return t.since > 0 }

// verb is the caller's request.
type verb uint8

const (
	verbInit verb = iota
	verbPush
	verbPushPull
	verbSkip
	verbFetch // of the initial value, for a pull: no round
)

// operation is this worker's push, pull or skip in one round of one tensor.
type operation struct {
	worker   *Worker
	tensor   *tensor
	verb     verb
	ticket   *Ticket
	source   []byte    // the array that is pushed; nil contributes EMPTY
	borrowed bool      // source is the caller's, and is in flights
	parts    []rowPart // the rows that are pushed, of a table; packets without rows contribute EMPTY
	op       wire.Op
	priority int32
	called   time.Time // if WorkerConfig.Observe is set

	pulls []pull   // arrays that receive the sum; packets are read into the first and copied to the others
	got   []uint64 // a bit for each packet whose sum has arrived
	count uint32   // of them
	err   error
	whole bool       // all of them have arrived, and the round has ended
	epoch uint16     // of the round, once it has ended
	round uint64     // once it has begun
	kept  []byte     // becomes the tensor's as the round begins; nil: the tensor has memory, or needs none
	after []*rowPull // pulls of rows that wait for this round

	queued atomic.Int32 // runs that the transport still refers to
}

// pull is one array that receives the sum.
type pull struct {
	memory []byte
	ticket *Ticket // nil if the operation's own ticket stands for it
	caller bool    // memory is the caller's, and is in flights
}

// keepsSum reports whether the sum outlives the round, for later pulls or for a recovery.
func (o *operation) keepsSum() bool {
	return o.verb == verbPush || o.verb == verbSkip || o.verb == verbPushPull && o.worker.Recovers
}

// has reports whether the sum of a packet has arrived.
func (o *operation) has(p uint32) bool { return o.got[p/64]>>(p%64)&1 == 1 }

// record records that the sum of a packet has arrived.
func (o *operation) record(p uint32) {
	o.got[p/64] |= 1 << (p % 64)
	o.count++
}

// hasAll reports whether the sums of all packets have arrived.
func (o *operation) hasAll() bool { return o.count == o.tensor.packets }

// region returns packet p's part of a whole tensor's memory.
func (t *tensor) region(memory []byte, p uint32) []byte {
	from := int(p) * wire.PacketBytes
	return memory[from:min(from+wire.PacketBytes, len(memory))]
}

// begin starts o's round and returns its contributions, to be sent. The lock is held.
func (w *Worker) begin(t *tensor, o *operation) []sending {
	t.active = o
	clear(t.got)
	o.got = t.got
	if o.verb == verbFetch {
		return t.requestValue(o)
	}
	t.round = t.next
	t.next++
	t.earlier, t.epoch = t.epoch, w.mu.epoch
	moved := t.followPlan()
	o.round = t.round
	w.mu.stats.Rounds++
	w.Trace.Note(trace.Event{Kind: trace.Begun, Tensor: t.id, Round: uint32(t.round)})
	if t.table != nil {
		return t.contributions()
	}
	if o.kept != nil {
		t.kept, o.kept = o.kept, nil
	}
	switch {
	case !o.keepsSum():
		w.dropKept(t)
	case w.Recovers: // there alone until the round has ended: it may have to be repeated
		o.pulls = slices.Insert(o.pulls, 0, pull{memory: t.kept})
	default:
		o.pulls = append(o.pulls, pull{memory: t.kept})
	}
	if moved && t.ruled() && w.leads() {
		return w.handOver(t)
	}
	return t.contributions()
}

// ruled reports whether the aggregators apply an optimiser to the tensor's sums.
func (t *tensor) ruled() bool { return t.rule != nil || t.updated }

// contributions returns those to the round under way.
func (t *tensor) contributions() []sending {
	out := make([]sending, 0, len(t.runs))
	for _, run := range t.runs {
		out = t.contribute(t.active, run, out)
	}
	return t.active.leave(out)
}

// contribute appends o's contributions to a run of packets.
func (t *tensor) contribute(o *operation, run plan.Run, out []sending) []sending {
	if t.table != nil {
		return t.contributeRows(o, run, out)
	}
	if o.source == nil || o.verb == verbInit && !o.worker.leads() {
		return t.zeros(o, run, out)
	}
	from := uint64(run.First) * wire.PacketBytes
	data := o.source[from:min(from+uint64(run.Count)*wire.PacketBytes, t.size)]
	return append(out, sending{run.Node, run.Lane, t.header(wire.Contrib, o, run.First), data, o})
}

// leave counts the contributions that the transport refers to from now on.
func (o *operation) leave(out []sending) []sending {
	o.queued.Add(int32(len(out)))
	return out
}

// zeros appends EMPTY for a run of packets, in as many headers as are needed.
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
		Kind: kind, DType: t.dtype, Op: o.op, Tensor: t.id, Packet: first, Run: 1, Round: t.round, Epoch: t.epoch, Priority: o.priority,
		Policy: t.policy, Plan: t.plan,
	}
	if t.table != nil {
		h.Codec = wire.CodecRows
	}
	if t.rated && o.worker.leads() {
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

// wants reports whether the tensor waits for the sum h from node. It takes the sum only
// from the node that sums this packet: another node's payload might still be on its way
// into the caller's array after the ticket has ended.
func (t *tensor) wants(node uint32, h *wire.Header) bool {
	o := t.active
	return o != nil && h.Round == t.round && h.Epoch == t.epoch && h.Packet < t.packets && h.Codec == wire.CodecPlain && t.table == nil && !o.has(h.Packet) &&
		int(h.RawLen) == wire.PacketLen(t.size, h.Packet) && h.DType == t.dtype && t.owner(h.Packet) == node
}

// owner returns the node that sums a packet.
func (t *tensor) owner(packet uint32) uint32 { return t.run(packet).Node }

// run returns the run that contains a packet.
func (t *tensor) run(packet uint32) plan.Run {
	i := 0
	for t.runs[i].First+t.runs[i].Count <= packet {
		i++
	}
	return t.runs[i]
}

// arrived records that the sum of a packet has arrived in payload (nil: it is all zeros, or FlagClash is set), and copies it to all
// other pulls. A worker that recovers copies it when the round has ended.
func (t *tensor) arrived(h *wire.Header, payload []byte) {
	o := t.active
	if h.Flags&wire.FlagClash != 0 {
		t.clashed = t.round
		o.err = fault.New(fault.Mismatch, "%s round %d: some workers asked for op=\"sum\" and others for op=\"mean\": use the same everywhere",
			t.name, t.round).With(t.about())
	}
	pulls := o.pulls
	if o.worker.Recovers {
		pulls = pulls[:min(1, len(pulls))]
	}
	for _, p := range pulls {
		region := t.region(p.memory, h.Packet)
		switch {
		case payload == nil:
			clear(region)
		case &region[0] != &payload[0]:
			copy(region, payload)
		}
	}
	o.record(h.Packet)
}
