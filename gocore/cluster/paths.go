package cluster

import (
	"cmp"
	"fmt"
	"slices"

	"fptps/gocore/balance"
)

// slowPath is a path from one node to another, and what it carries, in bytes per second.
type slowPath struct {
	from, to int
	rate     float64
}

func describePaths(slow []slowPath) (texts []string) {
	for _, s := range slow {
		texts = append(texts, fmt.Sprintf("%s to %s carries %s", Name(s.from), Name(s.to), Megabits(s.rate)))
	}
	return texts
}

// limitSums bounds what nodes can sum by the paths to them, and returns the paths that do, the slowest first. Of a path between hosts
// with several nodes each node sees a part only: it counts as not measured, as their links do.
func (p *planner) limitSums(list []balance.Host) (slow []slowPath) {
	alone, workers, nodes, fastest := map[uint32]*balance.Host{}, 0.0, 0, 0.0
	for i := range list {
		nodes, fastest = nodes+len(list[i].Nodes), max(fastest, slower(&list[i]))
		if len(list[i].Nodes) == 1 {
			alone[list[i].Nodes[0].ID] = &list[i]
		}
		for _, n := range list[i].Nodes {
			if n.Worker {
				workers++
			}
		}
	}
	// Of a slow link an equal part, which one peer gets, may have been taken for a path before the link was known.
	isPart := func(h *balance.Host, rate float64) bool {
		return slower(h) < alikeGain*fastest && rate >= alikeGain*slower(h)/float64(nodes-1)
	}
	for id, report := range p.reports {
		for peer, rate := range report.Paths {
			from, to := alone[peer], alone[uint32(id)]
			if from == nil || to == nil || isPart(from, rate) || isPart(to, rate) {
				continue
			}
			one, other := limitEnd(from, to, workers*rate), limitEnd(to, from, workers*rate)
			if one || other {
				slow = append(slow, slowPath{int(peer), id, rate})
			}
		}
	}
	slices.SortFunc(slow, func(a, b slowPath) int {
		return cmp.Or(cmp.Compare(a.rate, b.rate), cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
	})
	return slow
}

// limitEnd bounds what the node of h sums by its path to a peer, over which most could be summed. It reports whether that is less than
// over the link.
func limitEnd(h, peer *balance.Host, most float64) bool {
	if !peer.Nodes[0].Worker { // it contributes nothing
		return false
	}
	if h.Nodes[0].Worker { // the peer's share passes, too: half for each (docs/balance.md)
		most /= 2
	}
	if most >= alikeGain*slower(h) {
		return false
	}
	h.Nodes[0].Sums = min(h.Nodes[0].Sums, most)
	return true
}

// slower is what a link carries in its slower direction.
func slower(h *balance.Host) float64 { return min(h.Up, h.Down) }
