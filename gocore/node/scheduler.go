package node

import (
	"context"
	"fmt"
	"time"

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
	runner, err := cluster.Serve(v, n.clusterConfig(tr.Port()), cluster.Events{
		Message: n.Office.Deliver, Lost: func(id int, _ string) { n.noteDead(id) }, Vacated: n.vacated, Recovered: n.recovered,
	})
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
	n.Office.Join(runner)
	if n.config.PS {
		runner.Barrier(cluster.AllGroup, func(err error) {
			if err == nil {
				n.endLife(nil)
			}
		})
	}
	<-runner.Done()
	if err := runner.Err(); err != nil {
		return err
	}
	if n.config.PS { // its program closes it
		return nil
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
			if err != nil && !n.isDead(int(node)) {
				runner.Gone(int(node), "its process ended, or left without waiting for the others")
			}
		},
	}
	n.mu.Lock()
	n.mu.view, n.mu.hasJoined = view, true
	n.mu.Unlock()
	n.Office.Link(tr, nodes...)
	tr.Start(transport.Identity{ID: handler.Self, Incarnation: view.Me().Incarnation, Token: view.Token}, incarnations(view, nodes), transport.Rates{}, plane{handler, n.Office})
	close(n.connected)
	go n.guard(func() error { n.expect(tr, runner, nodes); return nil })
}

// connectTime is how long a node may take from its id to its data connection with
// the scheduler. One that died in between would be noticed by nobody else.
const connectTime = 4 * time.Second

// expect tells the scheduler of the first node that makes no data connection.
func (n *Node) expect(tr *transport.Transport, runner *cluster.Runner, nodes []int) {
	ctx, cancel := context.WithTimeout(n.ctx, connectTime)
	defer cancel()
	for _, id := range nodes {
		if tr.Await(ctx, []uint32{uint32(id)}) != nil && n.ctx.Err() == nil {
			runner.Gone(id, fmt.Sprintf("it made no data connection within %v of joining", connectTime))
		}
	}
}
