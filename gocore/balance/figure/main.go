// Command figure prints the data of the picture in docs/balance.md as CSV: a line that names the
// columns, then the rows, for each of the two panes.
package main

import (
	"fmt"

	"fptps/gocore/balance"
	"fptps/gocore/plan"
	"fptps/gocore/wire"
)

const (
	link = 125e6 // bytes per second: 1 Gbit/s
	sums = 1e11  // limits nothing
)

func main() {
	fmt.Println("servers,only servers,only workers,best shares")
	for servers := range 11 {
		hosts := cluster(8, servers)
		best, err := balance.Plan(hosts)
		check(err)
		fmt.Printf("%d,%g,%g,%g\n", servers, time(hosts, only(hosts, false)), time(hosts, only(hosts, true)), time(hosts, best))
	}
	fmt.Println("link,slow worker,another worker,server,best shares,equal shares")
	for percent := 20; percent <= 100; percent++ {
		hosts := cluster(4, 2)
		hosts[0].Up = link * float64(percent) / 100
		best, err := balance.Plan(hosts)
		check(err)
		share, total := map[uint32]float64{}, 0.0
		for _, s := range best {
			share[s.Node] = float64(s.Share)
			total += float64(s.Share)
		}
		equal := append(only(hosts, true), only(hosts, false)...)
		fmt.Printf("%g,%g,%g,%g,%g,%g\n", float64(percent)/100, share[uint32(wire.WorkerID(0))]/total,
			share[uint32(wire.WorkerID(1))]/total, share[uint32(wire.ServerID(0))]/total, time(hosts, best), time(hosts, equal))
	}
}

// cluster has one node on each host.
func cluster(workers, servers int) []balance.Host {
	var hosts []balance.Host
	add := func(id int, worker bool) {
		hosts = append(hosts, balance.Host{Up: link, Down: link, Nodes: []balance.Node{{ID: uint32(id), Worker: worker, Sums: sums}}})
	}
	for rank := range workers {
		add(wire.WorkerID(rank), true)
	}
	for rank := range servers {
		add(wire.ServerID(rank), false)
	}
	return hosts
}

// only gives equal shares to the workers, or to the servers.
func only(hosts []balance.Host, workers bool) []plan.Share {
	var shares []plan.Share
	for _, h := range hosts {
		if h.Nodes[0].Worker == workers {
			shares = append(shares, plan.Share{Node: h.Nodes[0].ID, Share: 1})
		}
	}
	return shares
}

// time is in units of the model over one link.
func time(hosts []balance.Host, shares []plan.Share) float64 {
	seconds, err := balance.Time(hosts, shares)
	check(err)
	return seconds * link
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
