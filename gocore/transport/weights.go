package transport

import (
	"math"

	"fptps/gocore/fault"
)

// Weigh sets the weight in weighted fair queuing of packets to peer, relative to those to
// other peers, from now on; initially 1. It matters between packets of equal priority. Without
// a connection, or with a weight that is not positive and finite, it returns a Value error.
func (t *Transport) Weigh(peer uint32, weight float64) error {
	if !(weight > 0 && weight <= math.MaxFloat64) {
		return fault.New(fault.Value, "weight %g of %s: it must be positive and finite", weight, name(peer))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.mu.conns.byPeer[peer]
	if c == nil {
		return fault.New(fault.Value, "there is no connection with %s", name(peer))
	}
	c.weight = weight
	return nil
}
