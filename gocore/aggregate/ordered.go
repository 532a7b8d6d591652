package aggregate

import (
	"slices"

	"fptps/gocore/wire"
)

// Contributions in the order of the workers' ranks (wire.Ordered): the bits of the sum do not depend on when they arrive. A
// contribution is added as soon as all lower ranks have contributed, and the slot holds it until then. An Empty is nothing
// to add, whenever it arrives: the first values by rank become the sum, later ones are added to them.

// held is a contribution that has not been added yet.
type held struct {
	rank    int
	header  wire.Header
	payload []byte
	owned   *Buffer // payload's memory; nil: the sender's, which does not change until the round is complete
}

// hold takes a contribution, for addInOrder to add. It reports whether the slot keeps owned.
func (t *Slots) hold(s *slot, rank int, h *wire.Header, payload []byte, owned *Buffer) (kept bool, err error) {
	switch {
	case h.Codec == wire.CodecRows: // checked now, while the sender of an invalid payload is known
		if err := s.eachRow(h, payload, func(int, []byte) {}); err != nil {
			return false, err
		}
	case isInitialZeros(h, payload):
		return false, nil
	}
	if owned == nil && h.Round == 0 { // payload is valid during this call only
		owned = t.pool.Get(len(payload))
		copy(owned.Bytes, payload)
		payload = owned.Bytes
	}
	at, _ := slices.BinarySearchFunc(s.held, rank, func(c held, rank int) int { return c.rank - rank })
	s.held = slices.Insert(s.held, at, held{rank, *h, payload, owned})
	return true, nil
}

// addInOrder adds the held contributions whose predecessors have all contributed.
func (t *Slots) addInOrder(s *slot) {
	now := t.members.now.Load()
	for s.prefix < now.ranks() && (s.from.has(s.prefix) || !now.in(s.prefix, s.epoch)) {
		s.prefix++
	}
	n := 0
	for n < len(s.held) && s.held[n].rank < s.prefix {
		n++
	}
	if n == 1 && s.acc == nil && s.held[0].owned == nil && s.count < s.workers {
		return // it stays in the sender's memory until there is another one to add
	}
	for i := range s.held[:n] {
		t.addHeld(s, &s.held[i])
	}
	s.held = slices.Delete(s.held, 0, n)
}

// addHeld adds one held contribution and releases its buffer, unless that has become the sum.
func (t *Slots) addHeld(s *slot, c *held) {
	kept := false
	if c.header.Codec == wire.CodecRows {
		_ = t.addRows(s, &c.header, c.payload) // hold has checked them
	} else {
		kept = t.add(s, c.payload, c.owned)
	}
	if c.owned != nil && !kept {
		c.owned.Release()
	}
}
