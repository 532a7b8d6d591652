package cluster

import (
	"fmt"
	"slices"

	"fptps/gocore/balance"
	"fptps/gocore/plan"
)

// Until more is known, all links are taken to be equal, and to decide how long a round takes: nodes
// add up faster. The rates are in bytes per second.
const (
	equalLink = 1e9 / 8
	fastSums  = 1000 * equalLink
)

// divideSumming gives a share of the summing to each member that has set none. If no member has, the
// shares are those that make a round shortest over links of equal rates. If one has, or all are on one host and use no
// link, the others' are 1 on servers; on workers 0, or 1 without servers.
func (s *Scheduler) divideSumming() {
	members := s.inOrder()
	for _, m := range members {
		m.given = m.Share
	}
	view := s.makeView()
	tensors := s.c.Workers > 1 && !view.Classic() && !view.PSLite()
	linked := slices.ContainsFunc(members, func(m *member) bool { return m.Host != members[0].Host })
	isSet := slices.ContainsFunc(members, func(m *member) bool { return m.Share != Unset })
	if tensors && linked && !isSet {
		s.shareLinks(members)
		s.planner.active = true
		return
	}
	given := givenShares(members)
	for _, m := range members {
		m.Share = given[m.ID]
	}
}

// givenShares are the shares that members have set, by id. The others' are 1 on servers; on workers 0, or 1 without servers.
func givenShares(members []*member) map[int]int {
	servers := slices.ContainsFunc(members, func(m *member) bool { return m.Role == RoleServer })
	shares := map[int]int{}
	for _, m := range members {
		switch {
		case m.given != Unset:
			shares[m.ID] = m.given
		case m.Role == RoleServer || !servers:
			shares[m.ID] = 1
		default:
			shares[m.ID] = 0
		}
	}
	return shares
}

// shareLinks divides the summing as equal links demand. Servers sum alone where that takes no longer.
func (s *Scheduler) shareLinks(members []*member) {
	all := hosts(members)
	best, err := balance.Plan(all)
	if err != nil {
		panic(err) // capacities are constants, ids are distinct, and there are workers
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
	for _, m := range members {
		if m.Role == RoleServer && m.Share == 0 {
			s.do(Note{Text: fmt.Sprintf("%s sums nothing: the workers' links carry as much whether it does or not. FPTPS_SHARE=1 on it, and 0 on workers, leaves the summing to it", Name(m.ID))})
		}
	}
}

// hosts lists the links, one for each address, and the members behind them.
func hosts(members []*member) []balance.Host {
	var list []balance.Host
	index := map[string]int{}
	for _, m := range members {
		i, known := index[m.Host]
		if !known {
			i = len(list)
			index[m.Host] = i
			list = append(list, balance.Host{Up: equalLink, Down: equalLink})
		}
		list[i].Nodes = append(list[i].Nodes, balance.Node{ID: uint32(m.ID), Worker: m.Role == RoleWorker, Sums: fastSums})
	}
	return list
}
