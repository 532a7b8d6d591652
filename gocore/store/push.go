package store

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/wire"
)

// held is a contribution that has arrived and is not applied yet.
type held struct {
	rank     int
	header   wire.Header       // Packet is this one's
	gradient *aggregate.Buffer // nil: there is none
	since    time.Time
}

// Reply is the value after a worker's round, for that worker.
type Reply struct {
	Rank int
	aggregate.Sum
}

// Push takes the contribution h of worker rank to a tensor whose rounds are each worker's own: all policies but Sync. payload
// and owned are as for aggregate.Table.Add. Those rounds that may be applied now, of this worker and of those that waited for
// it, are, and their replies are appended to replies. What was there before changes nothing, and is answered where it says
// that it was sent again. An error means that the peer breaks the protocol.
func (s *Store) Push(rank int, h *wire.Header, payload []byte, owned *aggregate.Buffer, replies []Reply) ([]Reply, error) {
	if rank < 0 || rank >= s.workers {
		if owned != nil {
			owned.Release()
		}
		return replies, fmt.Errorf("a contribution of rank %d in a cluster of %d workers", rank, s.workers)
	}
	if h.Kind == wire.Empty {
		return s.pushEmpty(rank, h, replies)
	}
	if owned == nil {
		owned = s.pool.Get(len(payload))
		copy(owned.Bytes, payload)
	}
	return s.push(held{rank, *h, owned, s.now}, replies)
}

func (s *Store) pushEmpty(rank int, h *wire.Header, replies []Reply) ([]Reply, error) {
	one := *h
	one.Run = 1
	for p := h.Packet; p < h.Packet+h.Run; p++ {
		one.Packet, one.RawLen = p, wire.PacketBytes
		if p == h.Packet+h.Run-1 {
			one.RawLen = h.RawLen
		}
		var err error
		if replies, err = s.push(held{rank, one, nil, s.now}, replies); err != nil {
			return replies, err
		}
	}
	return replies, nil
}

// push takes one packet's contribution.
func (s *Store) push(c held, replies []Reply) ([]Reply, error) {
	h := &c.header
	t, p, err := s.find(h, h.Policy())
	if err == nil && t.codec == wire.CodecRows && c.gradient != nil {
		err = goodRows(h, c.gradient.Bytes)
	}
	if err != nil {
		c.drop()
		return replies, err
	}
	at, waits := p.arrived[c.rank], p.waits(c.rank)
	switch {
	case h.Round <= at:
		c.drop()
		if h.Round == at && !waits && h.Flags&wire.FlagAgain != 0 {
			replies = append(replies, p.reply(&c))
		}
		return replies, nil
	case h.Round > at+1 || waits:
		c.drop()
		return replies, fmt.Errorf("tensor %d packet %d: round %d of worker %d arrives before round %d is answered", h.Tensor, h.Packet, h.Round, c.rank, h.Round-1)
	}
	p.arrived[c.rank] = h.Round
	p.waiting = append(p.waiting, c)
	s.waits++
	return s.advance(t, p, replies), nil
}

// advance applies the contributions that need not wait any more, in the order of (round, rank), and then answers them.
func (s *Store) advance(t *tensor, p *piece, replies []Reply) []Reply {
	due := uint64(math.MaxUint64)
	if t.policy != wire.Async {
		due = slices.Min(p.arrived) + t.policy.Delay()
	}
	slices.SortFunc(p.waiting, func(a, b held) int {
		return cmp.Or(cmp.Compare(a.header.Round, b.header.Round), cmp.Compare(a.rank, b.rank))
	})
	n := 0
	for n < len(p.waiting) && p.waiting[n].header.Round <= due {
		s.apply(t, p, &p.waiting[n])
		n++
	}
	for i := range n {
		replies = append(replies, p.reply(&p.waiting[i]))
	}
	p.waiting = slices.Delete(p.waiting, 0, n)
	s.waits -= n
	return replies
}

func (s *Store) apply(t *tensor, p *piece, c *held) {
	if c.header.Flags&wire.FlagLearningRate != 0 {
		p.rate = float64(c.header.LearningRate)
	}
	switch {
	case t.codec == wire.CodecRows:
		s.pushRows(t, p, c)
	case c.gradient != nil:
		s.update(t, p, c.gradient)
	}
}

// reply gives the value to a worker.
func (p *piece) reply(c *held) Reply {
	h := c.header
	h.Kind, h.Flags, h.LearningRate, h.Ahead, h.Contributors = wire.Sum, 0, 0, 0, 1
	if h.Codec == wire.CodecRows {
		h.RawLen, h.WireLen = wire.PacketBytes, 0
		return Reply{c.rank, aggregate.Sum{Header: h}}
	}
	p.value.Retain(1)
	h.WireLen = h.RawLen
	return Reply{c.rank, aggregate.Sum{Header: h, Buffer: p.value}}
}

func (p *piece) waits(rank int) bool {
	for i := range p.waiting {
		if p.waiting[i].rank == rank {
			return true
		}
	}
	return false
}

func (c *held) drop() {
	if c.gradient != nil {
		c.gradient.Release()
	}
}

// Tick tells the store what time it is, about once a second, and returns the rounds that have waited for slower workers for
// aggregate.StallAfter, at most once in that time.
func (s *Store) Tick(now time.Time) []aggregate.Stall {
	s.now = now
	if s.waits == 0 || now.Sub(s.told) < aggregate.StallAfter {
		return nil
	}
	var stalls []aggregate.Stall
	for id, t := range s.tensors {
		for _, p := range t.pieces {
			for i := range p.waiting {
				if c := &p.waiting[i]; now.Sub(c.since) >= aggregate.StallAfter {
					stalls = note(stalls, id, c, p.behind(c.header.Round-t.policy.Delay()))
				}
			}
		}
	}
	slices.SortFunc(stalls, func(a, b aggregate.Stall) int {
		return cmp.Or(cmp.Compare(a.Tensor, b.Tensor), cmp.Compare(a.Waiting[0], b.Waiting[0]))
	})
	if stalls != nil {
		s.told = now
	}
	return stalls
}

// behind lists the workers whose rounds have not come to round.
func (p *piece) behind(round uint64) (ranks []int) {
	for rank, at := range p.arrived {
		if at < round {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// note adds the stall of one packet to those of its tensor and worker.
func note(stalls []aggregate.Stall, tensor uint32, c *held, missing []int) []aggregate.Stall {
	i := slices.IndexFunc(stalls, func(s aggregate.Stall) bool { return s.Tensor == tensor && s.Waiting[0] == c.rank })
	if i < 0 {
		return append(stalls, aggregate.Stall{Tensor: tensor, Round: c.header.Round, Missing: missing, Waiting: []int{c.rank}})
	}
	for _, rank := range missing {
		if !slices.Contains(stalls[i].Missing, rank) {
			stalls[i].Missing = append(stalls[i].Missing, rank)
		}
	}
	return stalls
}
