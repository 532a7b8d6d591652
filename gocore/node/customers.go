package node

import (
	"slices"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/kv"
)

// maxCustomers bounds those that start while the node joins.
const maxCustomers = 1024

// Enter has another customer of the process ask for a place in the cluster, one of
// DMLC_NUM_WORKER. The ticket ends when all nodes are there.
func (n *Node) Enter(customer int) *kv.Ticket {
	ticket := n.Tickets.New(n.explainLife)
	select {
	case n.others <- customer:
	default:
	}
	go func() {
		<-n.over
		err := n.lived
		if err == nil && (n.post() == nil || !slices.Contains(n.post().Customers(), customer)) {
			err = fault.New(fault.Config, "customer %d started after the cluster was complete: DMLC_NUM_WORKER (or DMLC_NUM_SERVER) counts every customer that calls start", customer)
		}
		n.Tickets.Finish(ticket, err)
	}()
	return ticket
}

// Meet is a barrier of a group that this node is in, for one customer of the process.
func (n *Node) Meet(customer, group int) (*kv.Ticket, error) {
	n.mu.Lock()
	err, post, scheduler := n.wellLocked(), n.mu.post, n.mu.scheduler
	n.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case post == nil && scheduler == nil:
		return nil, fault.New(fault.Closed, "this node has not joined its cluster yet")
	}
	ticket := n.Tickets.New(func() string { return "a barrier of " + groupName(group) })
	done := func(err error) { n.Tickets.Finish(ticket, n.cause(err)) }
	if scheduler != nil {
		scheduler.Barrier(group, done)
	} else {
		post.Barrier(customer, group, done)
	}
	return ticket, nil
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

// Place is what a node knows of the cluster: its members' ids and roles.
type Place struct {
	ID        int      `json:"id"`
	Recovered bool     `json:"recovered"` // this node has the place of one that had died
	Members   []Member `json:"members"`   // the scheduler last
	Dead      []int    `json:"dead"`
}

// Member is one node of a Place.
type Member struct {
	ID   int    `json:"id"`
	Role string `json:"role"`
}

// Place tells the ids of all nodes, once the node has joined.
func (n *Node) Place() Place {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := Place{ID: n.mu.view.Self, Recovered: n.mu.view.Me().Recovered, Members: []Member{}, Dead: slices.Clone(n.mu.dead)}
	for _, m := range n.mu.view.Members {
		p.Members = append(p.Members, Member{ID: m.ID, Role: m.Role.String()})
	}
	return p
}
