package store

import (
	"fmt"

	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// Snapshot is all that a packet's future depends on but its clock. Its slices are the store's own, valid until the next call.
type Snapshot struct {
	Rule  *Rule      // nil: none
	Rate  float64    // the learning rate now, where there is a rule
	Steps uint64     // updates so far
	DType wire.DType // of Value and State: Float32 for a tensor of 16-bit floats
	Value []byte
	State [][]byte // as many as the rule has
}

// Snapshot gives a packet's weights and the optimiser's state. A plain sum has none, and quantised tensors cannot be kept: both
// are errors.
func (s *Store) Snapshot(tensor, packet uint32) (Snapshot, error) {
	t, p, err := s.weights(tensor, packet)
	if err != nil {
		return Snapshot{}, err
	}
	p.ready(t)
	snap := Snapshot{Rule: t.rule, Rate: p.rate, Steps: p.steps, DType: t.dtype, Value: p.value.Bytes, State: p.state[:t.rule.states()]}
	if reduce.Wide(t.dtype) {
		snap.DType, snap.Value = wire.Float32, p.master
	}
	return snap, nil
}

// Restore gives a packet the weights and the state of a snapshot, copied. The rule has to be set before: Rule is not looked at.
func (s *Store) Restore(tensor, packet uint32, snap Snapshot) error {
	t, p, err := s.weights(tensor, packet)
	if err != nil {
		return err
	}
	p.ready(t)
	now, _ := s.Snapshot(tensor, packet)
	fits := snap.DType == now.DType && len(snap.Value) == len(now.Value) && len(snap.State) == len(now.State)
	for i := range snap.State {
		fits = fits && len(snap.State[i]) == len(now.Value)
	}
	if !fits {
		return fmt.Errorf("tensor %d packet %d: a snapshot of %d bytes of %v and %d states, expected %d of %v and %d",
			tensor, packet, len(snap.Value), snap.DType, len(snap.State), len(now.Value), now.DType, len(now.State))
	}
	value := s.pool.Get(len(p.value.Bytes))
	if reduce.Wide(t.dtype) {
		copy(p.master, snap.Value)
		reduce.Narrow(t.dtype, value.Bytes, p.master)
	} else {
		copy(value.Bytes, snap.Value)
	}
	p.value.Release()
	p.value, p.rate, p.steps = value, snap.Rate, snap.Steps
	for i := range snap.State {
		copy(p.state[i], snap.State[i])
	}
	return nil
}

// weights finds a packet that has weights to keep.
func (s *Store) weights(id, packet uint32) (*tensor, *piece, error) {
	t := s.tensors[id]
	switch {
	case t == nil || t.pieces[packet] == nil:
		return nil, nil, fmt.Errorf("tensor %d packet %d is not here", id, packet)
	case t.pieces[packet].value == nil:
		return nil, nil, fmt.Errorf("tensor %d is a plain sum: it has no weights", id)
	case t.dtype.Bits() > 0:
		return nil, nil, fmt.Errorf("tensor %d is quantised", id)
	}
	return t, t.pieces[packet], nil
}
