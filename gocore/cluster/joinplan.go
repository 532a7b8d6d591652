package cluster

import (
	"slices"
	"strings"
	"time"

	"fptps/gocore/balance"
	"fptps/gocore/plan"
)

// join has a new plan made, as a node has come.
func (p *planner) join(now time.Time, id int) {
	p.joined, p.lookTime = append(p.joined, id), now
}

// introduceJoined begins the change to the plan that the cluster would have if it began with its present nodes. nil: it has that.
func (p *planner) introduceJoined(now time.Time, members []*member) *change {
	var names []string
	for _, id := range p.joined {
		names = append(names, Name(id))
	}
	joined := p.joined
	p.joined = nil
	shares := p.sharesOf(members)
	if summing := slices.ContainsFunc(shares, func(s plan.Share) bool { return s.Share > 0 }); !summing || slices.Equal(shares, p.shares) {
		return nil
	}
	c := p.introduce(now, shares, strings.Join(names, ", ")+" came")
	c.joined = joined
	return c
}

// sharesOf are the shares with which a cluster of these nodes would begin, with what is known of links.
func (p *planner) sharesOf(members []*member) (shares []plan.Share) {
	best := givenShares(members)
	if p.active {
		list, _ := p.hosts(members)
		if better, err := balance.Plan(list); err == nil {
			best = map[int]int{}
			for _, s := range better {
				best[int(s.Node)] = int(s.Share)
			}
		}
	}
	for _, m := range members {
		shares = append(shares, plan.Share{Node: uint32(m.ID), Share: uint32(best[m.ID])})
	}
	slices.SortFunc(shares, func(a, b plan.Share) int { return int(a.Node) - int(b.Node) })
	return shares
}
