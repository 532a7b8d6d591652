package node

import (
	"context"
	"net"
	"strconv"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// Newcomers, on the other nodes and on themselves. cluster/newcomers.go and admission.go have the protocol.

// onCame handles the announcement of a newcomer: this node makes its connections with it, and reports them.
func (n *Node) onCame(m cluster.Member) {
	n.runStep(m.ID, m.Incarnation, func(ctx context.Context) error {
		if err := n.link(ctx, m); err != nil {
			return err
		}
		if post := n.post(); post != nil {
			post.Linked(m)
		}
		return nil
	})
}

// link makes the connections with a newcomer, in all lanes.
func (n *Node) link(ctx context.Context, m cluster.Member) error {
	n.mu.Lock()
	n.mu.view = n.mu.view.Plus(m)
	tr, me, replicates := n.mu.transport, n.mu.view.Me(), n.mu.view.Replicates
	n.mu.Unlock()
	if me.Role == cluster.RoleServer && m.Role == cluster.RoleServer && !replicates {
		return nil // they exchange nothing
	}
	n.recordIncarnations(m)
	n.Office.Link(tr, m.ID) // before any packet of it can arrive
	tr.Endure(map[uint32]string{uint32(m.ID): dataAddress(m)})
	for i := 0; tr.Lane(i) != nil; i++ {
		lane := tr.Lane(i)
		if !dials(me, m) {
			lane.Expect(uint32(m.ID), m.Incarnation)
		} else if err := lane.Dial(ctx, uint32(m.ID), m.Incarnation, dataAddress(m)); err != nil {
			return err
		}
		if me.Role == cluster.RoleScheduler { // it has one lane
			break
		}
	}
	for i := 0; tr.Lane(i) != nil; i++ {
		if err := tr.Lane(i).Await(ctx, []uint32{uint32(m.ID)}); err != nil {
			return err
		}
	}
	return nil
}

// dataAddress is where a node listens for data connections.
func dataAddress(m cluster.Member) string { return net.JoinHostPort(m.Host, strconv.Itoa(m.DataPort)) }

// connectLaneAs is connectLane of a newcomer, or a successor: the others may not know it yet, and may die meanwhile. It dials all at once,
// as one of them may stand still for as long as it takes the scheduler to give it up, and the others do not wait as long.
func (n *Node) connectLaneAs(ctx context.Context, lane *transport.Transport, view cluster.View, dial, accept []int) error {
	dialed := make(chan error, len(dial))
	for _, id := range dial {
		go func() { dialed <- fault.Catch(func() error { return n.dialUnlessDead(ctx, lane, view.Member(id)) }) }()
	}
	for range dial {
		if err := <-dialed; err != nil {
			return err
		}
	}
	for _, id := range accept {
		for {
			attempt, cancel := context.WithTimeout(ctx, attemptTime)
			err := lane.Await(attempt, []uint32{uint32(id)})
			cancel()
			if err == nil || n.isDead(id) {
				break
			}
			if ctx.Err() != nil {
				return err
			}
		}
	}
	return nil
}

// dialUnlessDead makes the connection with a node, if that does not die before.
func (n *Node) dialUnlessDead(ctx context.Context, lane *transport.Transport, m cluster.Member) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTime)
		err := lane.Dial(attempt, uint32(m.ID), m.Incarnation, dataAddress(m))
		cancel()
		if err == nil || n.isDead(m.ID) {
			return nil
		}
		if !sleep(ctx, retryTime) {
			return err
		}
	}
}

// onAdmitted handles the admission of a newcomer, which may be this node. It follows the deaths before it.
func (n *Node) onAdmitted(m cluster.Member, epoch int, points uint64) {
	n.inOrder(func() error {
		n.mu.Lock()
		n.mu.view = n.mu.view.With(m)
		worker, handlers, post := n.mu.worker, n.mu.handlers, n.mu.post
		if m.ID == n.mu.view.Self {
			n.mu.points.passed = points
		}
		n.mu.Unlock()
		if err := n.backUpLater(epoch); err != nil {
			return err
		}
		rank := -1
		if m.Role == cluster.RoleWorker {
			rank = m.Rank()
			ctx, cancel := context.WithTimeout(n.ctx, reconnectTime)
			defer cancel()
			for _, h := range handlers {
				if err := n.awaitLoop(ctx, h.Aggregator.Join(rank)); err != nil {
					return err
				}
			}
		}
		if worker != nil {
			worker.Join(uint32(m.ID), rank)
			n.log.Warn(cluster.Name(m.ID) + " takes part from now on")
		}
		if epoch > 0 {
			n.survived(post, worker, epoch)
		}
		return nil
	})
}

// survived reports that this node has handled a death or an admission.
func (n *Node) survived(post *cluster.Postoffice, worker *kv.Worker, epoch int) {
	complete, known := wire.Rounds{}, true
	if worker != nil {
		complete, known = worker.Complete()
	}
	post.Survived(epoch, complete, !known)
}

// onGather and onMeet handle the scheduler's messages about the point at which newcomers are admitted.
func (n *Node) onGather() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.points.gather()
}

func (n *Node) onMeet(point uint64) {
	n.mu.Lock()
	waited, stood := n.mu.points.meetAt(point)
	n.mu.Unlock()
	if waited != nil {
		n.Tickets.Finish(waited, nil)
	}
	if stood != nil {
		n.worker().Depart()
		n.Tickets.Finish(stood, nil)
	}
}

// Come is called when the program comes to the point where newcomers may be admitted. due: all workers meet here now, so that Arrive has to
// follow. If ticket is not nil, this is not decided yet: Come is called again when it has ended.
func (n *Node) Come() (due bool, ticket *kv.Ticket, err error) {
	if _, err := n.Worker(); err != nil {
		return false, nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.checkOpenLocked(); err != nil { // else tearDown ends the ticket
		return false, nil, err
	}
	if n.mu.newcomer {
		return true, nil, nil
	}
	switch n.mu.points.come() {
	case stand:
		return true, nil, nil
	case wait:
		if n.mu.points.waiting != nil {
			return false, nil, fault.New(fault.Busy, "admit() was called by two threads")
		}
		n.mu.points.waiting = n.Tickets.New(n.explainAdmission)
		return false, n.mu.points.waiting, nil
	}
	return false, nil, nil
}

// explainAdmission describes why an admission has not ended.
func (n *Node) explainAdmission() kv.Waiting {
	text, missing := "new workers are admitted when all have come to the same admit()", n.missingFrom(wire.Admissions)
	return kv.Waiting{Text: text, About: fault.About{Missing: missing}}
}

// Arrive waits until newcomers are admitted, or this node if it is one. state is what the program hands over to them. The ticket may end without an
// admission.
func (n *Node) Arrive(state []byte) (*kv.Ticket, error) {
	worker, err := n.Worker()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	newcomer := n.mu.newcomer
	n.mu.Unlock()
	var complete wire.Rounds
	if !newcomer {
		if complete, err = worker.Arrive(state); err != nil {
			return nil, err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.checkOpenLocked(); err != nil {
		return nil, err
	}
	ticket := n.Tickets.New(n.explainAdmission)
	n.mu.post.Arrived(n.mu.points.arrive(ticket), complete)
	return ticket, nil
}

// Fetch has a newcomer that was admitted take over the state of a training from the worker of a rank. When the ticket has ended, ProgramState
// of Worker has the program's part.
func (n *Node) Fetch(rank int) (*kv.Ticket, error) {
	worker, err := n.Worker()
	if err != nil {
		return nil, err
	}
	return worker.Fetch(uint32(wire.WorkerID(rank))), nil
}

// Fetched reports that Fetch has ended.
func (n *Node) Fetched() error {
	worker, err := n.Worker()
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.mu.newcomer = false
	tr, view, post := n.mu.transport, n.mu.view, n.mu.post
	n.mu.Unlock()
	worker.DropState()
	weigh(tr, view, worker.PresentPlan())
	post.Fetched()
	return nil
}

// Newcomer reports whether this node is a worker that takes part in no rounds yet.
func (n *Node) Newcomer() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.newcomer
}
