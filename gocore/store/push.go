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

// pendingPush is a contribution that has arrived but is not applied yet.
type pendingPush struct {
	rank     int
	header   wire.Header       // of this packet alone, even if it arrived as a run
	gradient *aggregate.Buffer // nil for a skip
	since    time.Time
}

// Reply is the answer to a worker's round: the weights after it was applied.
type Reply struct {
	Rank int
	aggregate.Sum
}

// Push takes the contribution h of worker rank, for all policies but Sync: each worker counts its own rounds. payload and owned
// are as for aggregate.Slots.Add. Push applies every round that need not wait any more, of this worker and of workers that
// waited for it, and appends their replies to replies. A duplicate changes nothing. It gets no reply, unless this store may have been a replica: then
// the worker repeats what another aggregator has not answered, and gets the present value. An error means that the peer violates the protocol.
func (s *Store) Push(rank int, h *wire.Header, payload []byte, owned *aggregate.Buffer, replies []Reply) ([]Reply, error) {
	if h.Kind == wire.Empty {
		return s.pushEmpty(rank, h, replies)
	}
	if owned == nil {
		owned = s.pool.Get(len(payload))
		copy(owned.Bytes, payload)
	}
	return s.push(pendingPush{rank, *h, owned, s.now}, replies)
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
		if replies, err = s.push(pendingPush{rank, one, nil, s.now}, replies); err != nil {
			return replies, err
		}
	}
	return replies, nil
}

// push takes the contribution to one packet.
func (s *Store) push(c pendingPush, replies []Reply) ([]Reply, error) {
	h := &c.header
	t, p, err := s.find(h, h.Policy)
	if err == nil && (c.rank < 0 || c.rank >= len(p.arrived)) {
		err = fmt.Errorf("a contribution of rank %d in a cluster of %d ranks", c.rank, len(p.arrived))
	}
	if err == nil && t.codec == wire.CodecRows && c.gradient != nil {
		err = checkRows(h, c.gradient.Bytes)
	}
	if err != nil {
		c.drop()
		return replies, err
	}
	at, waits := p.arrived[c.rank], p.isWaiting(c.rank)
	switch {
	case h.Round <= at:
		c.drop()
		return append(replies, s.repeated(t, p, &c, at, waits)...), nil
	case h.Round > at+1 || waits:
		c.drop()
		return replies, fmt.Errorf("tensor %d packet %d: round %d of worker %d arrived before round %d was answered", h.Tensor, h.Packet, h.Round, c.rank, h.Round-1)
	}
	p.arrived[c.rank] = h.Round
	p.waiting = append(p.waiting, c)
	return s.advance(h.Tensor, t, p, replies), nil
}

// repeated returns the reply to a contribution that has arrived before, in round at; none while it waits, or if replies are not lost.
func (s *Store) repeated(t *tensor, p *packet, c *pendingPush, at uint64, waits bool) []Reply {
	if !s.Replicates || c.header.Round < at {
		return nil
	}
	if waits { // the reply will have the present epoch
		i := slices.IndexFunc(p.waiting, func(other pendingPush) bool { return other.rank == c.rank })
		p.waiting[i].header.Epoch = c.header.Epoch
		return nil
	}
	return []Reply{t.reply(p, c)}
}

// slowest is the least round that has arrived from a living worker.
func (s *Store) slowest(p *packet) uint64 {
	least := uint64(math.MaxUint64)
	for rank, at := range p.arrived {
		if !s.dead[rank] {
			least = min(least, at)
		}
	}
	return least
}

// advance applies the contributions that need not wait any more, in the order of (round, rank), and then appends their replies.
func (s *Store) advance(id uint32, t *tensor, p *packet, replies []Reply) []Reply {
	due := uint64(math.MaxUint64)
	if t.policy != wire.Async {
		due = s.slowest(p)
		due += min(t.policy.Delay(), math.MaxUint64-due)
	}
	slices.SortFunc(p.waiting, func(a, b pendingPush) int {
		return cmp.Or(cmp.Compare(a.header.Round, b.header.Round), cmp.Compare(a.rank, b.rank))
	})
	n := 0
	for n < len(p.waiting) && p.waiting[n].header.Round <= due {
		s.apply(t, p, &p.waiting[n])
		n++
	}
	for i := range n {
		replies = append(replies, t.reply(p, &p.waiting[i]))
	}
	p.waiting = slices.Delete(p.waiting, 0, n)
	if len(p.waiting) > 0 {
		s.waiting[p] = id
	} else {
		delete(s.waiting, p)
	}
	return replies
}

func (s *Store) apply(t *tensor, p *packet, c *pendingPush) {
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

// reply makes the reply to a contribution.
func (t *tensor) reply(p *packet, c *pendingPush) Reply {
	h := c.header
	h.Kind, h.Flags, h.LearningRate, h.Ahead, h.Policy, h.Plan, h.Contributors = wire.Sum, 0, 0, 0, 0, 0, 1
	if t.rule != nil {
		h.Flags = wire.FlagWeights
	}
	if h.Codec == wire.CodecRows {
		h.RawLen, h.WireLen = wire.PacketBytes, 0
		return Reply{c.rank, aggregate.Sum{Header: h}}
	}
	p.value.Retain(1)
	h.WireLen = h.RawLen
	return Reply{c.rank, aggregate.Sum{Header: h, Buffer: p.value}}
}

func (p *packet) isWaiting(rank int) bool {
	for i := range p.waiting {
		if p.waiting[i].rank == rank {
			return true
		}
	}
	return false
}

func (c *pendingPush) drop() {
	if c.gradient != nil {
		c.gradient.Release()
	}
}

// maxLooks bounds the packets that one Tick inspects, so that a Tick is short in a large model too.
const maxLooks = 1024

// Tick sets the time; the caller calls it about once a second. It returns rounds that have waited for slower workers for
// aggregate.StallAfter, at most once in that time, of maxLooks packets at most.
func (s *Store) Tick(now time.Time) []aggregate.Stall {
	s.now = now
	if len(s.waiting) == 0 || now.Sub(s.stallsReported) < aggregate.StallAfter {
		return nil
	}
	var stalls []aggregate.Stall
	looks := 0
	for p, id := range s.waiting { // in another order each time
		if looks++; looks > maxLooks {
			break
		}
		for i := range p.waiting {
			if c := &p.waiting[i]; now.Sub(c.since) >= aggregate.StallAfter {
				stalls = addStall(stalls, id, c, s.ranksBehind(p, c.header.Round-s.tensors[id].policy.Delay()))
			}
		}
	}
	for _, stall := range stalls {
		slices.Sort(stall.Missing)
	}
	slices.SortFunc(stalls, func(a, b aggregate.Stall) int {
		return cmp.Or(cmp.Compare(a.Tensor, b.Tensor), cmp.Compare(a.Waiting[0], b.Waiting[0]))
	})
	if stalls != nil {
		s.stallsReported = now
	}
	return stalls
}

// ranksBehind lists the workers that have not reached round.
func (s *Store) ranksBehind(p *packet, round uint64) (ranks []int) {
	for rank, at := range p.arrived {
		if at < round && !s.dead[rank] {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// addStall merges the stall of one packet into the entry of its tensor and worker.
func addStall(stalls []aggregate.Stall, tensor uint32, c *pendingPush, missing []int) []aggregate.Stall {
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
