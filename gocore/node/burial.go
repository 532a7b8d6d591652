package node

import (
	"context"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/wire"
)

// onBuried handles the verdict that a node is dead and that the cluster goes on without it. The node drops its connections with
// it, after which its worker gives the packets of the dead one to the others. If an epoch begins with the death, no round ends
// here until onSettled.
func (n *Node) onBuried(b cluster.Burial) {
	n.noteDead(b.ID)
	n.cancelStep(b.ID)
	if worker := n.worker(); worker != nil && b.Epoch > 0 {
		worker.Freeze(uint32(b.ID))
	}
	n.inOrder(func() error { return n.bury(b) })
}

// inOrder does what follows from a verdict, an admission or a settlement: one after the other, in the scheduler's order, once this node has
// its connections. A newcomer knows by that order which deaths another's inventory includes.
func (n *Node) inOrder(do func() error) {
	done := make(chan struct{})
	n.mu.Lock()
	before := n.mu.lastChange
	n.mu.lastChange = done
	n.mu.Unlock()
	go n.guard(func() error {
		defer close(done)
		if before != nil {
			<-before
		}
		select {
		case <-n.connected:
		case <-n.ctx.Done():
			return nil
		}
		return do()
	})
}

func (n *Node) bury(b cluster.Burial) error {
	n.mu.Lock()
	n.mu.view = n.mu.view.Without(b.ID)
	tr, worker, handlers, post := n.mu.transport, n.mu.worker, n.mu.handlers, n.mu.post
	n.mu.Unlock()
	ctx, cancel := context.WithTimeout(n.ctx, reconnectTime)
	defer cancel()
	for i := 0; tr.Lane(i) != nil; i++ {
		if err := tr.Lane(i).Drop(ctx, uint32(b.ID)); err != nil {
			if n.ctx.Err() != nil { // the node closes
				return nil
			}
			return fault.New(fault.Internal, "the connection with %s did not end: %v", cluster.Name(b.ID), err)
		}
	}
	if b.Epoch > 0 {
		for _, h := range handlers {
			if h.Aggregator == nil {
				continue
			}
			if err := n.awaitLoop(ctx, h.Aggregator.Bury(wire.RankOfWorker(b.ID))); err != nil {
				return err
			}
		}
		if err := n.succeed(ctx, b); err != nil {
			return err
		}
	}
	if worker != nil {
		n.log.Warn(cluster.Loss(b.ID, b.Why), "reason", b.Why)
		worker.Bury(kv.Death{Node: uint32(b.ID), Heir: uint32(b.Heir), Settles: b.Epoch > 0})
	}
	if b.Epoch > 0 {
		n.survived(post, worker, b.Epoch)
	}
	return nil
}

// awaitLoop waits until the receive loop has done something.
func (n *Node) awaitLoop(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
	case <-ctx.Done():
		if n.ctx.Err() != nil { // the node closes
			return nil
		}
		return fault.New(fault.Internal, "the receive loop has stood still for %v", reconnectTime)
	}
	return nil
}

// onSettled handles the scheduler's decision about the rounds in which a worker has died, or before which one was admitted.
func (n *Node) onSettled(complete wire.Rounds) {
	n.inOrder(func() error {
		worker := n.worker()
		if worker == nil {
			return nil
		}
		if err := worker.Settle(complete); err != nil {
			return err
		}
		if !worker.Meeting() {
			n.mu.Lock()
			stood := n.mu.points.admitted()
			n.mu.Unlock()
			if stood != nil {
				n.Tickets.Finish(stood, nil)
			}
		}
		n.Tickets.Wake()
		return nil
	})
}
