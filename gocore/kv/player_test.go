package kv

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// script lists the operations of all ranks on one tensor, by round: round 0 is init.
type script struct {
	key      uint64
	dtype    wire.DType
	elements int
	rounds   []part
	priority [][]int32 // of a rank's push in a round
}

// newScripts makes tensors of one element to three packets and an odd tail.
func newScripts(rng *rand.Rand, workers, tensors, rounds int) []script {
	dtypes := supported()
	scripts := make([]script, tensors)
	for i := range scripts {
		s := &scripts[i]
		s.key = rng.Uint64() >> 1
		s.dtype = dtypes[rng.IntN(len(dtypes))]
		packet := wire.PacketBytes / s.dtype.Size()
		s.elements = []int{1, 1 + rng.IntN(300), packet, packet + 1, 3*packet + 1 + rng.IntN(100)}[rng.IntN(5)]
		s.priority = make([][]int32, workers)
		s.rounds = []part{{ranks: []int{0}}}
		for range rounds {
			p := part{}
			if canMean(s.dtype) && rng.IntN(3) == 0 {
				p.op = wire.OpMean
			}
			for rank := range workers {
				if rng.IntN(8) > 0 {
					p.ranks = append(p.ranks, rank)
				}
			}
			s.rounds = append(s.rounds, p)
		}
		for rank := range workers {
			s.priority[rank] = []int32{0}
			for _, p := range s.rounds[1:] {
				priority := int32(0)
				if p.has(rank) {
					priority = int32(rng.IntN(200) - 100)
				}
				s.priority[rank] = append(s.priority[rank], priority)
			}
		}
	}
	return scripts
}

func (p part) has(rank int) bool {
	for _, r := range p.ranks {
		if r == rank {
			return true
		}
	}
	return false
}

// urgency is the priority that the sums of a round must have.
func (s *script) urgency(round uint64) int32 {
	most := s.priority[0][round]
	for _, p := range s.priority {
		most = max(most, p[round])
	}
	return most
}

// player is one rank that plays its part of all scripts, in an order of its own,
// running ahead of the others as far as the Worker lets it.
type player struct {
	*cluster
	*Worker
	rng     *rand.Rand
	scripts []script
	at      []uint64 // round of a script that was started last
	whole   []bool   // that round was pushed with push_pull
	mine    [][]byte // the array that was pushed last, if a pull may land in it
	open    []promise
	mayLose bool // servers die: initial values may be lost
	*mortal      // workers die; nil: they do not
	unit    int  // of the values
}

// promise is an open ticket, with the values that its array has to have when it has ended.
type promise struct {
	ticket *Ticket
	round  uint64
	array  []byte // nil: no result
	script *script
	name   string
}

func (p *player) play() {
	p.unit = len(p.workers)
	if p.mortal != nil {
		p.unit = unitOf(p.unit)
	}
	p.at, p.whole, p.mine = make([]uint64, len(p.scripts)), make([]bool, len(p.scripts)), make([][]byte, len(p.scripts))
	for _, i := range p.rng.Perm(len(p.scripts)) {
		s := &p.scripts[i]
		values := pushed(s.dtype, s.elements, p.unit, p.Rank, s.key, 0)
		p.promise(0, nil, s, fmt.Sprintf("init of key %d", s.key))(p.Init(s.key, s.dtype, wire.Sync, values))
	}
	for left := len(p.scripts) * len(p.scripts[0].rounds); left > 0 && !p.isDead(); {
		i := p.rng.IntN(len(p.scripts))
		if _, err := p.TensorInfo(p.scripts[i].key); fault.CodeOf(err) == fault.Key && !p.isDead() { // not yet declared by all
			p.settle()
		}
		switch k := p.rng.IntN(10); {
		case k < 6 && p.at[i]+1 < uint64(len(p.scripts[i].rounds)):
			p.push(i)
			left--
		case k < 6 && p.at[i]+1 == uint64(len(p.scripts[i].rounds)):
			p.at[i]++ // to the end, where only pulls remain
			left--
		case k < 9:
			p.pull(i)
		default:
			p.settle()
		}
	}
	p.settle()
}

// last is the round of script i that was started last.
func (p *player) last(i int) uint64 {
	return min(p.at[i], uint64(len(p.scripts[i].rounds)-1))
}

// push plays the next round of script i.
func (p *player) push(i int) {
	s := &p.scripts[i]
	p.at[i]++
	round := p.at[i]
	what := fmt.Sprintf("round %d of key %d", round, s.key)
	part, priority := s.rounds[round], s.priority[p.Rank][round]
	p.whole[i], p.mine[i] = false, nil
	if !part.has(p.Rank) {
		p.promise(round, nil, s, "skip of "+what)(p.Skip(s.key))
		return
	}
	array := pushed(s.dtype, s.elements, p.unit, p.Rank, s.key, round)
	p.whole[i] = true
	switch p.rng.IntN(3) {
	case 0:
		p.whole[i], p.mine[i] = false, array
		p.promise(round, nil, s, "push of "+what)(p.Push(s.key, s.dtype, array, part.op, priority))
	case 1:
		p.promise(round, array, s, "push_pull in place of "+what)(p.PushPull(s.key, s.dtype, array, array, part.op, priority))
	case 2:
		out := make([]byte, len(array))
		p.promise(round, out, s, "push_pull of "+what)(p.PushPull(s.key, s.dtype, array, out, part.op, priority))
	}
}

// pull pulls the last round of script i, sometimes into the array that it pushes.
func (p *player) pull(i int) {
	s := &p.scripts[i]
	round := p.last(i)
	array := make([]byte, s.elements*s.dtype.Size())
	if p.mine[i] != nil && p.rng.IntN(2) == 0 {
		array, p.mine[i] = p.mine[i], nil
	}
	ticket, err := p.Pull(s.key, s.dtype, array)
	if p.whole[i] {
		if err == nil && !p.isDead() {
			p.t.Errorf("rank %d pulled key %d round %d after a push_pull", p.Rank, s.key, round)
		}
		return
	}
	if round == 0 && p.mayLose && fault.CodeOf(err) == fault.NodeLost {
		return
	}
	p.promise(round, array, s, fmt.Sprintf("pull of key %d round %d", s.key, round))(ticket, err)
}

func (p *player) promise(round uint64, array []byte, s *script, name string) func(*Ticket, error) {
	return func(ticket *Ticket, err error) {
		if err != nil {
			if p.isDead() {
				return
			}
			p.t.Errorf("rank %d, %s: %v", p.Rank, name, err)
			return
		}
		p.open = append(p.open, promise{ticket, round, array, s, name})
	}
}

// settle waits for open tickets, in any order, and compares with the model: for
// those of rounds that this rank has started of every tensor, because ranks that
// wait for more in different orders may wait for each other.
func (p *player) settle() {
	p.rng.Shuffle(len(p.open), func(i, j int) { p.open[i], p.open[j] = p.open[j], p.open[i] })
	ready, later := slices.Min(p.at), []promise{}
	for _, o := range p.open {
		if o.round > ready {
			later = append(later, o)
			continue
		}
		err := wait(p.t, p.Worker, o.ticket)
		if o.round == 0 && p.mayLose && fault.CodeOf(err) == fault.NodeLost {
			continue
		}
		if p.isDead() {
			return
		}
		if err != nil {
			p.t.Errorf("rank %d, %s: %v", p.Rank, o.name, err)
		}
		part := o.script.rounds[o.round]
		if p.mortal != nil {
			part = part.without(p.mortal.absent(p.Rank, o), len(p.workers), o.round)
		}
		if want := part.expected(o.script.dtype, o.script.elements, p.unit, o.script.key, o.round); o.array != nil && !bytes.Equal(o.array, want) {
			p.t.Errorf("rank %d, %s, epoch %d: not the sum that the model has", p.Rank, o.name, o.ticket.Epoch())
		}
	}
	p.open = later
}

// isDead reports whether this player's worker has died.
func (p *player) isDead() bool { return p.mortal != nil && p.mortal.dead(p.Rank) }

// picker chooses the next packet: any, mostly the newest, or mostly one run's.
func picker(from *rand.Rand) func(int) int {
	rng := rand.New(rand.NewPCG(from.Uint64(), 0)) // of its own: it is used on the network's goroutine
	style := rng.IntN(3)
	return func(n int) int {
		switch {
		case style == 1 && rng.IntN(4) > 0:
			return n - 1
		case style == 2 && rng.IntN(16) > 0:
			return n / 2
		}
		return rng.IntN(n)
	}
}
