package balance

import (
	"math"

	"fptps/gocore/wire"
)

// roundingLoss bounds how much longer rounding may make the time.
const roundingLoss = 1.0 / 1000

// integers rounds shares to integers. Their total is the number of nodes with a share, so that
// equal nodes have share 1, or the next larger one tried that costs at most roundingLoss.
func (m *model) integers(shares []float64) []uint32 {
	sum := uint32(0)
	for _, s := range shares {
		if s > 0 {
			sum++
		}
	}
	limit := m.balanced(shares) * (1 + roundingLoss)
	for {
		counts := m.round(shares, sum)
		larger := sum + 1 + sum/8
		if m.balanced(divide(counts, sum)) <= limit || larger > wire.MaxShare {
			return counts
		}
		sum = larger
	}
}

// round returns integers with the given sum whose slowest link or node takes as little more
// time than that of shares as possible. It rounds down, then hands out the remaining units one by one, each to
// the node that is fastest with one more. No other choice of whole numbers is better,
// because a host's time grows with its own share alone. A host with most of the workers
// is an exception: its link is left out, since every unit makes it and the other links faster.
func (m *model) round(shares []float64, sum uint32) []uint32 {
	counts := make([]uint32, len(shares))
	ofHost := make([]uint32, len(m.hosts))
	left := sum
	for k, h := range m.hosts {
		for i := h.from; i < h.to; i++ {
			counts[i] = uint32(shares[i] * float64(sum))
			ofHost[k] += counts[i]
			left -= counts[i]
		}
	}
	for range left {
		best, bestHost, bestTime := 0, 0, math.Inf(1)
		for k, h := range m.hosts {
			link := 0.0
			if h.slope > 0 {
				link = (h.base + h.slope*float64(ofHost[k]+1)/float64(sum)) / h.link
			}
			for i := h.from; i < h.to; i++ {
				summing := m.workers * float64(counts[i]+1) / float64(sum) / m.nodes[i].Sums
				if t := max(link, summing); shares[i] > 0 && t < bestTime {
					best, bestHost, bestTime = i, k, t
				}
			}
		}
		counts[best]++
		ofHost[bestHost]++
	}
	return counts
}

// balanced returns the time of the slowest link or node among those whose time depends on
// the shares: the link of a slow worker without a share may take longer. A host with most of
// the workers has the longest time without a share.
func (m *model) balanced(shares []float64) float64 {
	slowest := m.summing(shares)
	for _, h := range m.hosts {
		if share := total(shares[h.from:h.to]); share > 0 && h.slope != 0 || h.slope < 0 {
			slowest = max(slowest, (h.base+h.slope*share)/h.link)
		}
	}
	return slowest
}

func divide(counts []uint32, sum uint32) []float64 {
	shares := make([]float64, len(counts))
	for i, count := range counts {
		shares[i] = float64(count) / float64(sum)
	}
	return shares
}
