package kv

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"fptps/gocore/aggregate"
	"fptps/gocore/plan"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// The slots model: workers have one round under way at a time, aggregators keep two
// slots per packet, connections deliver in any order. The model is explored
// exhaustively; the real Worker and Aggregator replay the path to each of its
// states and must offer exactly the moves that the model has there, with the
// right bytes. What the model forbids (a round that overwrites one still needed,
// a sum of another round, a deadlock) would show as a missing or an extra move,
// or as an error of aggregate.Slots.

// state of the model. Rounds count from 1; got says which packets of the round
// started[w] worker w has.
type state struct {
	started []int
	got     []uint32
	net     []piece // contributions under way
	sums    []piece // sums under way
}

// piece is one packet of a round on its way from or to a worker.
type piece struct{ worker, packet, round int }

func (s state) key() string { return fmt.Sprint(s.started, s.got, s.net, s.sums) }

func (s state) clone() state {
	return state{slices.Clone(s.started), slices.Clone(s.got), slices.Clone(s.net), slices.Clone(s.sums)}
}

// move is start (of worker), add or receive (of a piece).
type move struct {
	name string
	piece
}

func compare(a, b piece) int {
	return slices.Compare([]int{a.worker, a.packet, a.round}, []int{b.worker, b.packet, b.round})
}

func without(list []piece, p piece) []piece {
	return slices.DeleteFunc(slices.Clone(list), func(q piece) bool { return q == p })
}

// moves lists what can happen next, each with the state it leads to.
func (s state) moves(packets, rounds int) (moves []move, next []state) {
	all := uint32(1)<<packets - 1
	for w := range s.started {
		if s.started[w] < rounds && s.got[w] == all {
			n := s.clone()
			n.started[w]++
			n.got[w] = 0
			for p := range packets {
				n.net = append(n.net, piece{w, p, n.started[w]})
			}
			slices.SortFunc(n.net, compare)
			moves, next = append(moves, move{"start", piece{worker: w}}), append(next, n)
		}
	}
	for _, c := range s.net {
		n := s.clone()
		n.net = without(s.net, c)
		complete := true
		for w := range s.started { // all have started the round, and no contribution is still under way
			complete = complete && s.started[w] >= c.round && !slices.Contains(n.net, piece{w, c.packet, c.round})
		}
		if complete {
			for w := range s.started {
				n.sums = append(n.sums, piece{w, c.packet, c.round})
			}
			slices.SortFunc(n.sums, compare)
		}
		moves, next = append(moves, move{"add", c}), append(next, n)
	}
	for _, c := range s.sums {
		n := s.clone()
		n.sums = without(s.sums, c)
		n.got[c.worker] |= 1 << c.packet
		moves, next = append(moves, move{"receive", c}), append(next, n)
	}
	return moves, next
}

// bench is the real thing: workers and aggregators of one tensor, with every
// packet between them in the test's hands.
type bench struct {
	t       *testing.T
	packets int
	workers []*Worker
	nodes   map[uint32]*Handler
	arrays  [][]byte
	rounds  []int
	net     map[piece]packet
	sums    map[piece]packet
}

type packet struct {
	from, to uint32
	transport.Outgoing
}

// plane catches what a node sends, packet by packet. Contributions count as given
// to the kernel at once; a sum's buffer stays held until it is delivered.
type plane struct {
	b    *bench
	node uint32
}

func (p plane) Send(node uint32, m transport.Outgoing) {
	for i := 0; i == 0 || i*wire.PacketBytes < len(m.Data); i++ {
		one := packet{p.node, node, m}
		one.Header.Packet += uint32(i)
		one.Data = m.Data[i*wire.PacketBytes : min((i+1)*wire.PacketBytes, len(m.Data))]
		if one.Data != nil {
			one.Header.RawLen, one.Header.WireLen = uint32(len(one.Data)), uint32(len(one.Data))
		}
		at, worker := p.b.net, rankOf(p.node)
		if m.Header.Kind == wire.Sum {
			at, worker = p.b.sums, rankOf(node)
		}
		at[piece{worker, int(one.Header.Packet), int(m.Header.Round)}] = one
	}
	if m.Owner != nil && m.Header.Kind != wire.Sum {
		m.Owner.Release()
	}
}

// newBench makes workers and aggregators, and brings the tensor through its round 0.
func newBench(t *testing.T, workers, packets, aggregators int) *bench {
	b := &bench{
		t: t, packets: packets, nodes: map[uint32]*Handler{}, rounds: make([]int, workers),
		net: map[piece]packet{}, sums: map[piece]packet{},
	}
	shares := []plan.Share{}
	log := slog.New(slog.DiscardHandler)
	for a := range aggregators {
		id := serverID(a)
		shares = append(shares, plan.Share{Node: id, Share: 1})
		b.nodes[id] = &Handler{Self: id, Aggregator: NewAggregator(id, aggregate.NewMembers(workers), plane{b, id}, false, log)}
	}
	cut, err := plan.New(shares)
	if err != nil {
		t.Fatal(err)
	}
	for w := range workers {
		worker := NewWorker(WorkerConfig{
			Rank: w, Workers: ranksTo(workers), Plan: cut, Lanes: []DataPlane{plane{b, workerID(w)}}, Tickets: NewTickets(), Log: log,
			Declare: each(func(_ uint64, _ wire.Tensor, done func(uint32, error)) { done(7, nil) }),
			Name:    func(node uint32) string { return fmt.Sprint("worker ", node) },
		})
		b.workers = append(b.workers, worker)
		b.nodes[workerID(w)] = &Handler{Self: workerID(w), Worker: worker}
		b.arrays = append(b.arrays, make([]byte, (packets-1)*wire.PacketBytes+8))
		if _, err := worker.Init(5, wire.Uint32, wire.Sync, b.arrays[w]); err != nil {
			t.Fatal(err)
		}
	}
	for _, queue := range []map[piece]packet{b.net, b.sums} {
		for p := range queue {
			b.deliver(queue, p)
		}
	}
	return b
}

func (b *bench) deliver(queue map[piece]packet, p piece) {
	m := queue[p]
	delete(queue, p)
	h, to := m.Header, b.nodes[m.to]
	var l transport.Destination
	if len(m.Data) > 0 {
		var err error
		if l, err = to.Place(m.from, &h); err != nil {
			b.t.Fatal(err)
		}
		copy(l.Bytes, m.Data)
	}
	if err := to.Arrived(m.from, &h, l); err != nil {
		b.t.Fatalf("%v: %v", p, err)
	}
	if h.Kind == wire.Sum && m.Owner != nil {
		m.Owner.Release()
	}
}

// do makes one of the model's moves.
func (b *bench) do(m move) {
	switch m.name {
	case "start":
		b.rounds[m.worker]++
		fill(b.arrays[m.worker], m.worker+1, b.rounds[m.worker])
		if _, err := b.workers[m.worker].PushPull(5, wire.Uint32, b.arrays[m.worker], b.arrays[m.worker], wire.OpSum, 0); err != nil {
			b.t.Fatal(err)
		}
	case "add":
		b.deliver(b.net, m.piece)
	case "receive":
		b.deliver(b.sums, m.piece)
	}
}

// fill writes factor times what worker 0 would push in a round.
func fill(array []byte, factor, round int) {
	for i := 0; i < len(array); i += 4 {
		binary.LittleEndian.PutUint32(array[i:], uint32(factor*(round*1000003+i)))
	}
}

// state is what the real thing looks like, in the model's terms.
func (b *bench) state() state {
	s := state{started: slices.Clone(b.rounds)}
	for w := range b.workers {
		got := uint32(1)<<b.packets - 1
		if o := b.workers[w].mu.byKey[5].active; o != nil {
			got = uint32(o.got[0])
		}
		s.got = append(s.got, got)
	}
	for p := range b.net {
		s.net = append(s.net, p)
	}
	for p := range b.sums {
		s.sums = append(s.sums, p)
	}
	slices.SortFunc(s.net, compare)
	slices.SortFunc(s.sums, compare)
	return s
}

func TestSlotsModel(t *testing.T) {
	for _, c := range []struct{ workers, packets, aggregators, rounds int }{{2, 1, 1, 5}, {2, 2, 2, 4}, {3, 1, 1, 4}, {3, 2, 2, 2}, {2, 2, 1, 3}} {
		t.Run(strings.ReplaceAll(fmt.Sprintf("%+v", c), " ", ","), func(t *testing.T) {
			t.Parallel()
			explore(t, c.workers, c.packets, c.aggregators, c.rounds)
		})
	}
}

// explore visits every state of the model once, and replays the path to it.
func explore(t *testing.T, workers, packets, aggregators, rounds int) {
	type visit struct {
		state state
		path  []move
	}
	start := newBench(t, workers, packets, aggregators).state()
	seen := map[string]bool{start.key(): true}
	finals := 0
	for todo := []visit{{state: start}}; len(todo) > 0; todo = todo[1:] {
		v := todo[0]
		b := newBench(t, workers, packets, aggregators)
		for _, m := range v.path {
			b.do(m)
		}
		if got, want := b.state().key(), v.state.key(); got != want {
			t.Fatalf("after %v\nthe code is in  %s\nthe model is in %s", v.path, got, want)
		}
		b.checkSums()
		moves, next := v.state.moves(packets, rounds)
		if len(moves) == 0 {
			finals++
			if slices.Min(v.state.started) != rounds {
				t.Fatalf("stuck after %v", v.path)
			}
		}
		for i, n := range next {
			if !seen[n.key()] {
				seen[n.key()] = true
				todo = append(todo, visit{n, append(slices.Clone(v.path), moves[i])})
			}
		}
	}
	if finals != 1 {
		t.Errorf("%d final states", finals)
	}
	t.Logf("%d states", len(seen))
}

// checkSums compares the packets that workers have with the sum of their round.
func (b *bench) checkSums() {
	want := make([]byte, len(b.arrays[0]))
	for w, worker := range b.workers {
		tensor := worker.mu.byKey[5]
		if b.rounds[w] == 0 {
			continue
		}
		total := 0
		for other := range b.workers {
			total += other + 1
		}
		fill(want, total, b.rounds[w])
		for p := range uint32(b.packets) {
			here := tensor.active == nil || tensor.active.got[0]>>p&1 == 1
			if here && !slices.Equal(tensor.region(b.arrays[w], p), tensor.region(want, p)) {
				b.t.Fatalf("worker %d round %d packet %d: wrong sum", w, b.rounds[w], p)
			}
		}
	}
}
