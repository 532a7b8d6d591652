package transport

import (
	"math"

	"fptps/gocore/fault"
)

// Weights says how a node divides its link among the flows of one kind; each is
// positive, and 1 to begin with. They count only where a link is full, and between
// packets of equal priority.
type Weights struct {
	Out float64 // of what goes to the peer, of all that this node sends
	In  float64 // of what comes from the peer, of all that this node receives
}

// Weigh sets the weights of the connection with peer, from the next packets on. A
// peer without a connection, or a weight that is not positive and finite, is a Value error.
func (t *Transport) Weigh(peer uint32, w Weights) error {
	if !(w.Out > 0 && w.Out <= math.MaxFloat64 && w.In > 0 && w.In <= math.MaxFloat64) {
		return fault.New(fault.Value, "weights %g and %g of %s: they have to be positive and finite", w.Out, w.In, name(peer))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.mu.table.conns[peer]
	if c == nil {
		return fault.New(fault.Value, "no connection with %s that could have a weight", name(peer))
	}
	c.weight, c.in.weight = w.Out, w.In
	return nil
}
