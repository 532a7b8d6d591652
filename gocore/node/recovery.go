package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// In a cluster of fptps.ps a successor may take the place of a dead node. The other nodes carry that out in steps: they drop
// the connection with the dead node, fail their open requests to it, then connect to the successor.

const (
	// retryTime is the time between two attempts of a successor or a newcomer to connect to nodes that may not know it yet.
	retryTime = 50 * time.Millisecond
	// attemptTime bounds an attempt, after which it looks whether the other node has died.
	attemptTime = time.Second
	// reconnectTime bounds the time for connecting to a successor.
	reconnectTime = 10 * time.Second
)

// onVacated handles the verdict that a node is dead and that the cluster continues without it.
func (n *Node) onVacated(id int, why string) {
	n.noteDead(id)
	n.cancelStep(id)
	lost := fault.New(fault.NodeLost, "%s was lost: %s. Another can take its place", cluster.Name(id), why).With(wire.AboutNode(id))
	n.Office.MarkDead(id, lost)
	n.runStep(id, n.incarnationOf(id), func(ctx context.Context) error {
		n.mu.Lock()
		tr := n.mu.transport
		n.mu.Unlock()
		if err := tr.Drop(ctx, uint32(id)); err != nil {
			return err
		}
		n.Office.FailRequestsTo(id, lost)
		return nil
	})
}

// onRecovered handles the announcement that a successor has taken the place of a dead node.
func (n *Node) onRecovered(m cluster.Member) {
	n.runStep(m.ID, m.Incarnation, func(ctx context.Context) error {
		if err := n.reconnect(ctx, m); err != nil {
			return err
		}
		n.mu.Lock()
		n.mu.dead = slices.DeleteFunc(n.mu.dead, func(id int) bool { return id == m.ID })
		n.mu.Unlock()
		n.Office.MarkReplaced(m.ID)
		return nil
	})
}

// reconnect makes the data connection with a successor, if this node has one with it.
func (n *Node) reconnect(ctx context.Context, m cluster.Member) error {
	n.mu.Lock()
	tr, view := n.mu.transport, n.mu.view
	n.mu.Unlock()
	me := view.Me()
	if m.PSLite() || me.PSLite() || me.Role != cluster.RoleScheduler && !workerAndServer(me, m) {
		return nil
	}
	n.recordIncarnations(m)
	n.Office.Link(tr, m.ID) // before any packet of it can arrive
	if me.Role == cluster.RoleWorker {
		return tr.Dial(ctx, uint32(m.ID), m.Incarnation, dataAddress(m))
	}
	tr.Expect(uint32(m.ID), m.Incarnation)
	return tr.Await(ctx, []uint32{uint32(m.ID)})
}

// recoveryStep is the state of one step while it is carried out.
type recoveryStep struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// runStep runs a step for a node after the earlier steps for that node. If it fails, the node is suspected.
func (n *Node) runStep(id int, incarnation uint64, do func(context.Context) error) {
	ctx, cancel := context.WithCancel(n.ctx)
	this := recoveryStep{cancel, make(chan struct{})}
	n.mu.Lock()
	earlier, had := n.mu.recoverySteps[id]
	n.mu.recoverySteps[id] = this
	n.mu.Unlock()
	go n.guard(func() error {
		defer close(this.done)
		defer cancel()
		if had {
			<-earlier.done
		}
		select {
		case <-n.connected:
		case <-n.ctx.Done():
			return nil
		}
		limited, stop := context.WithTimeout(ctx, reconnectTime) // from now on
		defer stop()
		if err := do(limited); err != nil && ctx.Err() == nil {
			n.unreachable(id, incarnation, err)
		}
		return nil
	})
}

// cancelStep cancels the current step for a node.
func (n *Node) cancelStep(id int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if earlier, had := n.mu.recoverySteps[id]; had {
		earlier.cancel()
	}
}

// unreachable reports to the scheduler that a node makes no data connection.
func (n *Node) unreachable(id int, incarnation uint64, err error) {
	n.mu.Lock()
	post, scheduler := n.mu.post, n.mu.scheduler
	n.mu.Unlock()
	if scheduler != nil {
		scheduler.Unreachable(id, incarnation, fmt.Sprintf("it made no data connection: %v", err))
	} else {
		post.Suspect(id, incarnation, fmt.Sprint(err))
	}
}

// isDead reports whether a node is dead and has no successor yet.
func (n *Node) isDead(id int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.mu.dead, id)
}
