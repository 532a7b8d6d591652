package kv

import (
	"maps"
	"math"
	"slices"

	"fptps/gocore/aggregate"
	"fptps/gocore/store"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// With FPTPS_REPLICAS=1 each aggregator has a backup: another aggregator, with a replica of its store. Every change of the store is sent there
// as it is made (wire.Replica), and the backup applies it by the same code (store.Apply). Whatever shows the change to a worker, the new weights or the
// answer to a request, leaves when the backup has confirmed it (wire.Replicated). So the replica has all that any worker has seen. When the aggregator dies, its
// backup adopts the replica (replica.go), and the workers send it what the dead one has not answered.
//
// Changes of one tensor have one priority as long as some of them are not confirmed, so that they arrive in order. Changes of different tensors may overtake
// each other.

// backup is the present backup of an aggregator.
type backup struct {
	node    uint32 // none: there is nobody
	changes map[store.PacketID]*changes
	tensors map[uint32]*urgency

	lacks   []store.PacketID // packets that the backup has to get yet, the next one last
	missing map[store.PacketID]bool
	copying int                          // packets of these that are on their way
	onWhole func(node uint32, epoch int) // called when the backup has everything, from the loop
	whole   bool
	epoch   int // the last one that Succeed has named
}

// none is the node of a backup that does not exist.
const none = 0

// changes are those of one packet that the backup has not confirmed. Requests about a whole tensor count as changes of the packet in their header.
type changes struct {
	sent, confirmed uint32
	copies          []uint32 // the numbers of those that are the last of a copy
	held            []heldReply
}

// heldReply waits for the confirmation of a change.
type heldReply struct {
	after uint32 // the number of the change
	rank  int    // of the worker that gets it; everyone: all workers
	reply aggregate.Sum
}

const everyone = -1

// urgency is the priority of the unconfirmed changes of a tensor.
type urgency struct {
	open     int
	priority int32
}

// copiesAtOnce bounds the packets that are being copied to a new backup at a time: 64 with Adam's state are 3 MB.
const copiesAtOnce = 64

// BackUp gives the aggregator its first backup (0: there is nobody), before any packet arrives. onWhole is called when another backup that follows it, or this one after it was without
// some packets, has everything that the aggregator had in an epoch; it must not block.
func (a *Aggregator) BackUp(node uint32, onWhole func(node uint32, epoch int)) {
	a.backup = &backup{changes: map[store.PacketID]*changes{}, tensors: map[uint32]*urgency{}, missing: map[store.PacketID]bool{}, onWhole: onWhole}
	a.backup.node, a.backup.whole = node, node != none
	a.store.Replicates = true
	a.replicas, a.adopted = map[uint32]*store.Store{}, map[uint32]bool{}
}

// backed reports whether there is a backup.
func (a *Aggregator) backed() bool { return a.backup != nil && a.backup.node != none }

// replicate sends the backup a sum before the store applies it, if the store keeps something of it.
func (a *Aggregator) replicate(sum *aggregate.Sum) {
	h := &sum.Header
	if a.backup.missing[store.PacketID{Tensor: h.Tensor, Packet: h.Packet}] {
		return
	}
	r := wire.Header{
		Kind: wire.Replica, Op: wire.ReplicaInit, DType: h.DType, Codec: h.Codec, Tensor: h.Tensor, Packet: h.Packet, Run: 1, Round: h.Round,
		Priority: h.Priority, Policy: sum.Policy, Plan: sum.Plan, RawLen: h.RawLen,
	}
	if sum.Rated {
		r.Flags, r.LearningRate = wire.FlagLearningRate, sum.LearningRate
	}
	keeping := store.Initial
	if h.Round > 0 {
		keeping, _ = a.store.Keeps(h.Tensor, h.Packet)
		r.Op = wire.ReplicaUpdate
		if keeping == store.Initial {
			r.Op = wire.ReplicaDrop
		}
	}
	if keeping == store.Nothing {
		return
	}
	var elements *aggregate.Buffer
	if r.Op != wire.ReplicaDrop && sum.Buffer != nil {
		elements = a.elements(&r, sum)
	}
	a.change(&r, elements)
}

// elements returns a copy of a sum for the backup, of a table the rows alone, and sets the lengths in r.
func (a *Aggregator) elements(r *wire.Header, sum *aggregate.Sum) *aggregate.Buffer {
	b := a.pool.Get(wire.PacketBytes)
	if r.Codec == wire.CodecRows {
		packed, raw := sum.Rows.Pack(sum.Buffer.Bytes, b.Bytes[:0])
		b.Bytes, r.RawLen = packed, uint32(raw)
	} else {
		b.Bytes = append(b.Bytes[:0], sum.Buffer.Bytes...)
	}
	r.WireLen = uint32(len(b.Bytes))
	return b
}

// change sends the backup a change, whose payload is in owned; nil: it has none.
func (a *Aggregator) change(r *wire.Header, owned *aggregate.Buffer) *changes {
	b, id := a.backup, store.PacketID{Tensor: r.Tensor, Packet: r.Packet}
	o := b.tensors[r.Tensor]
	if o == nil {
		o = &urgency{priority: r.Priority}
		b.tensors[r.Tensor] = o
	}
	o.open++
	r.Priority = o.priority
	c := b.changes[id]
	if c == nil {
		c = &changes{}
		b.changes[id] = c
	}
	c.sent++
	m := transport.Outgoing{Header: *r}
	if owned != nil {
		m.Data, m.Owner = owned.Bytes, owned
	}
	a.plane.Send(b.node, m)
	return c
}

// deliver sends a reply to a worker, or to all, once the backup has confirmed all changes of its packet.
func (a *Aggregator) deliver(rank int, reply *aggregate.Sum) {
	if a.backed() {
		if c := a.backup.changes[store.PacketID{Tensor: reply.Header.Tensor, Packet: reply.Header.Packet}]; c != nil {
			c.held = append(c.held, heldReply{c.sent, rank, *reply})
			return
		}
	}
	a.reply(rank, reply)
}

// reply sends a reply at once.
func (a *Aggregator) reply(rank int, reply *aggregate.Sum) {
	if rank == everyone {
		a.sendToAll(reply)
		return
	}
	m := transport.Outgoing{Header: reply.Header}
	if reply.Buffer != nil {
		m.Data, m.Owner = reply.Buffer.Bytes, reply.Buffer
	}
	a.plane.Send(workerNode(rank), m)
}

// confirmed handles the backup's confirmation of the next change of a packet.
func (a *Aggregator) confirmed(node uint32, h *wire.Header) {
	b, id := a.backup, store.PacketID{Tensor: h.Tensor, Packet: h.Packet}
	if !a.backed() || node != b.node || b.changes[id] == nil {
		return
	}
	c := b.changes[id]
	c.confirmed++
	if o := b.tensors[h.Tensor]; o.open > 1 {
		o.open--
	} else {
		delete(b.tensors, h.Tensor)
	}
	for len(c.held) > 0 && c.held[0].after <= c.confirmed {
		next := c.held[0]
		c.held = c.held[1:]
		a.reply(next.rank, &next.reply)
	}
	if len(c.copies) > 0 && c.copies[0] <= c.confirmed {
		c.copies = c.copies[1:]
		b.copying--
	}
	if c.confirmed == c.sent {
		delete(b.changes, id)
	}
	a.copyMore()
}

// backUpAnew changes the backup, after the death of the last one, or as packets were adopted that it lacks. All
// replies that wait leave: until the new backup has everything, nobody has a replica.
func (a *Aggregator) backUpAnew(node uint32) {
	b := a.backup
	for _, id := range slices.SortedFunc(maps.Keys(b.changes), store.PacketID.Compare) {
		for i := range b.changes[id].held {
			a.reply(b.changes[id].held[i].rank, &b.changes[id].held[i].reply)
		}
	}
	clear(b.changes)
	clear(b.tensors)
	clear(b.missing)
	b.node, b.lacks, b.copying = node, nil, 0
	if node != none {
		a.supply(a.store.Packets())
	}
}

// supply has packets copied to the backup.
func (a *Aggregator) supply(packets []store.PacketID) {
	b := a.backup
	b.whole = false
	for _, id := range packets {
		if !b.missing[id] {
			b.missing[id] = true
			b.lacks = append(b.lacks, id)
		}
	}
	a.copyMore()
}

// copyMore copies further packets to the backup, and reports when it has all.
func (a *Aggregator) copyMore() {
	b := a.backup
	for len(b.lacks) > 0 && b.copying < copiesAtOnce {
		id := b.lacks[len(b.lacks)-1]
		b.lacks = b.lacks[:len(b.lacks)-1]
		if b.missing[id] {
			delete(b.missing, id)
			a.copyPacket(id)
		}
	}
	if b.node != none && !b.whole && len(b.lacks) == 0 && b.copying == 0 {
		b.whole = true
		b.onWhole(b.node, b.epoch)
	}
}

// copyPacket sends the backup a packet as it is now.
func (a *Aggregator) copyPacket(id store.PacketID) {
	var last *changes
	switch keeping, _ := a.store.Keeps(id.Tensor, id.Packet); keeping {
	case store.Nothing:
		return
	case store.Initial:
		r, value := a.store.Initial(id.Tensor, id.Packet)
		r.Kind, r.Op, r.Priority = wire.Replica, wire.ReplicaInit, math.MinInt32
		last = a.change(&r, value)
	default:
		last = a.copyWeights(id)
	}
	if last != nil {
		last.copies = append(last.copies, last.sent)
		a.backup.copying++
	}
}

// copyWeights is copyPacket of a packet with weights.
func (a *Aggregator) copyWeights(id store.PacketID) (last *changes) {
	arrival, chunks := a.store.Copy(id.Tensor, id.Packet)
	ask := func(op wire.Op, part uint16, payload []byte) {
		b := a.pool.Get(len(payload))
		copy(b.Bytes, payload)
		n := uint32(len(payload))
		last = a.change(&wire.Header{
			Kind: wire.Replica, Op: op, Tensor: id.Tensor, Packet: id.Packet, Run: 1, Part: part, RawLen: n, WireLen: n, Priority: math.MinInt32,
		}, b)
	}
	ask(wire.AskArrive, 0, arrival.Text())
	for _, chunk := range chunks {
		if b, err := a.store.Read(id.Tensor, id.Packet, chunk.Part, chunk.Bytes); err == nil {
			ask(wire.AskRestore, chunk.Part, b.Bytes)
			b.Release()
		}
	}
	for _, push := range a.store.Pending(id.Tensor, id.Packet) {
		last = a.copyPush(push.Rank, &push.Header, push.Payload)
	}
	return last
}

// replicatePush sends the backup a push, before the store takes it.
func (a *Aggregator) replicatePush(rank int, h *wire.Header, payload []byte) {
	one := *h
	one.Run = 1
	for p := h.Packet; p < h.Packet+h.Run; p++ {
		if one.Packet = p; p < h.Packet+h.Run-1 {
			one.RawLen = wire.PacketBytes
		} else {
			one.RawLen = h.RawLen
		}
		if !a.backup.missing[store.PacketID{Tensor: h.Tensor, Packet: p}] {
			a.copyPush(rank, &one, payload)
		}
	}
}

// copyPush sends the backup the push of one packet.
func (a *Aggregator) copyPush(rank int, h *wire.Header, payload []byte) *changes {
	r := wire.Header{
		Kind: wire.Replica, Op: wire.ReplicaPush, DType: h.DType, Codec: h.Codec, Tensor: h.Tensor, Packet: h.Packet, Run: 1, Round: h.Round, Rank: uint16(rank),
		Flags: h.Flags & wire.FlagLearningRate, LearningRate: h.LearningRate, Priority: h.Priority, Policy: h.Policy, Plan: h.Plan, RawLen: h.RawLen,
	}
	var b *aggregate.Buffer
	if h.Kind == wire.Contrib {
		b = a.pool.Get(len(payload))
		copy(b.Bytes, payload)
		r.WireLen = uint32(len(payload))
	}
	return a.change(&r, b)
}

// replicateAsk sends the backup a request that has changed the store.
func (a *Aggregator) replicateAsk(h *wire.Header, payload []byte) {
	id := store.PacketID{Tensor: h.Tensor, Packet: h.Packet}
	if h.Op == wire.AskArrive && a.backup != nil {
		delete(a.backup.missing, id)
	}
	if !a.backed() || !changesStore(h.Op) || h.Op == wire.AskRestore && a.backup.missing[id] {
		return
	}
	r := wire.Header{
		Kind: wire.Replica, Op: h.Op, Tensor: h.Tensor, Packet: h.Packet, Run: 1, Part: h.Part, Priority: h.Priority,
		RawLen: uint32(len(payload)), WireLen: uint32(len(payload)),
	}
	b := a.pool.Get(len(payload))
	copy(b.Bytes, payload)
	a.change(&r, b)
}

// changesStore reports whether a request changes the store of the aggregator.
func changesStore(op wire.Op) bool {
	return op == wire.AskRule || op == wire.AskResume || op == wire.AskArrive || op == wire.AskLeave || op == wire.AskRestore
}
