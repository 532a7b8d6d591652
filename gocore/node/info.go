package node

import (
	"fmt"
	"slices"

	"fptps/gocore/cluster"
	"fptps/gocore/kv"
	"fptps/gocore/transport"
)

// maxAsked bounds how many nodes that ask to join are recorded, for each node of the cluster.
const maxAsked = 4

// Info describes a node.
type Info struct {
	Role       string `json:"role"`
	Joined     bool   `json:"joined"` // all nodes of the cluster have joined
	Rank       int    `json:"rank"`
	NumWorkers int    `json:"num_workers"`
	NumServers int    `json:"num_servers"`
	Scheduler  string `json:"scheduler"` // host:port, "" without a cluster

	Deterministic bool  `json:"deterministic"` // of a worker: see kv.WorkerConfig
	Recovers      bool  `json:"recovers"`      // likewise
	Ranks         int   `json:"ranks"`         // likewise: how many ranks there have been
	Admissions    int   `json:"admissions"`    // likewise: see kv.Worker.Admission
	Admitted      []int `json:"admitted"`      // likewise
	Newcomer      bool  `json:"newcomer"`      // likewise: it takes part in no rounds yet

	// Of the scheduler: the nodes that have asked to join, in order, and all nodes once they have joined.
	Asked   []Asked  `json:"asked"`
	Members []string `json:"members"`
}

// Asked describes a node that has asked to join.
type Asked struct {
	Node    string   `json:"node"`    // its role and address, and its requested rank
	Missing []string `json:"missing"` // the nodes that the scheduler still waits for
}

// Info describes this node; its rank is known once it has joined.
func (n *Node) Info() Info {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := Info{Role: n.config.Role.String(), Joined: n.mu.hasJoined, NumWorkers: n.config.Workers, NumServers: n.config.Servers, Deterministic: n.config.Deterministic}
	if !n.config.Alone() {
		i.Rank = n.mu.view.Rank()
		i.Recovers, i.Newcomer = n.mu.view.Recovers, n.mu.newcomer
		i.Scheduler = fmt.Sprintf("%s:%d", n.config.SchedulerHost, n.config.SchedulerPort)
	}
	if n.mu.worker != nil {
		i.Ranks = n.mu.worker.Ranks()
		i.Admissions, i.Admitted = n.mu.worker.Admission()
	}
	if n.config.Role == cluster.RoleScheduler {
		i.Asked = slices.Clone(n.mu.asked)
		for _, m := range n.mu.view.Members[:max(0, len(n.mu.view.Members)-1)] { // the last is the scheduler itself
			i.Members = append(i.Members, fmt.Sprintf("%s at %s:%d", cluster.Name(m.ID), m.Host, m.Port))
		}
	}
	return i
}

// Present lists the ranks of the workers in an epoch: see kv.Worker.Present.
func (n *Node) Present(epoch int) []int {
	if worker := n.worker(); worker != nil {
		return worker.Present(epoch)
	}
	return nil
}

// onAsked records that a node has asked to join. Nodes that ask and vanish, again and again, fill no memory.
func (n *Node) onAsked(m cluster.Member, missing []string) {
	text := fmt.Sprintf("%v at %s:%d", m.Role, m.Host, m.Port)
	if m.Place > 0 {
		text += fmt.Sprintf(" (requested rank %d)", m.Place-1)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.mu.asked) < maxAsked*(n.config.Workers+n.config.Servers) {
		n.mu.asked = append(n.mu.asked, Asked{text, missing})
	}
}

// Stats holds the counters of a node. python/fptps/stats.py has a field for each.
type Stats struct {
	kv.WorkerStats
	transport.Stats
	RejectedMessages uint64 `json:"rejected_messages"` // messages of apps, from members
}

// Stats returns the node's counters: zeros for a store or a data plane that it does not have.
func (n *Node) Stats() Stats {
	n.mu.Lock()
	worker, tr := n.mu.worker, n.mu.transport
	n.mu.Unlock()
	s := Stats{WorkerStats: kv.WorkerStats{Shares: map[string]float64{}}}
	if worker != nil {
		s.WorkerStats = worker.Stats()
	}
	if tr != nil {
		s.Stats = tr.Stats()
	}
	s.RejectedMessages = n.Office.Rejected()
	return s
}

// missingFrom returns the nodes that a barrier or declaration waits for, as the scheduler last
// reported.
func (n *Node) missingFrom(event string) []string {
	worker := n.worker()
	if worker == nil || n.config.Role != cluster.RoleWorker {
		return nil
	}
	return worker.WaitingFor(event)
}
