package store

import (
	"cmp"
	"maps"
	"slices"

	"fptps/gocore/aggregate"
	"fptps/gocore/wire"
)

// A replica is a store to which all changes of another aggregator's store are applied, in the same order and by the same code: so it has
// the same bits. When that aggregator dies, its replica becomes a part of the store of the node that has it (Adopt).

// NewReplica makes an empty replica of another aggregator's store.
func (s *Store) NewReplica() *Store {
	r := New(nil, s.pool, s.now)
	r.Recovers, r.Replicates, r.ranks = s.Recovers, s.Replicates, s.ranks
	maps.Copy(r.dead, s.dead)
	return r
}

// PacketID names a packet of a tensor.
type PacketID struct {
	Tensor, Packet uint32
}

// Adopt takes over all packets of a replica, and returns those of which it keeps something.
func (s *Store) Adopt(replica *Store) (adopted []PacketID) {
	s.grow(replica.ranks)
	for id, theirs := range replica.tensors {
		t := s.tensors[id]
		if t == nil {
			t = s.newTensor(id, theirs.policy, theirs.dtype, theirs.codec)
		}
		if t.rule == nil { // else both have the same
			t.rule, t.clockOffset = theirs.rule, s.welcomed(theirs.clockOffset, nil)
		}
		for number, p := range theirs.packets {
			own := t.packets[number]
			newest := p.newestPlan(own)
			if !p.replaces(own) {
				own.plan = newest
				p.release()
				continue
			}
			p.plan = newest
			s.forget(t, number)
			t.packets[number] = p
			if p.weights != nil {
				p.arrived = s.welcomed(p.arrived, nil)
				if len(p.waiting) > 0 {
					s.waiting[p] = id
				}
			}
			if keeping, _ := s.Keeps(id, number); keeping != Nothing {
				adopted = append(adopted, PacketID{id, number})
			}
		}
	}
	clear(replica.tensors)
	clear(replica.waiting)
	slices.SortFunc(adopted, PacketID.Compare)
	return adopted
}

// Discard releases all that a replica has.
func (s *Store) Discard() {
	for _, t := range s.tensors {
		for number := range t.packets {
			s.forget(t, number)
		}
	}
	clear(s.tensors)
}

// Packets lists the packets of which the store keeps something.
func (s *Store) Packets() (list []PacketID) {
	for id, t := range s.tensors {
		for number := range t.packets {
			if keeping, _ := s.Keeps(id, number); keeping != Nothing {
				list = append(list, PacketID{id, number})
			}
		}
	}
	slices.SortFunc(list, PacketID.Compare)
	return list
}

// Compare orders packets.
func (id PacketID) Compare(other PacketID) int {
	return cmp.Or(cmp.Compare(id.Tensor, other.Tensor), cmp.Compare(id.Packet, other.Packet))
}

// Keeping is what a store keeps of a packet.
type Keeping uint8

const (
	Nothing Keeping = iota // no value: a plain sum after its first round
	Initial                // the initial value of a plain sum, until its first round
	Weights                // what rounds or pushes update
)

// Keeps returns what the store keeps of a packet, and the number of the last round that was applied to it.
func (s *Store) Keeps(id, number uint32) (Keeping, uint64) {
	t := s.tensors[id]
	if t == nil {
		return Nothing, 0
	}
	p := t.packets[number]
	switch {
	case p == nil:
		return Nothing, 0
	case t.rule != nil || t.policy != wire.Sync || t.codec == wire.CodecRows:
		return Weights, p.round
	case p.hasValue():
		return Initial, p.round
	}
	return Nothing, p.round
}

// Ruled reports whether a tensor has an optimiser.
func (s *Store) Ruled(id uint32) bool { return s.tensors[id] != nil && s.tensors[id].rule != nil }

// Initial returns the initial value of a packet as the contribution to round 0 that sets it, with a buffer that the caller has to
// release; nil: it is zeros.
func (s *Store) Initial(id, number uint32) (wire.Header, *aggregate.Buffer) {
	t := s.tensors[id]
	p := t.packets[number]
	h := wire.Header{DType: t.dtype, Policy: t.policy, Codec: t.codec, Tensor: id, Packet: number, Run: 1, Plan: p.plan, RawLen: uint32(p.bytes())}
	if p.value == nil {
		return h, nil
	}
	p.value.Retain(1)
	h.WireLen = h.RawLen
	return h, p.value
}

// newestPlan is the newest plan under which a packet of a replica, or that of this store, has come to its place: if it moves from the one to the other, it must not
// leave here.
func (p *packet) newestPlan(own *packet) uint16 {
	if own != nil && own.round == p.round && int16(own.plan-p.plan) > 0 {
		return own.plan
	}
	return p.plan
}

// replaces reports whether a packet of a replica is newer than that of this store, which an earlier move may have left, or which is on its way here.
func (p *packet) replaces(own *packet) bool {
	switch {
	case own == nil || p.round != own.round:
		return own == nil || p.round > own.round
	case !p.whole() || !own.whole():
		return !own.whole()
	}
	return int16(p.plan-own.plan) >= 0
}

// Pending lists the pushes of a packet that wait for slower workers, as they came: Push applies them again.
func (s *Store) Pending(id, number uint32) (list []Push) {
	p := s.tensors[id].packets[number]
	if p.weights == nil {
		return nil
	}
	for i := range p.waiting {
		c := &p.waiting[i]
		push := Push{c.rank, c.header, nil}
		if c.gradient != nil {
			push.Payload = c.gradient.Bytes
		}
		list = append(list, push)
	}
	return list
}

// Push is a push that waits. An Empty has no payload.
type Push struct {
	Rank    int
	Header  wire.Header
	Payload []byte
}

// Apply applies the sum of a round, or the initial value, to a replica. h is a wire.Replica of a value, payload its elements, in the buffer owned, which
// Apply takes over; nil: there are none.
func (s *Store) Apply(h *wire.Header, payload []byte, owned *aggregate.Buffer) error {
	sum := aggregate.Sum{
		Header: *h, Buffer: owned, Policy: h.Policy, Plan: h.Plan, LearningRate: h.LearningRate, Rated: h.Flags&wire.FlagLearningRate != 0,
	}
	sum.Header.Flags = 0
	if h.Codec == wire.CodecRows && owned != nil {
		if err := checkRows(h, payload); err != nil {
			owned.Release()
			return err
		}
		sum.Buffer, sum.Rows = aggregate.SpreadRows(s.pool, h, payload)
		owned.Release()
	}
	err := s.Complete(&sum)
	if err == nil && sum.Buffer != nil {
		sum.Buffer.Release()
	}
	return err
}
