package kv

import (
	"fmt"

	"fptps/gocore/aggregate"
	"fptps/gocore/fault"
	"fptps/gocore/store"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// An aggregator keeps replicas of the stores of those whose backup it is (backup.go). It applies the changes in the order in which they arrive, and confirms each.

// replica applies a change that another aggregator has made.
func (a *Aggregator) replica(node uint32, h *wire.Header, payload []byte, owned *aggregate.Buffer) error {
	if a.backup == nil || a.adopted[node] {
		if owned != nil {
			owned.Release()
		}
		if a.backup == nil {
			return fmt.Errorf("node %d sends a replica, but this cluster keeps none", node)
		}
		return nil
	}
	r := a.replicas[node]
	if r == nil {
		r = a.store.NewReplica()
		a.replicas[node] = r
	}
	if err := a.apply(r, h, payload, owned); err != nil {
		return fmt.Errorf("the replica of node %d: %w", node, err)
	}
	a.plane.Send(node, transport.Outgoing{Header: wire.Header{Kind: wire.Replicated, Tensor: h.Tensor, Packet: h.Packet, Run: 1, Priority: urgent}})
	return nil
}

// apply applies a change to a replica. It takes over owned.
func (a *Aggregator) apply(r *store.Store, h *wire.Header, payload []byte, owned *aggregate.Buffer) error {
	switch h.Op {
	case wire.ReplicaInit, wire.ReplicaUpdate, wire.ReplicaDrop:
		return r.Apply(h, payload, owned)
	case wire.ReplicaPush:
		push := *h
		push.Kind, push.Op = wire.Contrib, wire.OpSum
		if owned == nil {
			push.Kind = wire.Empty
		}
		replies, err := r.Push(int(h.Rank), &push, payload, owned, a.replies[:0])
		a.replies = replies
		for i := range replies {
			if replies[i].Buffer != nil {
				replies[i].Buffer.Release()
			}
		}
		return err
	}
	if owned != nil {
		defer owned.Release()
	}
	if !changesStore(h.Op) {
		return fmt.Errorf("a change by operation %d", h.Op)
	}
	_, err := request(r, a.pool, h, payload)
	if fault.CodeOf(err) == fault.Key { // all packets of the tensor are still to come
		return nil
	}
	return err
}

// Succeed handles the death of another aggregator, with which an epoch begins: this one adopts the replica if it is the heir, and begins to copy what its backup,
// from now on next (0: nobody), lacks. done is closed when that has begun. It may be called from any goroutine.
func (a *Aggregator) Succeed(dead uint32, heir bool, next uint32, epoch int) (done <-chan struct{}) {
	return a.do(func() {
		var adopted []store.PacketID
		if r := a.replicas[dead]; r != nil {
			if heir {
				adopted = a.store.Adopt(r)
			} else {
				r.Discard()
			}
			delete(a.replicas, dead)
		}
		a.adopted[dead] = true
		a.buryRank(rankOf(dead))
		a.backup.epoch = epoch
		if a.backup.node != next {
			a.backUpAnew(next)
		} else if next != none {
			a.supply(adopted)
		}
	})
}

// buryRank has no push wait for a dead worker; rank is negative for a server.
func (a *Aggregator) buryRank(rank int) {
	if rank < 0 {
		return
	}
	for _, r := range a.replicas {
		for _, reply := range r.Bury(rank, nil) {
			if reply.Buffer != nil {
				reply.Buffer.Release()
			}
		}
	}
	for _, reply := range a.store.Bury(rank, nil) {
		a.deliver(reply.Rank, &reply.Sum)
	}
}

// do has the loop call f. done is closed when it has returned.
func (a *Aggregator) do(f func()) (done <-chan struct{}) {
	ended := make(chan struct{})
	a.todo.Lock()
	a.todo.list = append(a.todo.list, func() {
		defer close(ended)
		f()
	})
	a.todo.Unlock()
	a.plane.Send(a.self, transport.Outgoing{Header: wire.Header{Kind: wire.Replicated, Run: 1, Priority: urgent}}) // wakes the loop
	return ended
}

// catchUp does what do has left.
func (a *Aggregator) catchUp() {
	a.todo.Lock()
	list := a.todo.list
	a.todo.list = nil
	a.todo.Unlock()
	for _, f := range list {
		f()
	}
}

// answerApplied answers a contribution to a round that is applied already, where the worker has lost the answer with the aggregator that gave it, or
// repeats the round after the death of a worker: with the weights. It reports whether that was so.
func (a *Aggregator) answerApplied(rank int, h *wire.Header, packet uint32) bool {
	keeping, round := a.store.Keeps(h.Tensor, packet)
	if keeping != store.Weights || h.Round > round {
		return false
	}
	if h.Round < round || rank < 0 {
		return true
	}
	reply := aggregate.Sum{Header: wire.Header{
		Kind: wire.Sum, DType: h.DType, Codec: h.Codec, Tensor: h.Tensor, Packet: packet, Run: 1, Round: h.Round, Epoch: h.Epoch, Priority: h.Priority,
		Contributors: uint16(a.members.Size()), RawLen: h.RawLen,
	}}
	if a.store.Ruled(h.Tensor) {
		reply.Header.Flags = wire.FlagWeights
	}
	if h.Codec == wire.CodecRows {
		reply.Header.RawLen = wire.PacketBytes
	} else if _, value, err := a.store.Value(h.Tensor, packet); err == nil {
		reply.Buffer, reply.Header.RawLen, reply.Header.WireLen = value, uint32(len(value.Bytes)), uint32(len(value.Bytes))
	}
	a.deliver(rank, &reply)
	return true
}
