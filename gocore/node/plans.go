package node

import (
	"math"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/plan"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

const (
	// reportTime is the time between two looks at what this node's link carries.
	reportTime = 100 * time.Millisecond
	// news is the least change of a capacity that is reported: measurements differ by 4%.
	news = 0.06
)

// reportCapacities tells the scheduler what this node's link and the paths to it carry, whenever that has changed.
func (n *Node) reportCapacities(tr *transport.Transport, post *cluster.Postoffice) {
	ticker := time.NewTicker(reportTime)
	defer ticker.Stop()
	var last cluster.Capacity
	probing := true
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-ticker.C:
		}
		c := cluster.Capacity(tr.Capacity())
		if isNews(c, last) {
			last = c
			post.Report(c)
		}
		if probing && !tr.Probing() {
			probing = false
			n.log.Info(probed(tr.Stats().ProbeBytes, c))
		}
	}
}

// isNews reports whether a capacity or a path has changed.
func isNews(now, last cluster.Capacity) bool {
	for id, rate := range now.Paths {
		if differs(rate, last.Paths[id]) {
			return true
		}
	}
	return len(now.Paths) != len(last.Paths) || differs(now.Up, last.Up) || differs(now.Down, last.Down) ||
		differs(now.Carried, last.Carried) || differs(now.Processor, last.Processor)
}

// differs reports whether a capacity is news.
func differs(now, last float64) bool {
	return (now == 0) != (last == 0) || math.Abs(now-last) > news*last
}

func (n *Node) onPrepare() wire.Rounds {
	if w := n.worker(); w != nil {
		return w.Promise()
	}
	return wire.Rounds{}
}

func (n *Node) onCommit(number uint32, p *plan.Plan, first wire.Rounds) {
	if w := n.worker(); w != nil {
		n.mu.Lock()
		tr, view := n.mu.transport, n.mu.view
		n.mu.Unlock()
		weigh(tr, view, p)
		w.Commit(number, p, first)
	}
}

// weigh divides a worker's link over its peers as the plan needs it. A server sends the same to all.
func weigh(tr *transport.Transport, view cluster.View, p *plan.Plan) {
	tr.Weigh(p.Flows(uint32(view.Self), idsOf(view.Workers())))
}

func (n *Node) onAbort() {
	if w := n.worker(); w != nil {
		w.Abort()
	}
}
