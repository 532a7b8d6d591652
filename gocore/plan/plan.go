// Package plan assigns packets to aggregators.
//
// A plan is data: one integer share per aggregator. From it every node computes the
// same cuts of tensors (Tally). An aggregator needs no plan to sum.
package plan

import (
	"slices"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// Share is a node's share of the summing, relative to the other nodes' shares.
type Share struct {
	Node  uint32
	Share uint32
}

// Run is a range of consecutive packets of one tensor, all summed by the same node.
type Run struct {
	Node  uint32
	First uint32 // number of its first packet
	Count uint32 // at least 1
	Lane  int    // number of the lane that carries it
}

// Plan is a list of shares, in the same order on every node.
type Plan struct {
	shares []Share
	total  uint64
}

// New makes a plan. Nodes with share 0 sum nothing. If all shares are 0, or one is above
// wire.MaxShare, the error is a Config error.
func New(shares []Share) (*Plan, error) {
	p := &Plan{}
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

// Aggregators lists the nodes with a share above 0, in the plan's order.
func (p *Plan) Aggregators() []uint32 {
	nodes := make([]uint32, len(p.shares))
	for i, s := range p.shares {
		nodes[i] = s.Node
	}
	return nodes
}

// Shares lists the shares above 0, in the plan's order.
func (p *Plan) Shares() []Share { return slices.Clone(p.shares) }

// Fraction is the part of the summing that node does.
func (p *Plan) Fraction(node uint32) float64 {
	for _, s := range p.shares {
		if s.Node == node {
			return float64(s.Share) / float64(p.total)
		}
	}
	return 0
}

// Flows returns the traffic of one node in a round: for each peer with which it exchanges packets, the bytes in each
// direction per byte of the model. Both directions carry the same: a worker sends its contribution to each
// packet that the peer sums, and receives the sum.
func (p *Plan) Flows(node uint32, workers []uint32) map[uint32]float64 {
	flows := map[uint32]float64{}
	own := p.Fraction(node)
	for _, w := range workers {
		if w == node {
			for _, s := range p.shares {
				flows[s.Node] += p.Fraction(s.Node)
			}
		} else if own > 0 {
			flows[w] += own
		}
	}
	delete(flows, node)
	return flows
}

// Split divides each run of a key among the lanes, as evenly as possible. It gives the
// same packet the same lane on every node. The key's hash picks the lanes that get the
// remainder: small tensors spread over the lanes by chance.
func Split(key uint64, runs []Run, lanes int) []Run {
	if lanes == 1 {
		return runs
	}
	var split []Run
	shift := hash(key) >> 32 % uint64(lanes)
	for _, run := range runs {
		from := run.First
		for lane := range lanes {
			to := run.First + uint32((uint64(run.Count)*uint64(lane+1)+shift)/uint64(lanes))
			if to > from {
				split = append(split, Run{Node: run.Node, First: from, Count: to - from, Lane: lane})
			}
			from = to
		}
	}
	return split
}

// hash spreads consecutive keys evenly. It is the finaliser of splitmix64.
func hash(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
