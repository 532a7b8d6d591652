package node

import (
	"context"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/wire"
)

const (
	// goodbyeTime bounds how long a leaving node waits until its queues are written.
	goodbyeTime = 5 * time.Second
	// verdictTime bounds how long a node that leaves without the others waits until the
	// scheduler has sent them its reason.
	verdictTime = time.Second
)

// Close leaves the cluster in order: it waits until every node closes. The ticket ends when
// everything is closed and nothing refers to a caller's array; it fails if the cluster did
// not end in order.
func (n *Node) Close() *kv.Ticket {
	n.mu.Lock()
	state, failure, post, scheduler, worker := n.mu.state, n.mu.failure, n.mu.post, n.mu.scheduler, n.mu.worker
	newcomer := n.mu.newcomer
	n.mu.Unlock()
	if newcomer && failure == nil {
		return n.Leave("it closed before it was admitted")
	}
	ticket := n.Tickets.New(func() kv.Waiting { return kv.Waiting{Text: "the other nodes have not closed"} })
	leave := func(err error, all bool) {
		go n.guard(func() error {
			err := n.cause(err)
			if err != nil {
				n.fail(err)
			} else if all {
				n.goodbye()
			}
			n.closeNow()
			n.Tickets.Finish(ticket, err)
			return nil
		})
	}
	atEnd := func(err error) { leave(err, true) }
	switch {
	case failure != nil:
		leave(failure, false)
	case state == joined && post != nil:
		var last wire.Rounds
		if worker != nil {
			last = worker.Rounds()
		}
		post.End(last, atEnd)
	case scheduler != nil:
		scheduler.Barrier(cluster.AllGroup, atEnd)
	default:
		leave(nil, false)
	}
	return ticket
}

// Leave leaves the cluster without waiting for the others. They fail at once with the
// reason: "it left by ValueError: ...". The ticket ends as in Close.
func (n *Node) Leave(why string) *kv.Ticket {
	ticket := n.Tickets.New(nil)
	go n.guard(func() error {
		n.announceLeave(why)
		n.closeNow()
		n.Tickets.Finish(ticket, nil)
		return nil
	})
	return ticket
}

// announceLeave sends the other nodes the reason why this node leaves, before its connections end.
func (n *Node) announceLeave(why string) {
	post := n.post()
	if post == nil {
		return
	}
	select {
	case <-post.Leave(why):
	case <-time.After(verdictTime):
		n.log.Warn("left without an answer of the scheduler", "reason", why)
	}
}

// onClosed handles the announcement that a worker has closed and waits for the others.
func (n *Node) onClosed(id int, last wire.Rounds) {
	if worker := n.worker(); worker != nil {
		go n.guard(func() error { return worker.Closed(id, last) })
	}
}

// goodbye ends the data plane in order.
func (n *Node) goodbye() {
	n.mu.Lock()
	tr := n.mu.transport
	n.mu.Unlock()
	if tr == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTime)
	defer cancel()
	tr.Goodbye(ctx)
}

// closeNow closes the node. When it returns, nothing of the node is left.
func (n *Node) closeNow() {
	n.mu.Lock()
	n.mu.state = closed
	n.mu.Unlock()
	n.tearDown(fault.New(fault.Closed, "closed before this operation was complete"))
}
