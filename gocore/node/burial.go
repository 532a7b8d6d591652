package node

import (
	"context"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
)

// onBuried handles the verdict that a server is dead and that the cluster goes on without it. The node drops its connections with
// it, after which its worker gives the packets of the dead one to the others. Deaths are handled in the order of the verdicts.
func (n *Node) onBuried(id int, why string) {
	n.noteDead(id)
	done := make(chan struct{})
	n.mu.Lock()
	before := n.mu.burial
	n.mu.burial = done
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
		return n.bury(id, why)
	})
}

func (n *Node) bury(id int, why string) error {
	n.mu.Lock()
	tr, worker := n.mu.transport, n.mu.worker
	n.mu.Unlock()
	ctx, cancel := context.WithTimeout(n.ctx, reconnectTime)
	defer cancel()
	for i := 0; tr.Lane(i) != nil; i++ {
		if err := tr.Lane(i).Drop(ctx, uint32(id)); err != nil {
			if n.ctx.Err() != nil { // the node closes
				return nil
			}
			return fault.New(fault.Internal, "the connection with %s did not end: %v", cluster.Name(id), err)
		}
	}
	if worker == nil {
		return nil
	}
	n.log.Warn(cluster.Name(id)+" was lost; the others sum its packets from now on", "reason", why)
	worker.Bury(uint32(id))
	return nil
}
