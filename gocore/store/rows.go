package store

import (
	"fmt"

	"fptps/gocore/aggregate"
	"fptps/gocore/fault"
	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// Tables: tensors of which single rows are pushed and pulled. Nothing but the pushed rows is touched, and what is not touched
// is not even read: the optimiser is lazy, as torch.optim.SparseAdam is, and counts every round as a step, of all rows. The
// weights are never handed out whole, so that they are changed where they lie.

// completeRows makes a sum of rows part of the table.
func (s *Store) completeRows(t *tensor, p *piece, sum *aggregate.Sum) {
	gradient := sum.Buffer
	sum.Buffer, sum.Header.WireLen = nil, 0
	if t.rule == nil { // the rows of the last round, and zeros
		p.forget()
		p.value = gradient
		return
	}
	p.steps++
	if gradient == nil {
		return
	}
	p.ready(t)
	sum.Rows.Each(func(from, to int) { s.updateRows(t, p, from, gradient.Bytes[from:to]) })
	gradient.Release()
}

// pushRows applies one worker's rows.
func (s *Store) pushRows(t *tensor, p *piece, c *held) {
	p.steps++
	if c.gradient == nil {
		return
	}
	p.ready(t)
	// Push has seen that the payload is one.
	c.header.EachRow(c.gradient.Bytes, func(at int, elements []byte) { s.updateRows(t, p, at, elements) })
	c.gradient.Release()
}

// updateRows applies the gradient of rows that lie at at, or adds a push to them. It may overwrite gradient.
func (s *Store) updateRows(t *tensor, p *piece, at int, gradient []byte) {
	value := p.value.Bytes[at:][:len(gradient)]
	if !reduce.Wide(t.dtype) {
		if t.rule == nil {
			reduce.Add(t.dtype, value, gradient)
			return
		}
		rows := p.cut(at, len(gradient))
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
		rows := p.cut(from, n)
		t.rule.step(wire.Float32, master, wide, master, &rows)
	}
	reduce.Narrow(t.dtype, value, master)
}

// cut is a piece as its rule sees it, of so many bytes of the state.
func (p *piece) cut(from, bytes int) piece {
	rows := piece{rate: p.rate, steps: p.steps}
	for i, state := range p.state {
		if state != nil {
			rows.state[i] = state[from:][:bytes]
		}
	}
	return rows
}

// Rows gives the rows of a packet that an AskRows names, in a buffer that is the caller's.
func (s *Store) Rows(h *wire.Header, numbers []byte) (*aggregate.Buffer, error) {
	t := s.tensors[h.Tensor]
	switch {
	case t == nil || t.pieces[h.Packet] == nil:
		return nil, fault.New(fault.Key, "packet %d of the table is not here", h.Packet)
	case t.codec != wire.CodecRows:
		return nil, fault.New(fault.Value, "the tensor is no table")
	}
	value := t.pieces[h.Packet].value
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

// goodRows tells whether a contribution's payload is one of rows.
func goodRows(h *wire.Header, payload []byte) error {
	if err := h.EachRow(payload, func(int, []byte) {}); err != nil {
		return fmt.Errorf("tensor %d packet %d: %w", h.Tensor, h.Packet, err)
	}
	return nil
}
