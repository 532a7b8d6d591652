package kv

import (
	"bytes"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/plan"
	"fptps/gocore/transport"
	"fptps/gocore/transport/mem"
	"fptps/gocore/wire"
)

// cluster is a whole cluster; in the scheduler's place it gives a key its id once
// all workers have declared it.
type cluster struct {
	t           *testing.T
	network     *mem.Network
	workers     []*Worker
	aggregators []*Aggregator
	spies       []*spy        // of the aggregators
	log         *bytes.Buffer // of all nodes, complete once the network is closed

	mu       sync.Mutex
	declared map[uint64][]func(uint32, error)
	ids      uint32
}

// newCluster starts workers whose aggregators have the given shares, and servers.
func newCluster(t *testing.T, workerShares, serverShares []uint32, pick func(int) int, watch func(rank int, h *wire.Header)) *cluster {
	c := &cluster{t: t, network: mem.New(pick), log: &bytes.Buffer{}, declared: map[uint64][]func(uint32, error){}}
	log := slog.New(slog.NewTextHandler(c.log, nil)) // which locks
	var shares []plan.Share
	var ids []uint32
	for rank, share := range serverShares {
		shares = append(shares, plan.Share{Node: serverID(rank), Share: share})
	}
	for rank, share := range workerShares {
		ids = append(ids, workerID(rank))
		shares = append(shares, plan.Share{Node: workerID(rank), Share: share})
	}
	cut, err := plan.New(shares)
	if err != nil {
		t.Fatal(err)
	}
	attach := func(node uint32, w *Worker, plane *mem.Plane, watch func(h *wire.Header)) {
		a := NewAggregator(node, aggregate.NewMembers(len(ids)), plane, false, log)
		c.aggregators = append(c.aggregators, a)
		s := &spy{watch: watch, Handler: Handler{
			Self: node, Worker: w, Aggregator: a,
			OnLost:   func(node uint32, err error) { t.Errorf("lost node %d: %v", node, err) },
			OnFailed: func(err error) { t.Error(err) },
		}}
		c.spies = append(c.spies, s)
		plane.Attach(s)
	}
	for rank := range serverShares {
		attach(serverID(rank), nil, c.network.Join(serverID(rank)), func(*wire.Header) {})
	}
	for rank := range workerShares {
		plane := c.network.Join(workerID(rank))
		w := NewWorker(WorkerConfig{
			Rank: rank, Workers: ranksTo(len(workerShares)), Plan: cut, Lanes: []DataPlane{plane}, Tickets: NewTickets(), Log: log, Declare: each(c.declare),
			Name: func(node uint32) string { return wire.NodeName(int(node)) },
		})
		c.workers = append(c.workers, w)
		attach(workerID(rank), w, plane, func(h *wire.Header) { watch(rank, h) })
	}
	return c
}

func serverID(rank int) uint32 { return uint32(wire.ServerID(rank)) }
func workerID(rank int) uint32 { return uint32(wire.WorkerID(rank)) }

func (c *cluster) declare(key uint64, _ wire.Tensor, done func(uint32, error)) {
	c.mu.Lock() // also during the answers: all workers get them in the order of the ids
	defer c.mu.Unlock()
	c.declared[key] = append(c.declared[key], done)
	if len(c.declared[key]) < len(c.workers) {
		return
	}
	for _, done := range c.declared[key] {
		done(c.ids, nil)
	}
	c.ids++
}

// close ends the cluster and checks that nothing is left over.
func (c *cluster) close() {
	c.network.Close()
	for i, a := range c.aggregators {
		if c.spies[i].gone != nil && c.spies[i].gone.dead {
			continue
		}
		n := a.pool.Lent() - a.store.BufferCount()
		for _, r := range a.replicas {
			n -= r.BufferCount()
		}
		if n != 0 {
			c.t.Errorf("aggregator %d: %d buffers are lent at the end", i, n)
		}
	}
	for rank, w := range c.workers {
		if n := len(w.mu.flights.list); n != 0 {
			c.t.Errorf("worker %d: %d arrays are in flight at the end", rank, n)
		}
		if n := w.Tickets.mu.open; n != 0 {
			c.t.Errorf("worker %d: %d tickets have not ended", rank, n)
		}
	}
}

// numbers counts the tickets that have got a number.
var numbers atomic.Int64

// wait waits for a ticket, at most a minute of virtual time.
func wait(t *testing.T, w *Worker, ticket *Ticket) error {
	t.Helper()
	explained := ticket.Explain().Text
	ended := make(chan struct{}, 1) // Tickets.Wait sleeps in the kernel, where no virtual time passes
	w.Tickets.Notify(func() {
		select {
		case ended <- struct{}{}:
		default:
		}
	})
	if ticket.number == 0 {
		if err := w.Tickets.Number(ticket, numbers.Add(1)); err != nil {
			t.Fatal(err)
		}
	}
	for minute := time.After(time.Minute); !ticket.Done(); {
		select {
		case <-ended:
			continue
		case <-minute:
		}
		break
	}
	done, err := ticket.Wait(0)
	if !done {
		t.Errorf("rank %d waits for ever: %s (before: %s)", w.Rank, ticket.Explain().Text, explained)
	}
	return err
}

// spy sees the headers of all packets that reach a node.
type spy struct {
	watch func(h *wire.Header)
	gone  *gone // nil: nobody dies
	Handler
}

func (s *spy) Place(node uint32, h *wire.Header) (transport.Destination, error) {
	if s.gone != nil && s.gone.drops(node) {
		return transport.Destination{Bytes: make([]byte, h.WireLen)}, nil
	}
	return s.Handler.Place(node, h)
}

func (s *spy) Arrived(node uint32, h *wire.Header, l transport.Destination) error {
	if s.gone != nil && s.gone.cuts(node) {
		if b, ok := l.Owner.(*aggregate.Buffer); ok {
			b.Release()
		}
		return nil
	}
	s.watch(h)
	return s.Handler.Arrived(node, h, l)
}

func (s *spy) Local(h *wire.Header, payload []byte) error {
	s.watch(h)
	return s.Handler.Local(h, payload)
}
