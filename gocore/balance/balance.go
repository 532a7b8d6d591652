// Package balance computes shares of the summing from what links and nodes can carry.
//
// It minimises the time that the slowest link or node needs for one round of the whole
// model. docs/balance.md derives the formulas. The package is pure: capacities in, shares out.
package balance

import (
	"cmp"
	"slices"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/wire"
)

// Host is a network link and the nodes behind it, which reach each other without it. In a
// cluster of one node per machine every node is a host of its own.
type Host struct {
	Up, Down float64 // bytes per second to and from other hosts
	Nodes    []Node
}

// Node is a server or a worker.
type Node struct {
	ID     uint32
	Worker bool    // it contributes to every packet and receives every sum; a server does neither
	Sums   float64 // bytes of contributions per second that it can add up
}

// Capacities outside these limits, in bytes per second, are errors of measurement. The
// limits also keep every intermediate value far from overflow.
const (
	minCapacity = 1
	maxCapacity = 1e15
)

// Plan returns the best shares, one for each node, in ascending order of ids. Capacities
// must be between 1 and 1e15 bytes per second, ids distinct, and one node a worker; else it returns a
// Value error.
func Plan(hosts []Host) ([]plan.Share, error) {
	m, err := newModel(hosts)
	if err != nil {
		return nil, err
	}
	return m.plan(m.shares()), nil
}

// plan rounds shares.
func (m *model) plan(shares []float64) []plan.Share {
	list := make([]plan.Share, len(shares))
	for i, count := range m.integers(shares) {
		list[i] = plan.Share{Node: m.nodes[i].ID, Share: count}
	}
	slices.SortFunc(list, func(a, b plan.Share) int { return cmp.Compare(a.Node, b.Node) })
	return list
}

// Time returns the seconds per byte of the model that the slowest link or node needs for one
// round; infinity if no node has a share or one that is not in hosts has. Its errors are
// Plan's.
func Time(hosts []Host, shares []plan.Share) (float64, error) {
	m, err := newModel(hosts)
	if err != nil {
		return 0, err
	}
	return m.slowest(m.fractions(shares)), nil
}

// model is the validated input of the linear programme. The nodes of a host are
// consecutive in nodes.
type model struct {
	workers float64 // number of workers
	hosts   []host
	nodes   []Node
}

// host is a link with nodes[from:to] behind it.
type host struct {
	from, to int
	// link is the capacity of the slower direction. A round loads both directions alike:
	// whoever sends a contribution receives its sum.
	link float64
	// A round loads the link with base + slope*a times the model, where a is the host's
	// share: base = w, slope = W - 2w with w of all W workers on the host. The
	// slope is negative on a host with most of the workers.
	base, slope float64
}

func newModel(hosts []Host) (*model, error) {
	m := &model{}
	seen := map[uint32]bool{}
	for _, h := range hosts {
		from, workers := len(m.nodes), 0.0
		for _, n := range h.Nodes {
			name := wire.NodeName(int(n.ID))
			if seen[n.ID] {
				return nil, fault.New(fault.Value, "%s is listed twice: a node is on one host", name)
			}
			seen[n.ID] = true
			for _, capacity := range []float64{h.Up, h.Down, n.Sums} {
				if !(capacity >= minCapacity && capacity <= maxCapacity) {
					return nil, fault.New(fault.Value, "%s: capacities of %g B/s up, %g B/s down and %g B/s of sums: each must be from %g to %g",
						name, h.Up, h.Down, n.Sums, float64(minCapacity), float64(maxCapacity))
				}
			}
			if n.Worker {
				workers++
			}
		}
		m.nodes = append(m.nodes, h.Nodes...)
		m.hosts = append(m.hosts, host{from: from, to: len(m.nodes), link: min(h.Up, h.Down), base: workers})
		m.workers += workers
	}
	if m.workers == 0 {
		return nil, fault.New(fault.Value, "none of the %d nodes is a worker: there is nothing to sum", len(m.nodes))
	}
	for i := range m.hosts {
		m.hosts[i].slope = m.workers - 2*m.hosts[i].base
	}
	return m, nil
}

// fractions returns the part of the model that each node sums, or nil if no node has a
// share or one that is not in the model has.
func (m *model) fractions(shares []plan.Share) []float64 {
	byID := map[uint32]uint32{}
	total := 0.0
	for _, s := range shares {
		byID[s.Node] += s.Share
		total += float64(s.Share)
	}
	fractions := make([]float64, len(m.nodes))
	found := 0.0
	for i, n := range m.nodes {
		fractions[i] = float64(byID[n.ID]) / total
		found += float64(byID[n.ID])
	}
	if total == 0 || found != total {
		return nil
	}
	return fractions
}
