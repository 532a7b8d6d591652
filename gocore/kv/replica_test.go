package kv

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fptps/gocore/store"
	"fptps/gocore/wire"
)

var successions = flag.Int("successions", 150, "schedules with deaths of nodes with backups that TestWeightsSurvive plays")

// backups are what the scheduler knows of backups. A nil pointer: there are none.
type backups struct {
	mu     sync.Mutex
	m      *mortal
	whole  map[uint32]uint32 // by aggregator: the backup that has everything
	needed map[uint32]int    // by aggregator: the epoch in which it has inherited
	killed map[uint32]bool
	heard  []map[uint32]bool // by spy: the deaths that it has heard of
}

// newBackups gives every aggregator of a cluster that recovers a backup, the next one.
func newBackups(m *mortal) *backups {
	b := &backups{m: m, whole: map[uint32]uint32{}, needed: map[uint32]int{}, killed: map[uint32]bool{}}
	m.backups = b
	for i, s := range m.spies {
		b.heard = append(b.heard, map[uint32]bool{})
		b.whole[s.Self] = b.next(i)
		m.aggregators[i].BackUp(b.next(i), func(node uint32, epoch int) { b.report(s.Self, node, epoch) })
	}
	return b
}

// next is the backup that a node chooses. It is the next node of whose death this one has not heard.
func (b *backups) next(i int) uint32 {
	for n := 1; n < len(b.m.spies); n++ {
		if other := b.m.spies[(i+n)%len(b.m.spies)].Self; !b.heard[i][other] {
			return other
		}
	}
	return none
}

func (b *backups) report(node, backup uint32, epoch int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if epoch >= b.needed[node] && !b.killed[backup] {
		b.whole[node] = backup
	}
}

// mayDie reports whether nothing is lost with a node.
func (b *backups) mayDie(node uint32) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.whole[node] == none || b.killed[b.whole[node]] {
		return false
	}
	for dead := range b.killed {
		if b.whole[dead] == node { // no verdict yet
			return false
		}
	}
	b.killed[node] = true
	return true
}

// succeed names the heir of a dead node, as the verdict does.
func (b *backups) succeed(dead uint32, epoch int) (heir uint32) {
	if b == nil {
		return none
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	heir = b.whole[dead]
	for node, backup := range b.whole {
		if backup == dead || node == heir || node == dead {
			delete(b.whole, node)
		}
	}
	b.needed[heir] = epoch
	return heir
}

// hear is what an aggregator does after a verdict.
func (b *backups) hear(i int, dead Death, epoch int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.heard[i][dead.Node] = true
	next := b.next(i)
	b.mu.Unlock()
	<-b.m.aggregators[i].Succeed(dead.Node, dead.Heir == b.m.spies[i].Self, next, epoch)
}

// TestWeightsSurvive plays clusters in which nodes with weights die, while plans change: the weights are those of the pushes, each once, with the momentum, the same
// on all workers. The push of a worker that dies may be left out, packet by packet.
func TestWeightsSurvive(t *testing.T) {
	for seed := range uint64(*successions) {
		rng := rand.New(rand.NewPCG(seed, 21))
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { playWeightsSurvive(t, rng) })
		})
		if !ok {
			return
		}
	}
}

// weighted is a play whose tensors have weights.
type weighted struct {
	*mortal
	sizes  []int // of the tensors, in bytes; their keys are the indices
	rounds int
	mu     sync.Mutex
	got    map[string][]byte // weights, by key, round and rank
	start  sync.WaitGroup
	ready  chan struct{}
}

func playWeightsSurvive(t *testing.T, rng *rand.Rand) {
	workerShares, serverShares := make([]uint32, 2+rng.IntN(3)), make([]uint32, rng.IntN(4))
	for i := range serverShares {
		serverShares[i] = 1 + rng.Uint32N(4)
	}
	for i := range workerShares {
		workerShares[i] = rng.Uint32N(3)
	}
	workerShares[0]++
	p := &weighted{rounds: 6, got: map[string][]byte{}, ready: make(chan struct{})}
	for range 1 + rng.IntN(3) {
		p.sizes = append(p.sizes, []int{8, 1200, wire.PacketBytes, 3*wire.PacketBytes + 400}[rng.IntN(4)])
	}
	var victims []uint32
	for _, rank := range rng.Perm(len(workerShares))[:rng.IntN(len(workerShares))] {
		victims = append(victims, workerID(rank))
	}
	for _, rank := range rng.Perm(len(serverShares))[:rng.IntN(1+len(serverShares))] {
		victims = append(victims, serverID(rank))
	}
	rng.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
	at := make([]int, len(victims))
	for i := range at {
		at[i] = rng.IntN(1500)
	}
	slices.Sort(at)
	killed, packets := make(chan uint32, len(victims)), 0
	var over atomic.Bool
	c := newCluster(t, workerShares, serverShares, picker(rng), func(int, *wire.Header) {
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
		select {
		case <-p.ready:
		default:
			return
		}
		for packets++; len(victims) > 0 && packets >= at[0] && !over.Load() && p.backups.mayDie(victims[0]); at = at[1:] {
			p.kill(victims[0])
			killed <- victims[0]
			victims = victims[1:]
		}
	})
	recovers(c)
	p.mortal = newMortal(c, rng)
	newBackups(p.mortal)
	stop := make(chan struct{})
	var ruling, players sync.WaitGroup
	own, plans := rand.New(rand.NewPCG(rng.Uint64(), 10)), rng.IntN(2) == 0
	ruling.Go(func() { p.rule(own, len(serverShares), plans, killed, stop) })
	p.start.Add(len(c.workers))
	for _, w := range c.workers {
		own := rand.New(rand.NewPCG(rng.Uint64(), 0))
		players.Go(func() { p.play(w, own) })
	}
	p.start.Wait()
	close(p.ready)
	players.Wait()
	over.Store(true)
	time.Sleep(time.Second)
	close(stop)
	ruling.Wait()
	for p.unsettled() {
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(3 * time.Second)
	p.checkCounted()
	p.office.close()
	for _, chain := range p.chains {
		close(chain)
	}
	p.working.Wait()
	synctest.Wait()
	c.close()
	p.checkWeights()
}

var momentum = store.Rule{Kind: store.SGD, Rate: 1, Momentum: 0.5}

// gradientOf is what a rank pushes in a round: its own bit in each element, so that a sum shows which ranks have contributed.
func gradientOf(size, rank, round int) []byte {
	b := make([]byte, 0, size)
	for i := range size / 4 {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32((1+(i+round)%3)<<(2*rank))))
	}
	return b
}

func (p *weighted) play(w *Worker, rng *rand.Rand) {
	must := func(ticket *Ticket, err error) bool {
		if err == nil {
			err = wait(p.t, w, ticket)
		}
		if p.dead(w.Rank) {
			return false
		}
		if err != nil {
			p.t.Errorf("rank %d: %v", w.Rank, err)
		}
		return err == nil
	}
	for key, size := range p.sizes {
		must(w.Init(uint64(key), wire.Float32, wire.Sync, make([]byte, size)))
	}
	must(w.SetRule(nil, momentum))
	p.initCounted(w, must)
	p.start.Done()
	<-p.ready
	for round := 1; round <= p.rounds; round++ {
		tickets, outs := make([]*Ticket, len(p.sizes)), make([][]byte, len(p.sizes))
		for _, key := range rng.Perm(len(p.sizes)) {
			gradient := gradientOf(p.sizes[key], w.Rank, round)
			outs[key] = gradient
			if rng.IntN(2) == 0 {
				outs[key] = make([]byte, len(gradient))
			}
			var err error
			if tickets[key], err = w.PushPull(uint64(key), wire.Float32, gradient, outs[key], wire.OpSum, int32(rng.IntN(100))); err != nil && !p.dead(w.Rank) {
				p.t.Errorf("rank %d: %v", w.Rank, err)
			}
			if err != nil {
				return
			}
		}
		for _, key := range rng.Perm(len(p.sizes)) {
			if !must(tickets[key], nil) {
				return
			}
			p.mu.Lock()
			p.got[fmt.Sprint(key, round, w.Rank)] = outs[key]
			p.mu.Unlock()
		}
		if !p.count(w, round, must) {
			return
		}
	}
}

// Tensors of which each element counts the pushes of each rank: beyond those with a rule.
const (
	asyncKey   = 100 + iota // pushes are added
	boundedKey              // likewise
	tableKey                // rows are pushed, with a rule by which they are subtracted
	pushesKey               // rows are pushed, and added
)

const (
	countedRows = 3000
	rowBytes    = 16
	countedSize = 2*wire.PacketBytes + 8
)

// one is a push of a rank: each element is 1 in the rank's digit.
func one(rank, elements int) []byte {
	b := make([]byte, 0, 4*elements)
	for range elements {
		b = binary.LittleEndian.AppendUint32(b, 1<<(4*rank))
	}
	return b
}

func (p *weighted) initCounted(w *Worker, must func(*Ticket, error) bool) {
	must(w.Init(asyncKey, wire.Int32, wire.Async, make([]byte, countedSize)))
	must(w.Init(boundedKey, wire.Int32, wire.Bounded(1), make([]byte, countedSize)))
	for i, policy := range []wire.Policy{wire.Sync, wire.Async} {
		tickets, err := w.InitAll([]Init{{Key: tableKey + uint64(i), DType: wire.Float32, Policy: policy, Memory: make([]byte, countedRows*rowBytes), Row: rowBytes}})
		if err == nil {
			must(tickets[0], nil)
		}
	}
	must(w.SetRule([]uint64{tableKey}, store.Rule{Kind: store.SGD, Rate: 1}))
}

// rowsOf are the rows that a rank pushes in a round.
func rowsOf(rank, round int) (rows []int64) {
	for row := (rank + round) % 3; row < countedRows; row += 1 + (rank+round)%5*400 {
		rows = append(rows, int64(row))
	}
	return rows
}

// count pushes once to each counted tensor.
func (p *weighted) count(w *Worker, round int, must func(*Ticket, error) bool) bool {
	for _, key := range []uint64{asyncKey, boundedKey} {
		if !must(w.PushPull(key, wire.Int32, one(w.Rank, countedSize/4), make([]byte, countedSize), wire.OpSum, 0)) {
			return false
		}
	}
	for _, key := range []uint64{tableKey, pushesKey} {
		rows := rowsOf(w.Rank, round)
		values := make([]byte, 0, len(rows)*rowBytes)
		for range len(rows) * rowBytes / 4 {
			values = binary.LittleEndian.AppendUint32(values, math.Float32bits(float32(int32(1)<<(4*w.Rank))))
		}
		if !must(w.PushRows(key, wire.Float32, rows, values, 0)) {
			return false
		}
	}
	return true
}

// checkCounted checks, when all have pushed, that each push of a living rank is counted once, and those of a dead one at most once.
func (p *weighted) checkCounted() {
	for _, w := range p.workers {
		if p.state.killed[p.indexOf(w.Rank)] {
			continue
		}
		for _, key := range []uint64{asyncKey, boundedKey} {
			out := make([]byte, countedSize)
			ticket, err := w.PushPull(key, wire.Int32, make([]byte, countedSize), out, wire.OpSum, 0)
			if err == nil {
				err = wait(p.t, w, ticket)
			}
			if err != nil {
				p.t.Errorf("rank %d: %v", w.Rank, err)
				continue
			}
			for i := range countedSize / 4 {
				p.checkCounts(w, key, i, binary.LittleEndian.Uint32(out[4*i:]), func(int) int { return p.rounds })
			}
		}
		p.checkRows(w)
		for key := range p.sizes {
			if info, err := w.TensorInfo(uint64(key)); err != nil || info.Optimizer == nil || *info.Optimizer != momentum {
				p.t.Errorf("the leader, rank %d, has the optimiser %+v of key %d: %v", w.Rank, info.Optimizer, key, err)
			}
		}
		return
	}
}

func (p *weighted) checkRows(w *Worker) {
	pushed := map[[2]int]int{} // by rank and row
	for rank := range p.workers {
		for round := 1; round <= p.rounds; round++ {
			for _, row := range rowsOf(rank, round) {
				pushed[[2]int{rank, int(row)}]++
			}
		}
	}
	rows := make([]int64, countedRows)
	for i := range rows {
		rows[i] = int64(i)
	}
	for key, sign := range map[uint64]float32{tableKey: -1, pushesKey: 1} {
		out := make([]byte, countedRows*rowBytes)
		ticket, err := w.PullRows(key, wire.Float32, rows, out, 0)
		if err == nil {
			err = wait(p.t, w, ticket)
		}
		if err != nil {
			p.t.Errorf("rank %d: %v", w.Rank, err)
		}
		for i := range len(out) / 4 {
			value := sign * math.Float32frombits(binary.LittleEndian.Uint32(out[4*i:]))
			p.checkCounts(w, key, i, uint32(value), func(rank int) int { return pushed[[2]int{rank, i / (rowBytes / 4)}] })
		}
	}
}

// checkCounts checks the digits of an element.
func (p *weighted) checkCounts(w *Worker, key uint64, element int, value uint32, want func(rank int) int) {
	for rank := range p.workers {
		got := int(value >> (4 * rank) & 15)
		if most := want(rank); got > most || got < most && !p.state.killed[p.indexOf(rank)] {
			p.t.Fatalf("key %d element %d, of rank %d: %d pushes of rank %d are counted, of %d", key, element, w.Rank, got, rank, most)
		}
	}
}

// checkWeights recomputes the pushes from the weights.
func (p *weighted) checkWeights() {
	for key, size := range p.sizes {
		before, velocity := make([]float32, size/4), make([]float32, size/4)
		for round := 1; round <= p.rounds; round++ {
			weights := p.agreed(key, round)
			if weights == nil {
				return
			}
			for first := 0; first < size/4; first += wire.PacketBytes / 4 {
				p.checkPacket(key, round, first, weights, before, velocity)
			}
		}
	}
}

// agreed returns the weights of a round, which are the same on all workers that have had them.
func (p *weighted) agreed(key, round int) (weights []byte) {
	for rank := range p.workers {
		got := p.got[fmt.Sprint(key, round, rank)]
		switch {
		case got == nil && !p.state.killed[p.indexOf(rank)]:
			p.t.Errorf("key %d round %d: rank %d has no weights", key, round, rank)
		case weights != nil && got != nil && !bytes.Equal(got, weights):
			p.t.Errorf("key %d round %d: rank %d has other weights than a lower rank", key, round, rank)
		case got != nil:
			weights = got
		}
	}
	return weights
}

// checkPacket checks which ranks have contributed to a packet's round.
func (p *weighted) checkPacket(key, round, first int, weights []byte, before, velocity []float32) {
	all, ranks := uint64(0), 0
	for rank := range p.workers {
		ranks |= 1 << (2 * rank)
		if !p.state.killed[p.indexOf(rank)] {
			all |= 1 << (2 * rank)
		}
	}
	var of uint64
	for i := first; i < min(first+wire.PacketBytes/4, len(before)); i++ {
		now := math.Float32frombits(binary.LittleEndian.Uint32(weights[4*i:]))
		gradient := before[i] - now - 0.5*velocity[i]
		before[i], velocity[i] = now, before[i]-now
		set := uint64(gradient) / uint64(1+(i+round)%3)
		if float32(set*uint64(1+(i+round)%3)) != gradient || set&^uint64(ranks) != 0 || set&all != all || i > first && set != of {
			p.t.Errorf("key %d round %d element %d: the gradient %v is that of ranks %b, of the first element %b, living %b", key, round, i, gradient, set, of, all)
			return
		}
		of = set
	}
}
