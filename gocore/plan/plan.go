// Package plan says which aggregator sums which packets.
//
// A plan is data (idea 4): integer shares, one per aggregator, and a cut that
// every node computes alike. To sum, an aggregator needs none of it.
package plan

import (
	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// Share is how much of the summing one node does, relative to the others.
type Share struct {
	Node  uint32
	Share uint32
}

// Run is a range of consecutive packets of one tensor that one node sums.
type Run struct {
	Node  uint32
	First uint32 // number of the first packet
	Count uint32 // at least 1
	Lane  int    // by which of the connections with Node
}

// Plan is a list of shares, in the same order on every node.
type Plan struct {
	Version uint32
	shares  []Share
	total   uint64
}

// New makes a plan. Nodes with share 0 sum nothing; a plan in which nobody sums,
// or a share above wire.MaxShare, is a Config error.
func New(version uint32, shares []Share) (*Plan, error) {
	p := &Plan{Version: version}
	for _, s := range shares {
		if s.Share > wire.MaxShare {
			return nil, fault.New(fault.Config, "the share of node %d is %d: at most %d (FPTPS_SHARE)", s.Node, s.Share, wire.MaxShare)
		}
		if s.Share > 0 {
			p.shares = append(p.shares, s)
			p.total += uint64(s.Share)
		}
	}
	if p.total == 0 {
		return nil, fault.New(fault.Config, "no node has a share of the summing: start a server, or set FPTPS_SHARE=1 on a worker")
	}
	return p, nil
}

// Aggregators lists the nodes that sum, in the plan's order.
func (p *Plan) Aggregators() []uint32 {
	nodes := make([]uint32, len(p.shares))
	for i, s := range p.shares {
		nodes[i] = s.Node
	}
	return nodes
}

// Cut appends to runs which packets of a tensor of size bytes each aggregator
// sums: at most one run each, together every packet once, in ascending order.
//
// Aggregator i's run ends at floor((packets * C(i) + r) / total), where C(i) is
// the sum of the first i shares and r, the rounding, is the key's hash modulo
// total: over many keys each gets exactly its share, and a tensor of one packet
// falls to each node as often as its share says.
func (p *Plan) Cut(key uint64, size uint64, runs []Run) []Run {
	packets := uint64(wire.Packets(size))
	r := hash(key) % p.total
	var before, upTo uint64
	for _, s := range p.shares {
		upTo += uint64(s.Share)
		end := (packets*upTo + r) / p.total
		if end > before {
			runs = append(runs, Run{Node: s.Node, First: uint32(before), Count: uint32(end - before)})
		}
		before = end
	}
	return runs
}

// Split divides each run of a key into one for every lane, as equal as can be, so that
// no packet has two lanes on any node. What is left over falls to the lanes by key.
func Split(key uint64, runs []Run, lanes int) []Run {
	if lanes == 1 {
		return runs
	}
	var parts []Run
	shift := hash(key) >> 32 % uint64(lanes) // not the bits that Cut takes
	for _, run := range runs {
		from := run.First
		for lane := range lanes {
			to := run.First + uint32((uint64(run.Count)*uint64(lane+1)+shift)/uint64(lanes))
			if to > from {
				parts = append(parts, Run{Node: run.Node, First: from, Count: to - from, Lane: lane})
			}
			from = to
		}
	}
	return parts
}

// hash spreads consecutive keys evenly (the finaliser of splitmix64).
func hash(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
