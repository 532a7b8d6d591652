package kv

import (
	"encoding/binary"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/store"
	"fptps/gocore/trace"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// Aggregator sums the workers' contributions. The moment a sum is complete, it sends
// every worker the sum, or the weights that the store makes of it. If each worker has
// rounds of its own (bounded, async), it answers each contribution to its worker alone.
// The receive loop's thread makes all calls.
type Aggregator struct {
	self    uint32
	members *aggregate.Members
	workers atomic.Pointer[[]uint32] // node ids of the members, which receive sums
	plane   DataPlane
	pool    *aggregate.Pool
	slots   *aggregate.Slots
	store   *store.Store
	log     *slog.Logger
	Trace   *trace.Tracer              // of packets; nil: none are traced
	sums    []aggregate.Sum            // scratch
	replies []store.Reply              // scratch
	held    map[uint32][]aggregate.Sum // by tensor: sums that wait for the tensor's last; nil: none has to wait

	backup   *backup                 // nil: there are no replicas; see backup.go
	replicas map[uint32]*store.Store // of the aggregators whose backup this one is
	adopted  map[uint32]bool         // aggregators that have died: what still arrives from them comes too late
	todo     struct {                // see do
		sync.Mutex
		list []func()
	}
}

// NewAggregator makes the aggregator of the node self, for the workers that are members. With
// hold, the sums of a tensor leave only when all of them are complete, as in systems
// that send whole tensors only.
func NewAggregator(self uint32, members *aggregate.Members, plane DataPlane, hold bool, log *slog.Logger) *Aggregator {
	pool, now := aggregate.NewPool(), time.Now()
	a := &Aggregator{
		self: self, members: members, plane: plane, log: log,
		pool: pool, slots: aggregate.NewSlots(members, pool, now), store: store.New(members.Ranks(), pool, now),
	}
	a.changed()
	if hold {
		a.held = map[uint32][]aggregate.Sum{}
	}
	return a
}

// changed notes which workers are members.
func (a *Aggregator) changed() {
	var workers []uint32
	for _, rank := range a.members.Ranks() {
		workers = append(workers, workerNode(rank))
	}
	a.workers.Store(&workers)
}

// Bury begins an epoch without a worker, which is dead, and Join one with a new worker; from any goroutine. See aggregate.Members. done is closed
// when the aggregator has taken note of it in all that it keeps.
func (a *Aggregator) Bury(rank int) (done <-chan struct{}) {
	a.members.Bury(rank)
	a.changed()
	return a.do(func() {
		if a.backup == nil { // else Succeed follows
			a.buryRank(rank)
		}
	})
}

// Join is described at Bury.
func (a *Aggregator) Join(rank int) (done <-chan struct{}) {
	a.members.Join(rank)
	a.changed()
	return a.do(func() {
		a.store.Join(rank)
		for _, r := range a.replicas {
			r.Join(rank)
		}
	})
}

// rankOf returns a worker's rank, -1 for other nodes, which aggregate.Slots refuses.
func rankOf(node uint32) int { return wire.RankOfWorker(int(node)) }

func workerNode(rank int) uint32 { return uint32(wire.WorkerID(rank)) }

// add takes a contribution; see aggregate.Slots.Add for payload and owned.
func (a *Aggregator) add(node uint32, h *wire.Header, payload []byte, owned *aggregate.Buffer) error {
	rank := rankOf(node)
	if h.Round > 0 && h.Policy.Applied() != wire.Sync {
		return a.push(rank, h, payload, owned)
	}
	if a.backup != nil && h.Round > 0 {
		return a.addUnapplied(rank, h, payload, owned)
	}
	return a.addToSlots(rank, h, payload, owned)
}

// addUnapplied adds a contribution to those packets to which its round is not applied yet. The others are answered.
func (a *Aggregator) addUnapplied(rank int, h *wire.Header, payload []byte, owned *aggregate.Buffer) error {
	if h.Kind == wire.Contrib {
		if !a.answerApplied(rank, h, h.Packet) {
			return a.addToSlots(rank, h, payload, owned)
		}
		if owned != nil {
			owned.Release()
		}
		return nil
	}
	end := h.Packet + h.Run
	for first := h.Packet; first < end; {
		if a.answerApplied(rank, h, first) {
			first++
			continue
		}
		part := *h
		part.Packet, part.Run = first, 1
		for part.Packet+part.Run < end && !a.answerApplied(rank, h, part.Packet+part.Run) {
			part.Run++
		}
		if first = part.Packet + part.Run; first < end {
			part.RawLen = wire.PacketBytes
			first++ // it was answered
		}
		if err := a.addToSlots(rank, &part, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// addToSlots adds a contribution to the slots of its packets.
func (a *Aggregator) addToSlots(rank int, h *wire.Header, payload []byte, owned *aggregate.Buffer) error {
	var err error
	a.sums = a.sums[:0]
	if h.Kind == wire.Empty {
		a.sums, err = a.slots.AddEmpty(rank, h, a.sums)
	} else if sum, done, e := a.slots.Add(rank, h, payload, owned); done {
		a.sums = append(a.sums, sum)
	} else {
		err = e
	}
	a.traceSummed(rank, h, err)
	a.recall()
	return a.complete(h, a.ignoreStale(err))
}

// complete sends a.sums, which the contribution h has completed, or the weights that they lead to. It returns the last
// error of the store, else err.
func (a *Aggregator) complete(h *wire.Header, err error) error {
	backed := a.backed()
	for i := range a.sums {
		if backed {
			a.replicate(&a.sums[i])
		}
		if e := a.store.Complete(&a.sums[i]); e != nil {
			a.sums[i].Header.Run = 0 // it is not sent
			err = e
		}
	}
	for i := 0; i < len(a.sums); {
		sum := &a.sums[i]
		for i++; !backed && i < len(a.sums) && canMerge(&sum.Header, &a.sums[i].Header); i++ {
			sum.Header.Run++
		}
		switch {
		case sum.Header.Run == 0:
		case a.held != nil && h.Kind == wire.Contrib:
			a.hold(sum, h.Flags&wire.FlagLast != 0)
		default:
			a.deliver(everyone, sum)
		}
	}
	return err
}

// canMerge reports whether next, about a packet of a table, can be merged into the header h by adding 1 to h.Run.
func canMerge(h, next *wire.Header) bool {
	return h.Codec == wire.CodecRows && next.Codec == wire.CodecRows && h.Run > 0 && next.Run == 1 &&
		h.Tensor == next.Tensor && h.Round == next.Round && h.Packet+h.Run == next.Packet && h.Run < wire.MaxRun
}

// push applies a contribution to a tensor of which each worker has rounds of its own.
func (a *Aggregator) push(rank int, h *wire.Header, payload []byte, owned *aggregate.Buffer) error {
	backed := a.backed()
	if backed {
		a.replicatePush(rank, h, payload)
	}
	replies, err := a.store.Push(rank, h, payload, owned, a.replies[:0])
	a.replies = replies
	if err == nil {
		a.Trace.Packet(trace.Summed, h.Tensor, h.Round, h.Packet, workerNode(rank), int(h.WireLen))
	}
	for i := 0; i < len(replies); {
		r := &replies[i]
		for i++; !backed && i < len(replies) && replies[i].Rank == r.Rank && canMerge(&r.Header, &replies[i].Header); i++ {
			r.Header.Run++
		}
		a.deliver(r.Rank, &r.Sum)
	}
	return err
}

// hold keeps a sum until that of the tensor's last packet is complete. A worker's packets
// come in order, so all the others are complete then.
func (a *Aggregator) hold(sum *aggregate.Sum, last bool) {
	tensor := sum.Header.Tensor
	a.held[tensor] = append(a.held[tensor], *sum)
	if !last {
		return
	}
	for i := range a.held[tensor] {
		a.sendToAll(&a.held[tensor][i])
	}
	a.held[tensor] = a.held[tensor][:0]
}

// ignoreStale returns err, nil if it is about a round that is complete.
func (a *Aggregator) ignoreStale(err error) error {
	if err == aggregate.ErrStale {
		return nil
	}
	return err
}

// sendToAll sends a sum to every worker, straight from the slot's buffer.
func (a *Aggregator) sendToAll(sum *aggregate.Sum) {
	m, workers := transport.Outgoing{Header: sum.Header}, *a.workers.Load()
	if sum.Buffer != nil {
		m.Data, m.Owner = sum.Buffer.Bytes, sum.Buffer
		sum.Buffer.Retain(len(workers) - 1)
	}
	for _, node := range workers {
		a.plane.Send(node, m) // which drops what is for a dead one
	}
}

// tick sends the workers of each round that stalls the names of those whose contributions are missing.
func (a *Aggregator) tick(now time.Time) {
	a.catchUp()
	a.pool.Tick()
	for _, stall := range append(a.slots.Tick(now), a.store.Tick(now)...) {
		var nodes []byte
		for _, rank := range stall.Missing[:min(len(stall.Missing), wire.PacketBytes/4)] {
			a.Trace.Note(trace.Event{Kind: trace.Missing, Tensor: stall.Tensor, Round: uint32(stall.Round), Peer: workerNode(rank)})
			nodes = binary.LittleEndian.AppendUint32(nodes, workerNode(rank))
		}
		h := wire.Header{
			Kind: wire.Missing, Tensor: stall.Tensor, Round: stall.Round, Run: 1, Priority: 1<<31 - 1,
			RawLen: uint32(len(nodes)), WireLen: uint32(len(nodes)),
		}
		for _, rank := range stall.Waiting {
			a.plane.Send(workerNode(rank), transport.Outgoing{Header: h, Data: nodes})
		}
	}
}
