package cluster

import (
	"fmt"

	"fptps/gocore/balance"
)

// A processor counts as slow if it moves less than slowProcessor of what the node's link carries. Measurements of one differ by a few
// percent, those of links too.
const slowProcessor = 0.75

// limitLinks bounds the links of nodes by what their processors move: a byte costs a node as much as its link, whether the node sums
// it or not. It returns what slow processors move, by node. Of a host with several nodes each node sees a part only: its
// processors count as not measured, as its link does.
func (p *planner) limitLinks(list []balance.Host) (slow map[uint32]float64) {
	slow = map[uint32]float64{}
	for i := range list {
		h := &list[i]
		if len(h.Nodes) > 1 {
			continue
		}
		id := h.Nodes[0].ID
		if rate := p.reports[int(id)].Processor; rate > 0 && rate < slowProcessor*slower(h) {
			slow[id] = rate
			h.Up, h.Down = min(h.Up, rate), min(h.Down, rate)
		}
	}
	return slow
}

// describeProcessors says which processors are slow.
func describeProcessors(slow map[uint32]float64, members []*member) (texts []string) {
	for _, m := range members {
		if rate := slow[uint32(m.ID)]; rate > 0 {
			texts = append(texts, fmt.Sprintf("the processor of %s moves %s", Name(m.ID), Megabits(rate)))
		}
	}
	return texts
}
