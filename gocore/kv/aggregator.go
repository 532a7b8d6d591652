package kv

import (
	"encoding/binary"
	"log/slog"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/store"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// Aggregator sums what workers contribute and sends each sum, or the weights that
// the store makes of it, the moment it is complete to every worker. Where a tensor's
// rounds are each worker's own, it answers that worker alone. It lives on the receive
// loop's thread.
type Aggregator struct {
	workers []uint32 // node ids by rank
	ranks   map[uint32]int
	plane   DataPlane
	pool    *aggregate.Pool
	table   *aggregate.Table
	store   *store.Store
	log     *slog.Logger
	sums    []aggregate.Sum            // scratch
	replies []store.Reply              // scratch
	held    map[uint32][]aggregate.Sum // by tensor, where sums leave only when all of a tensor are there
}

// NewAggregator makes the aggregator of a node; workers are node ids by rank.
// Where hold is true the sums of a tensor wait for each other, as in systems that know
// whole tensors only.
func NewAggregator(workers []uint32, plane DataPlane, hold bool, log *slog.Logger) *Aggregator {
	pool, now := aggregate.NewPool(), time.Now()
	a := &Aggregator{
		workers: workers, ranks: map[uint32]int{}, plane: plane, log: log,
		pool: pool, table: aggregate.NewTable(len(workers), pool, now), store: store.New(len(workers), pool, now),
	}
	for rank, id := range workers {
		a.ranks[id] = rank
	}
	if hold {
		a.held = map[uint32][]aggregate.Sum{}
	}
	return a
}

// rank gives a worker's rank, -1 for other nodes, which the table refuses.
func (a *Aggregator) rank(node uint32) int {
	if rank, ok := a.ranks[node]; ok {
		return rank
	}
	return -1
}

// add takes a contribution; see aggregate.Table.Add for payload and owned.
func (a *Aggregator) add(node uint32, h *wire.Header, payload []byte, owned *aggregate.Buffer) error {
	rank := a.rank(node)
	if h.Round > 0 && h.Policy() != wire.Sync {
		return a.push(rank, h, payload, owned)
	}
	var err error
	a.sums = a.sums[:0]
	if h.Kind == wire.Empty {
		a.sums, err = a.table.AddEmpty(rank, h, a.sums)
	} else if sum, done, e := a.table.Add(rank, h, payload, owned); done {
		a.sums = append(a.sums, sum)
	} else {
		err = e
	}
	return a.complete(h, a.tolerate(err))
}

// complete sends a.sums, or the weights that they lead to, which the contribution h has made complete. err is what came before.
func (a *Aggregator) complete(h *wire.Header, err error) error {
	for i := range a.sums {
		if e := a.store.Complete(&a.sums[i]); e != nil {
			a.sums[i].Header.Run = 0 // and is no more
			err = e
		}
	}
	for i := 0; i < len(a.sums); {
		sum := &a.sums[i]
		for i++; i < len(a.sums) && follows(&sum.Header, &a.sums[i].Header); i++ {
			sum.Header.Run++
		}
		switch {
		case sum.Header.Run == 0:
		case a.held != nil && h.Kind == wire.Contrib:
			a.hold(sum, h.Flags&wire.FlagLast != 0)
		default:
			a.spread(sum)
		}
	}
	return err
}

// follows tells whether what next says of its packet of a table can be said together with what h says of its own.
func follows(h, next *wire.Header) bool {
	return h.Codec == wire.CodecRows && next.Codec == wire.CodecRows && h.Run > 0 && next.Run == 1 &&
		h.Tensor == next.Tensor && h.Round == next.Round && h.Packet+h.Run == next.Packet && h.Run < wire.MaxRun
}

// push applies a contribution to a tensor whose rounds are each worker's own.
func (a *Aggregator) push(rank int, h *wire.Header, payload []byte, owned *aggregate.Buffer) error {
	replies, err := a.store.Push(rank, h, payload, owned, a.replies[:0])
	a.replies = replies
	for i := 0; i < len(replies); {
		r := &replies[i]
		for i++; i < len(replies) && replies[i].Rank == r.Rank && follows(&r.Header, &replies[i].Header); i++ {
			r.Header.Run++
		}
		m := transport.Outgoing{Header: r.Header}
		if r.Buffer != nil {
			m.Data, m.Owner = r.Buffer.Bytes, r.Buffer
		}
		a.plane.Send(a.workers[r.Rank], m)
	}
	return err
}

// hold keeps a sum until the last of its tensor is there. A sender's packets come in
// order, so all the others are, then.
func (a *Aggregator) hold(sum *aggregate.Sum, last bool) {
	tensor := sum.Header.Tensor
	a.held[tensor] = append(a.held[tensor], *sum)
	if !last {
		return
	}
	for i := range a.held[tensor] {
		a.spread(&a.held[tensor][i])
	}
	a.held[tensor] = a.held[tensor][:0]
}

func (a *Aggregator) tolerate(err error) error {
	if err == aggregate.ErrStale {
		return nil
	}
	return err
}

// spread sends a sum to every worker, straight from the slot's buffer.
func (a *Aggregator) spread(sum *aggregate.Sum) {
	m := transport.Outgoing{Header: sum.Header}
	if sum.Buffer != nil {
		m.Data, m.Owner = sum.Buffer.Bytes, sum.Buffer
		sum.Buffer.Retain(len(a.workers) - 1)
	}
	for _, node := range a.workers {
		a.plane.Send(node, m)
	}
}

// tick tells workers whose round stalls whom it waits for.
func (a *Aggregator) tick(now time.Time) {
	for _, stall := range append(a.table.Tick(now), a.store.Tick(now)...) {
		var nodes []byte
		for _, rank := range stall.Missing[:min(len(stall.Missing), wire.PacketBytes/4)] {
			nodes = binary.LittleEndian.AppendUint32(nodes, a.workers[rank])
		}
		h := wire.Header{
			Kind: wire.Missing, Tensor: stall.Tensor, Round: stall.Round, Run: 1, Priority: 1<<31 - 1,
			RawLen: uint32(len(nodes)), WireLen: uint32(len(nodes)),
		}
		for _, rank := range stall.Waiting {
			a.plane.Send(a.workers[rank], transport.Outgoing{Header: h, Data: nodes})
		}
	}
}
