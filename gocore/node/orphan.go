package node

import (
	"context"

	"fptps/gocore/cluster"
)

// onResumed handles the news that another scheduler goes on with the cluster, after the death of the one before: this node makes its data connection
// with it, by which each notices the end of the other. cluster/orphan.go and resume.go have the protocol.
func (n *Node) onResumed(m cluster.Member) {
	if n.incarnationOf(m.ID) == m.Incarnation {
		return // the scheduler was only taken for dead
	}
	n.runStep(m.ID, m.Incarnation, func(ctx context.Context) error {
		n.mu.Lock()
		n.mu.view = n.mu.view.With(m)
		tr := n.mu.transport
		n.mu.Unlock()
		if err := tr.Drop(ctx, uint32(m.ID)); err != nil {
			return err
		}
		n.recordIncarnations(m)
		n.Office.Link(tr, m.ID)
		return tr.Dial(ctx, uint32(m.ID), m.Incarnation, dataAddress(m))
	})
}
