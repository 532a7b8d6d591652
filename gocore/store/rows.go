package store

import (
	"fmt"

	"fptps/gocore/aggregate"
	"fptps/gocore/fault"
	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// Tables are tensors whose single rows are pushed and pulled. An update reads and writes only the pushed rows: the optimiser is
// lazy, as torch.optim.SparseAdam, and counts every round as a step of all rows. The buffer of the weights is never sent, so
// updates are made in place.

// completeRows applies the sum of a round to the table.
func (s *Store) completeRows(t *tensor, p *packet, sum *aggregate.Sum) {
	gradient := sum.Buffer
	sum.Buffer, sum.Header.WireLen = nil, 0
	if t.rule == nil { // a plain sum: the rows of the last round, zeros elsewhere
		p.dropInitial()
		if p.value = gradient; gradient == nil {
			p.zeros = wire.PacketBytes
		}
		return
	}
	p.steps++
	if gradient == nil {
		return
	}
	p.allocateState(t)
	sum.Rows.Each(func(from, to int) { s.updateRows(t, p, from, gradient.Bytes[from:to]) })
	gradient.Release()
}

// pushRows applies one worker's rows.
func (s *Store) pushRows(t *tensor, p *packet, c *pendingPush) {
	p.steps++
	if c.gradient == nil {
		return
	}
	p.allocateState(t)
	// push has validated the payload.
	c.header.EachRow(c.gradient.Bytes, func(at int, elements []byte) { s.updateRows(t, p, at, elements) })
	c.gradient.Release()
}

// updateRows applies the gradient to the rows at offset at, or adds a push. It may overwrite gradient.
func (s *Store) updateRows(t *tensor, p *packet, at int, gradient []byte) {
	value := p.value.Bytes[at:][:len(gradient)]
	if !reduce.Wide(t.dtype) {
		if t.rule == nil {
			reduce.Add(t.dtype, value, gradient)
			return
		}
		rows := p.rowsState(at, len(gradient))
		t.rule.step(t.dtype, value, gradient, value, &rows)
		return
	}
	from, n := reduce.AccBytes(t.dtype, at), reduce.AccBytes(t.dtype, len(gradient))
	master := p.master[from:][:n]
	if t.rule == nil {
		reduce.AddWide(t.dtype, master, gradient)
	} else {
		wide := s.scratch[:n]
		reduce.Widen(t.dtype, wide, gradient)
		rows := p.rowsState(from, n)
		t.rule.step(wire.Float32, master, wide, master, &rows)
	}
	reduce.Narrow(t.dtype, value, master)
}

// rowsState is a copy of p whose state arrays are only the bytes of the updated rows.
func (p *weights) rowsState(from, bytes int) weights {
	rows := weights{rate: p.rate, steps: p.steps}
	for i, state := range p.state {
		if state != nil {
			rows.state[i] = state[from:][:bytes]
		}
	}
	return rows
}

// Rows returns the rows of a packet that an AskRows names, in a buffer that the caller owns.
func (s *Store) Rows(h *wire.Header, numbers []byte) (*aggregate.Buffer, error) {
	t := s.tensors[h.Tensor]
	switch {
	case t == nil || t.packets[h.Packet] == nil:
		return nil, fault.New(fault.Key, "packet %d of the table is not on this aggregator", h.Packet)
	case t.codec != wire.CodecRows:
		return nil, fault.New(fault.Value, "the tensor is not a table")
	}
	value := t.packets[h.Packet].value
	b := s.pool.Get(int(h.RawLen))
	err := h.EachAsked(numbers, func(at, from, end int) {
		if value == nil {
			clear(b.Bytes[from:end])
		} else {
			copy(b.Bytes[from:end], value.Bytes[at:])
		}
	})
	if err != nil {
		b.Release()
		return nil, fault.New(fault.Value, "%v", err)
	}
	return b, nil
}

// checkRows returns an error unless the payload of a contribution is a valid list of rows.
func checkRows(h *wire.Header, payload []byte) error {
	if err := h.EachRow(payload, func(int, []byte) {}); err != nil {
		return fmt.Errorf("tensor %d packet %d: %w", h.Tensor, h.Packet, err)
	}
	return nil
}
