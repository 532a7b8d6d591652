package balance

import "fptps/gocore/plan"

// Flows returns the traffic of one node: for each peer that it exchanges packets with, the
// bytes in each direction per byte of the model. Both directions carry the same: a worker
// sends its contribution to each packet that the peer sums, and receives the sum. In proportion to
// these numbers a sender divides its link over receivers, and a receiver over senders
// (transport.Weigh); divided by Time they are bytes per second. Its errors are Plan's.
func Flows(hosts []Host, shares []plan.Share, node uint32) (map[uint32]float64, error) {
	m, err := newModel(hosts)
	if err != nil {
		return nil, err
	}
	flows := map[uint32]float64{}
	fractions := m.fractions(shares)
	if fractions == nil {
		return flows, nil
	}
	for i, own := range m.nodes {
		if own.ID != node {
			continue
		}
		for k, peer := range m.nodes {
			bytes := 0.0
			if own.Worker {
				bytes += fractions[k]
			}
			if peer.Worker {
				bytes += fractions[i]
			}
			if k != i && bytes > 0 {
				flows[peer.ID] = bytes
			}
		}
	}
	return flows, nil
}
