package cluster

import (
	"fmt"
	"slices"

	"fptps/gocore/balance"
	"fptps/gocore/plan"
)

// Until more is known, all links are taken to be equal, and to decide how long a round takes. The
// rates are in bytes per second.
const (
	equalLink = 1e9 / 8
	fastSums  = 1000 * equalLink
	// A worker trains beside. This much limits it only where links do not: of two workers, whose
	// links carry the same whatever their shares, each gets 1/4 of the summing and a server 1/2.
	workerSums = equalLink / 2
)

// divideSumming gives a share of the summing to each member that has set none. If no member has, the
// shares are those that make a round shortest over links of equal rates. If one has, the
// others' are 1 on servers; on workers 0, or 1 without servers.
func (s *Scheduler) divideSumming() {
	members := make([]*member, 0, len(s.members))
	for _, id := range s.ids() {
		members = append(members, s.members[id])
	}
	if !slices.ContainsFunc(members, func(m *member) bool { return m.Share != Unset }) && s.shareEqualLinks(members) {
		return
	}
	servers := slices.ContainsFunc(members, func(m *member) bool { return m.Role == RoleServer })
	for _, m := range members {
		if m.Share != Unset {
			continue
		}
		m.Share = 0
		if m.Role == RoleServer || !servers {
			m.Share = 1
		}
	}
}

// shareEqualLinks reports false if no two workers have anything to sum. Servers sum alone where that takes no longer.
func (s *Scheduler) shareEqualLinks(members []*member) bool {
	if s.c.Workers < 2 {
		return false
	}
	all := hosts(members)
	best, err := balance.Plan(all)
	if err != nil {
		s.do(Note{Text: fmt.Sprintf("shares of the summing are those of servers alone: %v", err)})
		return false
	}
	shortest, _ := balance.Time(all, best)
	var servers []plan.Share
	for _, m := range members {
		if m.Role == RoleServer {
			servers = append(servers, plan.Share{Node: uint32(m.ID), Share: 1})
		}
	}
	if alone, _ := balance.Time(all, servers); alone <= shortest {
		best = servers
	}
	for _, m := range members {
		m.Share = 0
	}
	for _, share := range best {
		s.members[int(share.Node)].Share = int(share.Share)
	}
	return true
}

// hosts lists the links and the members behind them: one for each address, or, where all members have the same
// address and use no link, one for each member.
func hosts(members []*member) []balance.Host {
	var list []balance.Host
	index := map[string]int{}
	one := !slices.ContainsFunc(members, func(m *member) bool { return m.Host != members[0].Host })
	for _, m := range members {
		node := balance.Node{ID: uint32(m.ID), Sums: fastSums}
		if m.Role == RoleWorker {
			node.Worker, node.Sums = true, workerSums
		}
		i, known := index[m.Host]
		if !known || one {
			i = len(list)
			index[m.Host] = i
			list = append(list, balance.Host{Up: equalLink, Down: equalLink})
		}
		list[i].Nodes = append(list[i].Nodes, node)
	}
	return list
}
