package node

import (
	"slices"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/kv"
)

// maxCustomers bounds the customers that start before the node has joined.
const maxCustomers = 1024

// Enter joins another customer of the process to the cluster; it counts in
// DMLC_NUM_WORKER. The ticket ends when all nodes have joined.
func (n *Node) Enter(customer int) *kv.Ticket {
	ticket := n.Tickets.New(n.explainLife)
	select {
	case n.newCustomers <- customer:
	default:
	}
	go n.guard(func() error {
		<-n.lifeOver
		err := n.lifeErr
		if err == nil && (n.post() == nil || !slices.Contains(n.post().Customers(), customer)) {
			err = fault.New(fault.Config, "customer %d started after the cluster was complete: DMLC_NUM_WORKER (or DMLC_NUM_SERVER) counts every customer that calls start", customer)
		}
		n.Tickets.Finish(ticket, err)
		return nil
	})
	return ticket
}

// CustomerBarrier is a barrier of a group that contains this node, for one customer of the
// process.
func (n *Node) CustomerBarrier(customer, group int) (*kv.Ticket, error) {
	n.mu.Lock()
	err, post, scheduler := n.checkOpenLocked(), n.mu.post, n.mu.scheduler
	n.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case post == nil && scheduler == nil:
		return nil, fault.New(fault.Closed, "this node has not joined its cluster yet")
	}
	ticket := n.Tickets.New(func() kv.Waiting { return kv.Waiting{Text: "a barrier of " + groupName(group)} })
	if scheduler != nil {
		scheduler.Barrier(group, func(err error) { n.Tickets.Finish(ticket, n.cause(err)) })
	} else {
		n.enterBarrier(ticket, post, customer, group)
	}
	return ticket, nil
}

// enterBarrier enters a barrier. The ticket ends with it.
func (n *Node) enterBarrier(ticket *kv.Ticket, post *cluster.Postoffice, customer, group int) {
	withdraw := post.Barrier(customer, group, func(err error) {
		n.Tickets.Finish(ticket, n.cause(err))
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.mu.barriers, ticket)
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	if !ticket.Done() {
		n.mu.barriers[ticket] = withdraw
	}
}

// Withdraw leaves the barrier of a ticket, so that it can be entered again. The ticket ends
// with a Timeout error, or without error if all nodes had entered first.
func (n *Node) Withdraw(ticket *kv.Ticket) {
	n.mu.Lock()
	withdraw := n.mu.barriers[ticket]
	n.mu.Unlock()
	if withdraw != nil {
		withdraw(fault.New(fault.Timeout, "left the barrier, which not all entered in time. Entering it again is fine"))
	}
}

func groupName(group int) string {
	switch group {
	case cluster.ServerGroup:
		return "the servers"
	case cluster.WorkerGroup:
		return "the workers"
	case cluster.AllGroup:
		return "all nodes"
	}
	return "workers and servers"
}

// Place describes the cluster: the ids and roles of its members.
type Place struct {
	ID        int      `json:"id"`
	Recovered bool     `json:"recovered"` // this node is the successor of a dead one
	Members   []Member `json:"members"`   // the scheduler last
	Dead      []int    `json:"dead"`
}

// Member is one node of a Place.
type Member struct {
	ID   int    `json:"id"`
	Role string `json:"role"`
}

// Place returns the ids of all nodes, once this node has joined.
func (n *Node) Place() Place {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := Place{ID: n.mu.view.Self, Recovered: n.mu.view.Me().Recovered, Members: []Member{}, Dead: slices.Clone(n.mu.dead)}
	for _, m := range n.mu.view.Members {
		p.Members = append(p.Members, Member{ID: m.ID, Role: m.Role.String()})
	}
	return p
}
