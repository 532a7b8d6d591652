package kv

import (
	"cmp"
	"fmt"

	"slices"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// table describes a tensor whose rows are pushed and pulled by number. The size of the tensor is that of its packets, with
// padding; rows x row bytes of it are elements.
type table struct {
	row       int // bytes
	rows      int
	perPacket int
}

// rowPart is the rows of one packet that a push contributes: a payload of wire.CodecRows.
type rowPart struct {
	packet uint32
	raw    int // bytes of the elements, with which data begins
	data   []byte
}

// rowPull is a pull of rows. It waits for the last push before it.
type rowPull struct {
	*inquiry
	asks []*ask
	of   *tensor
}

// newTable makes a tensor that is a table of so many bytes.
func newTable(bytes uint64, row int) *tensor {
	b := &table{row: row, rows: int(bytes) / row, perPacket: wire.RowsPerPacket(row)}
	packets := (b.rows + b.perPacket - 1) / b.perPacket
	return &tensor{table: b, packets: uint32(packets), size: uint64(packets) * wire.PacketBytes, got: make([]uint64, (packets+63)/64)}
}

// initTable makes a table with the rows of d.Memory, and the operation of its Init.
func (w *Worker) initTable(d *Init) (*operation, error) {
	name, row := wire.KeyText(d.Key, d.Name), d.Row
	switch {
	case d.DType.Bits() > 0:
		return nil, fault.New(fault.Type, "%s: a table of %v: plain elements are expected", name, d.DType)
	case row < 0 || row > wire.PacketBytes || len(d.Memory)%row != 0:
		return nil, fault.New(fault.Value, "%s: rows of %d bytes in a table of %d: 1 to %d are expected", name, row, len(d.Memory), wire.PacketBytes)
	}
	t := newTable(uint64(len(d.Memory)), row)
	if t.size > wire.MaxTensorBytes {
		return nil, fault.New(fault.Value, "%s: a table of %d bytes takes %d, at most %d", name, len(d.Memory), t.size, uint64(wire.MaxTensorBytes))
	}
	o := &operation{worker: w, tensor: t, verb: verbInit}
	if w.Rank == 0 || w.Recovers {
		o.source, o.borrowed = d.Memory, true
		for p := range t.packets {
			data := d.Memory[int(p)*t.table.perPacket*row:][:t.content(p)]
			o.parts = append(o.parts, rowPart{p, len(data), data})
		}
	}
	return o, nil
}

// content returns the number of bytes of packet p that are elements.
func (t *tensor) content(p uint32) int {
	if t.table == nil {
		return wire.PacketLen(t.size, p)
	}
	return min(t.table.perPacket, t.table.rows-int(p)*t.table.perPacket) * t.table.row
}

// contributeRows is contribute of a table: o's parts, and EMPTY for the packets between them.
func (t *tensor) contributeRows(o *operation, run plan.Run, out []sending) []sending {
	if o.verb == verbInit && !o.worker.leads() {
		return t.zeros(o, run, out)
	}
	next, end := run.First, run.First+run.Count
	first, _ := slices.BinarySearchFunc(o.parts, next, func(p rowPart, packet uint32) int { return cmp.Compare(p.packet, packet) })
	for _, p := range o.parts[first:] {
		if p.packet >= end {
			break
		}
		out = t.zeros(o, gap(run, next, p.packet), out)
		h := t.header(wire.Contrib, o, p.packet)
		h.RawLen = uint32(p.raw)
		out = append(out, sending{run.Node, run.Lane, h, p.data, o})
		next = p.packet + 1
	}
	return t.zeros(o, gap(run, next, end), out)
}

// wantsRows reports whether the tensor is a table and h is about its round under way.
func (t *tensor) wantsRows(h *wire.Header) bool {
	return t.table != nil && t.active != nil && h.Round == t.round && h.Codec == wire.CodecRows
}

// completeRows records that the round is complete in the packets of h, of those that node sums.
func (t *tensor) completeRows(node uint32, h *wire.Header) {
	o := t.active
	for p := h.Packet; p < min(h.Packet+h.Run, t.packets); p++ {
		if !o.has(p) && t.owner(p) == node {
			o.record(p)
		}
	}
}

// PushRows contributes rows to key's next round: rows holds their numbers, values the rows one after the other. Values of
// the same row are added up. Both arguments are copied. The ticket ends when the round is complete.
func (w *Worker) PushRows(key uint64, dtype wire.DType, rows []int64, values []byte, priority int32) (ticket *Ticket, err error) {
	t, err := w.findTable(key, dtype, rows, values)
	if err != nil {
		return nil, err
	}
	o := &operation{worker: w, tensor: t, verb: verbPush, priority: priority, parts: t.pack(rows, values)}
	w.step(func() effects {
		if err = w.mu.failed; err != nil {
			return effects{}
		}
		if err = w.checkClosed(t, t.newest()+1); err != nil {
			return effects{}
		}
		o.ticket = w.Tickets.New(func() Waiting { return w.explain(o) })
		ticket = o.ticket // nil again once the operation has ended
		w.mu.stats.BytesPushed += uint64(len(values))
		t.last = o
		t.queue = append(t.queue, o)
		w.traceCalled(o)
		return effects{sends: w.advance(t)}
	})
	return ticket, err
}

// PullRows fetches rows of key, as they are after this worker's last push, into out.
func (w *Worker) PullRows(key uint64, dtype wire.DType, rows []int64, out []byte, priority int32) (ticket *Ticket, err error) {
	t, err := w.findTable(key, dtype, rows, out)
	if err != nil {
		return nil, err
	}
	rows = slices.Clone(rows)
	pull := &rowPull{&inquiry{about: fmt.Sprintf("rows of %s", t.name), memory: out}, t.questions(rows, priority), t}
	pull.take = func(a *ask, payload []byte) error {
		w.mu.stats.BytesPulled += uint64(len(payload))
		return t.table.scatter(a, rows, payload, out)
	}
	w.step(func() effects {
		if err = w.mu.failed; err != nil {
			return effects{}
		}
		if len(pull.asks) == 0 {
			ticket = w.Tickets.New(nil)
			return effects{ended: []*Ticket{ticket}}
		}
		if err = w.mu.flights.take(key, out, nil, nil); err != nil {
			return effects{}
		}
		pull.worker = w
		w.open(pull.inquiry, pull.asks)
		ticket = pull.ticket
		if !t.last.whole {
			pull.after = t.last
			t.last.after = append(t.last.after, pull)
			return effects{}
		}
		return effects{sends: pull.start()}
	})
	return ticket, err
}

// start sends the requests for the rows. No further round begins before the answers have come. The lock is held.
func (p *rowPull) start() []sending {
	p.of.readers++
	p.then = func() effects {
		p.of.readers--
		return effects{sends: p.worker.advance(p.of)}
	}
	return p.worker.put(p.inquiry, p.asks)
}

// drop ends a pull that has not started.
func (p *rowPull) drop(err error) []*Ticket {
	p.err, p.left = err, 0
	p.queued.Store(0)
	return p.end().ended
}

// findTable returns the table of a key, if rows are rows of it and values has their size.
func (w *Worker) findTable(key uint64, dtype wire.DType, rows []int64, values []byte) (*tensor, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t, err := w.find(key)
	switch {
	case err != nil:
		return nil, err
	case t.table == nil:
		return nil, fault.New(fault.Value, "%s is not a table: use push() and pull()", t.name)
	case dtype != t.dtype:
		return nil, fault.New(fault.Type, "%s holds %v, the array is %v", t.name, t.dtype, dtype)
	case len(values) != len(rows)*t.table.row:
		return nil, fault.New(fault.Value, "%s: %d rows of %d bytes, the array has %d bytes", t.name, len(rows), t.table.row, len(values))
	}
	for i, row := range rows {
		if row < 0 || row >= int64(t.table.rows) {
			return nil, fault.New(fault.Value, "%s: row %d (rows[%d]) of a table of %d rows", t.name, row, i, t.table.rows)
		}
	}
	return t, nil
}

// order returns the indices of rows, sorted by row; indices of the same row keep their order.
func order(rows []int64) []int {
	places := make([]int, len(rows))
	for i := range places {
		places[i] = i
	}
	if !slices.IsSorted(rows) {
		slices.SortStableFunc(places, func(a, b int) int { return int(rows[a] - rows[b]) })
	}
	return places
}

// eachPacket calls f for each packet, in order, with the indices (places) of its rows in rows.
func (b *table) eachPacket(rows []int64, f func(packet int, places []int)) {
	for places := order(rows); len(places) > 0; {
		packet := int(rows[places[0]]) / b.perPacket
		n := 1
		for n < len(places) && int(rows[places[n]])/b.perPacket == packet {
			n++
		}
		f(packet, places[:n])
		places = places[n:]
	}
}

// number returns the number, within its packet, of the row at a place.
func (b *table) number(rows []int64, place int) int { return int(rows[place]) % b.perPacket }

// pack makes the contribution to each packet. If all rows of a packet are pushed, their numbers are left out.
func (t *tensor) pack(rows []int64, values []byte) (parts []rowPart) {
	b := t.table
	b.eachPacket(rows, func(packet int, places []int) {
		data := make([]byte, 0, len(places)*(b.row+2))
		var numbers []byte
		for len(places) > 0 {
			n := 1
			for n < len(places) && rows[places[n]] == rows[places[0]] {
				n++
			}
			data = t.appendRow(data, places[:n], values)
			numbers = wire.AppendRow(numbers, b.number(rows, places[0]))
			places = places[n:]
		}
		raw := len(data)
		if raw < t.content(uint32(packet)) {
			data = append(data, numbers...)
		}
		parts = append(parts, rowPart{uint32(packet), raw, data})
	})
	return parts
}

// appendRow appends the sum of the values at places, all of the same row.
func (t *tensor) appendRow(data []byte, places []int, values []byte) []byte {
	at := func(place int) []byte { return values[place*t.table.row:][:t.table.row] }
	data = append(data, at(places[0])...)
	if len(places) == 1 {
		return data
	}
	row := data[len(data)-t.table.row:]
	if !reduce.Wide(t.dtype) {
		for _, place := range places[1:] {
			reduce.Add(t.dtype, row, at(place))
		}
		return data
	}
	sum := make([]byte, reduce.AccBytes(t.dtype, len(row)))
	reduce.Widen(t.dtype, sum, row)
	for _, place := range places[1:] {
		reduce.AddWide(t.dtype, sum, at(place))
	}
	reduce.Narrow(t.dtype, row, sum)
	return data
}

// questions returns the asks for rows; each row is asked for once.
func (t *tensor) questions(rows []int64, priority int32) (all []*ask) {
	b := t.table
	b.eachPacket(rows, func(packet int, places []int) {
		run := t.run(uint32(packet))
		a := &ask{node: run.Node, lane: run.Lane, rows: places, header: wire.Header{
			Op: wire.AskRows, Codec: wire.CodecRows, Tensor: t.id, Packet: uint32(packet), Priority: priority,
		}}
		for i, place := range places {
			if i == 0 || rows[place] != rows[places[i-1]] {
				a.data = wire.AppendRow(a.data, b.number(rows, place))
				a.header.RawLen += uint32(b.row)
			}
		}
		all = append(all, a)
	})
	return all
}

// scatter copies the rows of an answer to the places that asked for them.
func (b *table) scatter(a *ask, rows []int64, answer, out []byte) error {
	if len(answer) != int(a.header.RawLen) {
		return fault.New(fault.Internal, "an answer of %d bytes, %d were asked for", len(answer), a.header.RawLen)
	}
	for i, place := range a.rows {
		if i > 0 && rows[place] != rows[a.rows[i-1]] {
			answer = answer[b.row:]
		}
		copy(out[place*b.row:][:b.row], answer)
	}
	return nil
}

// gap returns the part of a run from packet from up to, but without, packet to.
func gap(run plan.Run, from, to uint32) plan.Run {
	return plan.Run{Node: run.Node, First: from, Count: to - from, Lane: run.Lane}
}
