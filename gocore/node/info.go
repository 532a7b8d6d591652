package node

import (
	"encoding/json"
	"fmt"
	"maps"

	"fptps/gocore/cluster"
)

// Info is who a node is.
type Info struct {
	Role       string `json:"role"`
	Joined     bool   `json:"joined"` // the whole cluster has been there
	Rank       int    `json:"rank"`
	NumWorkers int    `json:"num_workers"`
	NumServers int    `json:"num_servers"`
	Scheduler  string `json:"scheduler"` // host:port, "" without a cluster
}

// Info tells who this node is; its rank only once it has joined.
func (n *Node) Info() Info {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := Info{Role: n.config.Role.String(), Joined: n.mu.hasJoined, NumWorkers: n.config.Workers, NumServers: n.config.Servers}
	if !n.config.Alone() {
		i.Rank = n.mu.view.Rank()
		i.Scheduler = fmt.Sprintf("%s:%d", n.config.SchedulerHost, n.config.SchedulerPort)
	}
	return i
}

// Stats gives the node's counters by name: those of the worker's store, and those
// of the data plane.
func (n *Node) Stats() map[string]any {
	n.mu.Lock()
	worker, tr := n.mu.worker, n.mu.transport
	n.mu.Unlock()
	all := map[string]any{}
	for _, part := range []any{statsOf(worker != nil, func() any { return worker.Stats() }), statsOf(tr != nil, func() any { return tr.Stats() })} {
		maps.Copy(all, part.(map[string]any))
	}
	if rejected := n.Office.Rejected(); rejected > 0 {
		all["rejected_messages"] = rejected
	}
	return all
}

// statsOf turns a struct of counters into names and values.
func statsOf(there bool, get func() any) map[string]any {
	named := map[string]any{}
	if there {
		text, _ := json.Marshal(get())
		json.Unmarshal(text, &named)
	}
	return named
}

// missing is whom a barrier or a declaration waits for, as the scheduler said last.
func (n *Node) missing(what string) string {
	n.mu.Lock()
	worker := n.mu.worker
	n.mu.Unlock()
	if worker == nil || n.config.Role != cluster.RoleWorker {
		return ""
	}
	return worker.WaitingFor(what)
}

// waiting takes the scheduler's word on whom something waits for.
func (n *Node) waiting(what string, missing []string) {
	n.mu.Lock()
	worker := n.mu.worker
	n.mu.Unlock()
	if worker != nil {
		worker.Waiting(what, missing)
	}
}
