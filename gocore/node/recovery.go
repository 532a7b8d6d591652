package node

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
)

// In a cluster whose nodes all take part as ps-lite programs do, a node may die and another take its place. Here that
// is carried out, one step after the other: the connection with the dead one ends, then what was asked of it, then
// there is a connection with the other.

const (
	// retryTime is between two attempts of a node that has just got its id to reach others, who may not know it yet.
	retryTime = 50 * time.Millisecond
	// reconnectTime bounds how long a node waits for the connection with one that has taken another's place.
	reconnectTime = 10 * time.Second
)

// vacated takes the news that a node is dead, and that the cluster goes on.
func (n *Node) vacated(id int, why string) {
	n.noteDead(id)
	n.giveUp(id)
	lost := fault.New(fault.NodeLost, "%s was lost: %s. Another can take its place", cluster.Name(id), why)
	n.Office.Gone(id, lost)
	n.inTurn(id, func(ctx context.Context) error {
		n.mu.Lock()
		tr := n.mu.transport
		n.mu.Unlock()
		if err := tr.Drop(ctx, uint32(id)); err != nil {
			return err
		}
		n.Office.Lose(id, lost)
		return nil
	})
}

// recovered takes the news that another node has the place of one that had died.
func (n *Node) recovered(m cluster.Member) {
	n.inTurn(m.ID, func(ctx context.Context) error {
		if err := n.reconnect(ctx, m); err != nil {
			return err
		}
		n.mu.Lock()
		n.mu.dead = slices.DeleteFunc(n.mu.dead, func(id int) bool { return id == m.ID })
		n.mu.Unlock()
		n.Office.Revive(m.ID)
		return nil
	})
}

// reconnect makes the data connection with a node that has taken another's place, where there is one.
func (n *Node) reconnect(ctx context.Context, m cluster.Member) error {
	n.mu.Lock()
	tr, view := n.mu.transport, n.mu.view
	n.mu.Unlock()
	me := view.Me()
	if m.PSLite() || me.PSLite() || me.Role != cluster.RoleScheduler && !workerAndServer(me, m) {
		return nil
	}
	n.Office.Link(tr, m.ID) // before anything can come from it
	if me.Role == cluster.RoleWorker {
		return tr.Dial(ctx, uint32(m.ID), m.Incarnation, net.JoinHostPort(m.Host, strconv.Itoa(m.DataPort)))
	}
	tr.Expect(uint32(m.ID), m.Incarnation)
	return tr.Await(ctx, []uint32{uint32(m.ID)})
}

// turn is what news of a node lead to, while it is done.
type turn struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// inTurn does what news of a node lead to, after what earlier ones led to. Where that fails, the node is no good.
func (n *Node) inTurn(id int, do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(n.ctx, reconnectTime)
	this := turn{cancel, make(chan struct{})}
	n.mu.Lock()
	earlier, had := n.mu.turns[id]
	n.mu.turns[id] = this
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
		if err := do(ctx); err != nil && ctx.Err() != context.Canceled {
			n.unreachable(id, err)
		}
		return nil
	})
}

// giveUp ends what earlier news of a node have led to.
func (n *Node) giveUp(id int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if earlier, had := n.mu.turns[id]; had {
		earlier.cancel()
	}
}

// unreachable says that a node which has taken another's place makes no data connection.
func (n *Node) unreachable(id int, err error) {
	n.mu.Lock()
	post, scheduler := n.mu.post, n.mu.scheduler
	n.mu.Unlock()
	if scheduler != nil {
		scheduler.Gone(id, fmt.Sprintf("it made no data connection: %v", err))
	} else {
		post.Suspect(id, fmt.Sprint(err))
	}
}

// isDead tells whether a node has died, and no other has its place yet.
func (n *Node) isDead(id int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.mu.dead, id)
}
