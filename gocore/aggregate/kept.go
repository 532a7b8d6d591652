package aggregate

import (
	"fmt"
	"slices"

	"fptps/gocore/wire"
)

// After the death of an aggregator this node may sum some of its packets. Each worker sends its contribution to the round under way
// again, or a note that it has the sum (Have). If all contribute, the round is an ordinary one. If one worker has the sum, this node asks it
// for the sum (Recall, Kept) and sends that to the workers that contribute.

// Recall names a sum that this node has to ask a worker for.
type Recall struct {
	Rank           int // of the worker
	Tensor, Packet uint32
	Round          uint64
	Epoch          uint16
}

// kept is the newest sum of a packet that a worker is known to have.
type kept struct {
	round uint64
	epoch uint16
	rank  int   // of the worker
	owed  []int // ranks of the workers for which it was recalled
}

// Have records that worker rank has the sums of h.Run packets of h.Round. Recalls then lists those that other workers lack.
func (t *Slots) Have(rank int, h *wire.Header) error {
	t.forgetLast()
	now := t.members.now.Load()
	if err := now.check(rank, h.Epoch); err != nil {
		return fmt.Errorf("a note about sums: %w", err)
	}
	for number := h.Packet; number < h.Packet+h.Run; number++ {
		id := packetID{h.Tensor, number}
		p := t.packet(id)
		s := p.slots[h.Round%2]
		switch {
		case h.Round < p.complete: // this node made the sum, or knows of another worker that has it
			t.inherit(id, rank, h, now)
			continue
		case s != nil && s.round == h.Round && h.Epoch < s.epoch: // the workers repeat the round
			continue
		}
		t.kept[id] = &kept{round: h.Round, epoch: h.Epoch, rank: rank}
		p.complete, p.epoch = h.Round+1, h.Epoch
		if s != nil && s.round == h.Round {
			for _, r := range s.from.list(now.ranks(), true) {
				t.owe(id, r, h.Round)
			}
			t.giveUp(s)
		}
	}
	return nil
}

// inherit has another worker keep a sum whose worker is dead.
func (t *Slots) inherit(id packetID, rank int, h *wire.Header, now *members) {
	k := t.kept[id]
	if k == nil || k.round != h.Round || k.epoch != h.Epoch || !now.gone(k.rank) {
		return
	}
	k.rank = rank
	if len(k.owed) > 0 {
		t.recalls = append(t.recalls, k.recall(id))
	}
}

func (k *kept) recall(id packetID) Recall {
	return Recall{k.rank, id.tensor, id.packet, k.round, k.epoch}
}

// owe records that a worker contributes to a round of which another worker has the sum.
func (t *Slots) owe(id packetID, rank int, round uint64) {
	k := t.kept[id]
	if k == nil || k.round != round || k.rank == rank || slices.Contains(k.owed, rank) {
		return
	}
	if k.owed = append(k.owed, rank); len(k.owed) == 1 {
		t.recalls = append(t.recalls, k.recall(id))
	}
}

// Recalls lists the sums that the last call of Add, AddEmpty or Have wants from workers; valid until the next one.
func (t *Slots) Recalls() []Recall { return t.recalls }

// Kept takes the sum h, which worker rank was asked for, and returns the ranks of the workers that wait for it.
func (t *Slots) Kept(rank int, h *wire.Header) (owed []int) {
	k := t.kept[packetID{h.Tensor, h.Packet}]
	if k == nil || k.round != h.Round || k.epoch != h.Epoch || k.rank != rank {
		return nil
	}
	owed, k.owed = k.owed, nil
	return owed
}

// giveUp frees a slot of a round that has ended elsewhere.
func (t *Slots) giveUp(s *slot) {
	s.unwatch()
	s.of.slots[s.round%2] = nil
	if s.acc != nil {
		s.acc.Release()
	}
	for i := range s.held {
		if owned := s.held[i].owned; owned != nil {
			owned.Release()
		}
	}
	clear(s.held)
	s.acc, s.lent, s.held = nil, nil, s.held[:0]
	t.recycle(s)
}
