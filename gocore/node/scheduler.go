package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/kv"
	"fptps/gocore/transport"
	"fptps/gocore/van"
)

// runScheduler runs the scheduler until its end: the control plane, and a data connection
// with every node, whose end shows a death.
func (n *Node) runScheduler() error {
	n.config.Host = n.config.SchedulerHost
	tr, err := n.listen()
	if err != nil {
		return err
	}
	v, err := van.NewZMQ(n.log, n.config.longestFrame())
	if err != nil {
		return err
	}
	runner, err := cluster.Serve(v, n.clusterConfig(tr.Port()), cluster.Events{
		Asked: n.onAsked, Message: n.Office.Deliver, Lost: func(id int, _ string) { n.noteDead(id) }, Vacated: n.onVacated, Buried: n.onBuried, Recovered: n.onRecovered, Came: n.onCame,
	})
	if err != nil {
		return err
	}
	if err := n.setIfOpen(func() { n.mu.scheduler = runner }); err != nil {
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
	if n.config.PS { // the program closes it
		return nil
	}
	n.goodbye()
	n.closeNow()
	return nil
}

// watch accepts the data connections of all nodes and reports to the scheduler when one ends.
func (n *Node) watch(tr *transport.Transport, runner *cluster.Runner) {
	view := runner.View()
	var nodes []int
	for _, m := range view.Members {
		if m.ID != view.Self && m.DataPort != 0 {
			nodes = append(nodes, m.ID)
		}
	}
	handler := &kv.Handler{
		Self: uint32(view.Self), OnFailed: n.onDataPlaneFailed,
		OnLost: func(node uint32, err error) {
			switch {
			case err == nil || n.isDead(int(node)):
			case transport.MayLive(err): // it was stopped, or cannot be reached
				runner.Unreachable(int(node), n.incarnationOf(int(node)), fmt.Sprint(err))
			default:
				runner.Gone(int(node), n.incarnationOf(int(node)), "its process ended, or left without waiting for the others")
			}
		},
	}
	n.mu.Lock()
	n.mu.view, n.mu.hasJoined = view, true
	n.mu.Unlock()
	n.recordIncarnations(view.Members...)
	n.Office.Link(tr, nodes...)
	endure(tr, view)
	tr.Start(transport.Identity{ID: handler.Self, Incarnation: view.Me().Incarnation, Token: view.Token}, incarnations(view, nodes), 0, plane{handler, n.Office})
	close(n.connected)
	go n.guard(func() error { n.awaitConnections(tr, runner, nodes); return nil })
}

// lateTime is the interval at which the log names the nodes without a data connection.
const lateTime = 5 * time.Second

// awaitConnections reports the first node that has no data connection after the time for joining. On a busy machine a node
// may need seconds for it.
func (n *Node) awaitConnections(tr *transport.Transport, runner *cluster.Runner, nodes []int) {
	ctx, cancel := context.WithTimeout(n.ctx, n.config.JoinTimeout)
	defer cancel()
	for {
		nodes = slices.DeleteFunc(nodes, n.isDead) // of a cluster that goes on
		next, stop := context.WithTimeout(ctx, lateTime)
		err := tr.Await(next, toUint32(nodes))
		stop()
		if err == nil || n.ctx.Err() != nil {
			return
		}
		if ctx.Err() != nil {
			break
		}
		n.log.Warn("scheduler: waiting for data connections", "reason", err)
	}
	for _, id := range nodes {
		if !n.isDead(id) && tr.Await(ctx, toUint32([]int{id})) != nil {
			runner.Unreachable(id, n.incarnationOf(id), fmt.Sprintf("it made no data connection within %v of joining", n.config.JoinTimeout))
			return
		}
	}
}
