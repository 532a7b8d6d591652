package node

import (
	"fptps/gocore/cluster"
	"fptps/gocore/kv"
	"fptps/gocore/transport"
	"fptps/gocore/van"
)

// runScheduler is the scheduler's whole life: the control plane, and a data
// connection with every node, whose end is the news of a death.
func (n *Node) runScheduler() error {
	n.config.Host = n.config.SchedulerHost
	tr, err := n.listen()
	if err != nil {
		return err
	}
	v, err := van.NewZMQ(n.log)
	if err != nil {
		return err
	}
	runner, err := cluster.Serve(v, n.clusterConfig(tr.Port()), cluster.Events{})
	if err != nil {
		return err
	}
	if err := n.own(func() { n.mu.scheduler = runner }); err != nil {
		runner.Close()
		return err
	}
	select {
	case <-runner.Joined():
	case <-runner.Done():
		return runner.Err()
	}
	n.watch(tr, runner)
	<-runner.Done()
	if err := runner.Err(); err != nil {
		return err
	}
	n.goodbye()
	n.shut()
	return nil
}

// watch takes the data connections of all nodes and tells the scheduler when one ends.
func (n *Node) watch(tr *transport.Transport, runner *cluster.Runner) {
	view := runner.View()
	var nodes []int
	for _, m := range view.Members {
		if m.ID != view.Self && m.DataPort != 0 {
			nodes = append(nodes, m.ID)
		}
	}
	handler := &kv.Handler{
		Self: uint32(view.Self), OnFailed: n.dataPlaneFailed,
		OnLost: func(node uint32, err error) {
			if err != nil {
				runner.Gone(int(node), "its process ended, or left without waiting for the others")
			}
		},
	}
	n.mu.Lock()
	n.mu.view, n.mu.hasJoined = view, true
	n.mu.Unlock()
	tr.Start(transport.Identity{ID: handler.Self, Incarnation: view.Me().Incarnation, Token: view.Token}, incarnations(view, nodes), handler)
}
