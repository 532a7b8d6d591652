package node

import (
	"context"

	"fptps/gocore/cluster"
)

// In a cluster with replicas every node has a backup (kv/backup.go, cluster/backup.go). It is chosen once, and again when it dies.

// backUp gives the aggregators of this node, before any packet arrives, their backup.
func (n *Node) backUp(t *tensors, view cluster.View) {
	backup := 0
	if !view.Me().Newcomer { // no other has heard of it
		backup = view.BackupFor(view.Self)
	}
	n.mu.Lock()
	n.mu.backup = backup
	n.mu.Unlock()
	for lane, h := range t.lanes {
		h.Aggregator.BackUp(uint32(backup), func(node uint32, epoch int) { n.onBackedUp(lane, int(node), epoch) })
	}
}

// onBackedUp reports to the scheduler that the backup has everything, when it has that of all lanes.
func (n *Node) onBackedUp(lane, backup, epoch int) {
	n.mu.Lock()
	if n.mu.backedUp == nil {
		n.mu.backedUp = map[int]backedUp{}
	}
	n.mu.backedUp[lane] = backedUp{backup, epoch}
	whole, post := len(n.mu.backedUp) == len(n.mu.handlers), n.mu.post
	for _, other := range n.mu.backedUp {
		whole = whole && other == backedUp{backup, epoch}
	}
	n.mu.Unlock()
	if whole && post != nil {
		post.BackedUp(backup, epoch)
	}
}

// backedUp is a backup that has everything that one lane had stored in an epoch.
type backedUp struct {
	backup, epoch int
}

// succeed has the aggregators of this node adopt the replicas of a dead node if this is the heir, and replaces the backup if that is the dead node.
func (n *Node) succeed(ctx context.Context, b cluster.Burial) error {
	n.mu.Lock()
	n.mu.epoch = max(n.mu.epoch, b.Epoch)
	if n.mu.backup == b.ID || n.mu.backup == 0 {
		n.mu.backup = n.mu.view.BackupFor(n.mu.view.Self)
	}
	view, handlers, backup, epoch := n.mu.view, n.mu.handlers, n.mu.backup, n.mu.epoch
	n.mu.Unlock()
	if !view.Replicates {
		return nil
	}
	for _, h := range handlers {
		if h.Aggregator == nil {
			continue
		}
		if err := n.awaitLoop(ctx, h.Aggregator.Succeed(uint32(b.ID), b.Heir == view.Self, uint32(backup), epoch)); err != nil {
			return err
		}
	}
	return nil
}

// backUpLater chooses a backup after an admission, if there was none to choose before.
func (n *Node) backUpLater(epoch int) error {
	n.mu.Lock()
	n.mu.epoch = max(n.mu.epoch, epoch)
	lacks := n.mu.backup == 0 && n.mu.view.Replicates && !n.mu.view.Me().Newcomer && n.mu.view.Me().Role != cluster.RoleScheduler
	n.mu.Unlock()
	if !lacks {
		return nil
	}
	ctx, cancel := context.WithTimeout(n.ctx, reconnectTime)
	defer cancel()
	return n.succeed(ctx, cluster.Burial{})
}
