package kv

import (
	"log/slog"
	"testing"

	"fptps/gocore/aggregate"
	"fptps/gocore/plan"
	"fptps/gocore/store"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// loop is a data plane without allocations of its own: one node that is worker
// and aggregator, whose packets wait in a fixed queue until deliver.
type loop struct {
	handler Handler
	queue   []transport.Outgoing
}

func (l *loop) Send(_ uint32, m transport.Outgoing) { l.queue = append(l.queue, m) }

func (l *loop) deliver(t *testing.T) {
	for i := 0; i < len(l.queue); i++ {
		m := &l.queue[i]
		h := m.Header
		for at := 0; at == 0 || at < len(m.Data); at += wire.PacketBytes {
			payload := m.Data[at:min(at+wire.PacketBytes, len(m.Data))]
			if h.WireLen = uint32(len(payload)); h.WireLen > 0 {
				h.RawLen = h.WireLen
			}
			if err := l.handler.Local(&h, payload); err != nil {
				t.Fatal(err)
			}
			h.Packet++
		}
		if m.Owner != nil {
			m.Owner.Release()
		}
	}
	clear(l.queue)
	l.queue = l.queue[:0]
}

// roundAllocations counts the allocations of a round, with all its ticket's life.
func roundAllocations(t *testing.T, packets int, policy wire.Policy, rule *store.Rule, round func(w *Worker, array []byte) (*Ticket, error)) float64 {
	l := &loop{queue: make([]transport.Outgoing, 0, 1000)}
	shares, err := plan.New([]plan.Share{{Node: 9, Share: 1}})
	if err != nil {
		t.Fatal(err)
	}
	w := NewWorker(WorkerConfig{
		Workers: []int{0}, Plan: shares, Lanes: []DataPlane{l}, Tickets: NewTickets(),
		Declare: each(func(_ uint64, _ wire.Tensor, done func(uint32, error)) { done(1, nil) }),
	})
	l.handler = Handler{Self: 9, Worker: w, Aggregator: NewAggregator(9, aggregate.NewMembers(1), l, false, slog.New(slog.DiscardHandler))}
	array := make([]byte, packets*wire.PacketBytes)
	finish := func(ticket *Ticket, err error) {
		if err != nil {
			t.Fatal(err)
		}
		l.deliver(t)
		if done, err := ticket.Wait(0); !done || err != nil {
			t.Fatal(done, err)
		}
	}
	finish(w.Init(1, wire.Float32, policy, array))
	if rule != nil {
		finish(w.SetRule(nil, *rule))
	}
	return testing.AllocsPerRun(100, func() { finish(round(w, array)) })
}

// TestAllocationsOfARound: a round costs a few, however many packets it has, whatever is done with them.
func TestAllocationsOfARound(t *testing.T) {
	momentum := &store.Rule{Kind: store.SGD, Rate: 0.1, Momentum: 0.9}
	for name, round := range map[string]func(w *Worker, array []byte) (*Ticket, error){
		"push_pull": func(w *Worker, a []byte) (*Ticket, error) { return w.PushPull(1, wire.Float32, a, a, wire.OpMean, 3) },
		"push":      func(w *Worker, a []byte) (*Ticket, error) { return w.Push(1, wire.Float32, a, wire.OpSum, 3) },
	} {
		for _, policy := range []wire.Policy{wire.Sync, wire.Bounded(2), wire.Async} {
			for _, rule := range []*store.Rule{nil, momentum} {
				one, many := roundAllocations(t, 1, policy, rule, round), roundAllocations(t, 64, policy, rule, round)
				if one > 12 || many > one {
					t.Errorf("%s, %v, rule %v: %v allocations with one packet, %v with 64", name, policy, rule, one, many)
				}
				t.Logf("%s, %v: %v, %v", name, policy, one, many)
			}
		}
	}
}
