package balance

import (
	"math"
	"slices"
	"sort"
)

const (
	// A node with less than smallShare of the mean share is left out if that costs at most
	// smallLoss of the time: each aggregator costs every worker a connection, and
	// every tensor a run of packets with its headers.
	smallShare = 1.0 / 8
	smallLoss  = 1.0 / 200
)

// shares returns the part of the model that each node should sum.
func (m *model) shares() []float64 {
	sums := make([]float64, len(m.nodes))
	for i, n := range m.nodes {
		sums[i] = n.Sums
	}
	all := m.fill(sums)
	limit := m.slowest(all) * (1 + smallLoss)
	small := smallOnes(all)
	without := func(count int) []float64 { // the count smallest, and those that equal them
		if count == 0 {
			return all
		}
		rest := slices.Clone(sums)
		for i := range rest {
			if all[i] <= small[count-1]*(1+1e-9) {
				rest[i] = 0
			}
		}
		return m.fill(rest)
	}
	// The time grows with every node that is left out.
	count := sort.Search(len(small), func(i int) bool { return m.slowest(without(i+1)) > limit })
	return without(count)
}

// smallOnes returns the positive shares that are far below their mean, in ascending order.
func smallOnes(shares []float64) []float64 {
	positive := slices.DeleteFunc(slices.Sorted(slices.Values(shares)), func(s float64) bool { return s == 0 })
	limit := smallShare / float64(len(positive))
	return slices.DeleteFunc(positive, func(s float64) bool { return s >= limit })
}

// fill solves the linear programme for nodes that add up sums bytes per second; a node
// with sums 0 gets no share, and one node has more than 0.
//
// Given a time t, the largest share that a host can handle within t depends on no other host's
// share, and grows with t. So the optimum is the time at which the largest shares add up to 1. A
// host that needs more time even without a share gets none, and the others
// finish together, earlier than it. This makes the optimum unique: among all
// optima of the linear programme it also has the lowest second-slowest host, and so on.
func (m *model) fill(sums []float64) []float64 {
	late := math.Inf(1) // the least time in which one host alone can sum everything
	for _, h := range m.hosts {
		if rate := total(sums[h.from:h.to]); rate > 0 {
			late = min(late, max(m.workers/rate, (h.base+h.slope)/h.link))
		}
	}
	early := 0.0
	for range 128 { // until the two are neighbours; they begin within a factor of the number of hosts
		middle := early + (late-early)/2
		if m.capacity(sums, middle, nil) >= 1 {
			late = middle
		} else {
			early = middle
		}
	}
	shares := make([]float64, len(m.nodes))
	sum := m.capacity(sums, late, shares)
	for i := range shares {
		shares[i] /= sum
	}
	return shares
}

// capacity returns the part of the model that all hosts together can sum within the time t,
// and sets shares to each node's part, unless shares is nil.
func (m *model) capacity(sums []float64, t float64, shares []float64) (sum float64) {
	for _, h := range m.hosts {
		rate := total(sums[h.from:h.to])
		if rate == 0 {
			continue
		}
		share := m.most(h, rate, t)
		sum += share
		if shares != nil {
			for i := h.from; i < h.to; i++ {
				shares[i] = share * sums[i] / rate
			}
		}
	}
	return sum
}

// most returns the share that host h can handle within t if its nodes add up rate bytes per
// second; on a host with most of the workers at least the share that makes its own time least.
func (m *model) most(h host, rate, t float64) float64 {
	share := t * rate / m.workers
	if h.slope > 0 {
		share = min(share, max(0, (t*h.link-h.base)/h.slope))
	}
	if h.slope < 0 { // where the time of the link, which falls with the share, meets that of summing
		share = max(share, min(1, h.base*rate/(m.workers*h.link-h.slope*rate)))
	}
	return share
}

// slowest returns the time of the slowest link or node, per byte of the model; infinity without shares.
func (m *model) slowest(shares []float64) float64 {
	if shares == nil {
		return math.Inf(1)
	}
	slowest := 0.0
	for _, h := range m.hosts {
		slowest = max(slowest, (h.base+h.slope*total(shares[h.from:h.to]))/h.link)
	}
	return max(slowest, m.summing(shares))
}

// summing returns the time of the node that takes longest to add up its contributions.
func (m *model) summing(shares []float64) float64 {
	longest := 0.0
	for i, n := range m.nodes {
		longest = max(longest, m.workers*shares[i]/n.Sums)
	}
	return longest
}

func total(list []float64) (sum float64) {
	for _, x := range list {
		sum += x
	}
	return sum
}
