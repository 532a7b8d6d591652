package kv

import (
	"encoding/binary"
	"log/slog"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// Aggregator sums what workers contribute and sends each sum, the moment it is
// complete, to every worker. It lives on the receive loop's thread.
type Aggregator struct {
	workers []uint32 // node ids by rank
	ranks   map[uint32]int
	plane   DataPlane
	pool    *aggregate.Pool
	table   *aggregate.Table
	log     *slog.Logger
	sums    []aggregate.Sum            // scratch
	held    map[uint32][]aggregate.Sum // by tensor, where sums leave only when all of a tensor are there
}

// NewAggregator makes the aggregator of a node; workers are node ids by rank.
// Where hold is true the sums of a tensor wait for each other, as in systems that know
// whole tensors only.
func NewAggregator(workers []uint32, plane DataPlane, hold bool, log *slog.Logger) *Aggregator {
	pool := aggregate.NewPool()
	a := &Aggregator{
		workers: workers, ranks: map[uint32]int{}, plane: plane, log: log,
		pool: pool, table: aggregate.NewTable(len(workers), pool, time.Now()),
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
	if h.Kind == wire.Empty {
		sums, err := a.table.AddEmpty(a.rank(node), h, a.sums[:0])
		for i := range sums {
			a.spread(&sums[i])
		}
		a.sums = sums
		return a.tolerate(err)
	}
	sum, done, err := a.table.Add(a.rank(node), h, payload, owned)
	switch {
	case done && a.held != nil:
		a.hold(&sum, h.Flags&wire.FlagLast != 0)
	case done:
		a.spread(&sum)
	}
	return a.tolerate(err)
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
	for _, stall := range a.table.Tick(now) {
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
