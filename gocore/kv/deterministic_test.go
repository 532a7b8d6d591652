package kv

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"

	"fptps/gocore/codec"
	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/reduce"
	"fptps/gocore/store"
	"fptps/gocore/wire"
)

// trial is one tensor of a history.
type trial struct {
	dtype wire.DType
	op    wire.Op
	rule  bool // the aggregators apply an optimiser
	row   int  // bytes of a row of a table; 0: it is none
}

var trials = []trial{
	{dtype: wire.Float32},
	{dtype: wire.Float32, op: wire.OpMean, rule: true},
	{dtype: wire.Float16, rule: true},
	{dtype: wire.BFloat16},
	{dtype: wire.Complex128, op: wire.OpMean},
	{dtype: wire.Quant(2)},
	{dtype: wire.Quant(8), op: wire.OpMean},
	{dtype: wire.Int32},
	{dtype: wire.Float32, row: 12, rule: true},
}

const trialRows = 2000 // of a table: two packets

// noise is what a rank pushes to a tensor in a round: values whose sum depends on the order of the additions.
func (c trial) noise(rank, key int, round uint64) []byte {
	rng := rand.New(rand.NewPCG(mix(rank, key, int(round)), 1))
	floats := make([]float32, 9000)
	if c.row > 0 {
		floats = floats[:trialRows*c.row/4]
	}
	for i := range floats {
		floats[i] = float32(rng.NormFloat64() * math.Exp(8*rng.Float64()-6))
		if rng.IntN(3) == 0 { // two of them cancel out, and what was added in between is lost
			floats[i] = float32(rng.IntN(2)*2-1) * (1 << 15)
		}
	}
	if bits := c.dtype.Bits(); bits > 0 {
		blocks := make([]byte, codec.Bytes(bits, len(floats)))
		codec.Encode(blocks, bits, floats, 0, rand.NewPCG(rng.Uint64(), 0))
		return blocks
	}
	var b []byte
	for _, f := range floats {
		if c.dtype == wire.Complex128 {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(rng.NormFloat64()))
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(rng.NormFloat64()))
		} else {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
		}
	}
	if reduce.Wide(c.dtype) {
		narrow := make([]byte, len(b)/2)
		reduce.Narrow(c.dtype, narrow, b)
		return narrow
	}
	return b
}

// history is a cluster in which all workers push all trials for some rounds.
type history struct {
	*cluster
	rng     *rand.Rand
	results []byte // all that worker 0 has received
}

// playHistory plays three workers with servers, shares and an order of arrival that rng chooses, and returns what worker 0
// received. The contributions are always the same.
func playHistory(t *testing.T, rng *rand.Rand, deterministic bool) []byte {
	shares, servers := []uint32{1, 1, 1}, make([]uint32, rng.IntN(3))
	for i := range servers {
		servers[i] = 1 + rng.Uint32N(3)
	}
	h := history{cluster: newCluster(t, shares, servers, picker(rng), func(int, *wire.Header) {}), rng: rng}
	for _, w := range h.workers {
		w.Deterministic = deterministic
	}
	for key, c := range trials {
		h.all(func(w *Worker) (*Ticket, error) {
			return first(w.InitAll([]Init{{Key: uint64(key), DType: c.dtype, Row: c.row, Memory: c.noise(0, key, 0)}}))
		})
		if c.rule {
			h.one(func(w *Worker) (*Ticket, error) {
				return w.SetRule([]uint64{uint64(key)}, store.Rule{Kind: store.SGD, Rate: 0.1, Momentum: 0.9})
			})
		}
	}
	for round := uint64(1); round <= 4; round++ {
		h.play(round)
		if round == 2 {
			h.changePlan(len(servers))
		}
	}
	h.close()
	return h.results
}

// play plays a round of all tensors. The workers begin in any order.
func (h *history) play(round uint64) {
	type begun struct {
		worker *Worker
		ticket *Ticket
	}
	var open []begun
	outs := make([][]byte, len(trials)) // worker 0's
	for _, rank := range h.rng.Perm(len(h.workers)) {
		w := h.workers[rank]
		for _, key := range h.rng.Perm(len(trials)) {
			ticket, out, err := h.contribute(w, key, round)
			if err != nil {
				h.t.Fatal(err)
			}
			open = append(open, begun{w, ticket})
			if rank == 0 {
				outs[key] = out
			}
		}
	}
	for _, b := range open {
		if err := wait(h.t, b.worker, b.ticket); err != nil {
			h.t.Error(err)
		}
	}
	for key, c := range trials {
		if c.row > 0 {
			outs[key] = h.pullTable(key, c)
		}
		h.results = append(h.results, outs[key]...)
	}
}

// contribute is one worker's part in a round: rank 1 skips some tensors, and in the third round all skip the first one.
func (h *history) contribute(w *Worker, key int, round uint64) (ticket *Ticket, out []byte, err error) {
	c := trials[key]
	values := c.noise(w.Rank, key, round)
	switch {
	case w.Rank == 1 && (key+int(round))%3 == 0 || round == 3 && key == 0:
		ticket, err = w.Skip(uint64(key))
	case c.row > 0:
		var rows []int64
		for row := int64(w.Rank); row < trialRows; row += 1 + int64(round)%2 {
			rows = append(rows, row)
		}
		ticket, err = w.PushRows(uint64(key), c.dtype, rows, values[:len(rows)*c.row], 0)
	default:
		out = make([]byte, len(values))
		ticket, err = w.PushPull(uint64(key), c.dtype, values, out, c.op, 0)
	}
	return ticket, out, err
}

// pullTable is a whole table as worker 0 sees it.
func (h *history) pullTable(key int, c trial) []byte {
	rows := make([]int64, trialRows)
	for row := range rows {
		rows[row] = int64(row)
	}
	out := make([]byte, trialRows*c.row)
	h.one(func(w *Worker) (*Ticket, error) { return w.PullRows(uint64(key), c.dtype, rows, out, 0) })
	return out
}

// changePlan introduces a plan between two rounds.
func (h *history) changePlan(servers int) {
	p, err := plan.New(randomShares(h.rng, len(h.workers), servers))
	if err != nil {
		h.t.Fatal(err)
	}
	var promises []wire.Rounds
	for _, w := range h.workers {
		promises = append(promises, w.Promise())
	}
	first := wire.FirstRounds(promises)
	for _, w := range h.workers {
		w.Commit(1, p, first)
	}
}

// TestDeterministicClusters: the bits of all sums and weights are the same for any number of servers, any shares of the
// summing, a change of them, and any order of arrival; without the setting they are not.
func TestDeterministicClusters(t *testing.T) {
	for _, deterministic := range []bool{true, false} {
		var first []byte
		differ := 0
		for seed := range uint64(8) {
			synctest.Test(t, func(t *testing.T) {
				results := playHistory(t, rand.New(rand.NewPCG(seed, 31)), deterministic)
				if first == nil {
					first = results
				}
				if !bytes.Equal(results, first) {
					differ++
				}
			})
		}
		if (differ == 0) != deterministic {
			t.Errorf("deterministic is %v: %d histories of 8 differ from the first", deterministic, differ)
		}
	}
}

// TestDeterministicIsSync: a tensor whose pushes are applied in the order of their arrival is refused.
func TestDeterministicIsSync(t *testing.T) {
	for _, policy := range []wire.Policy{wire.Async, wire.Bounded(0), wire.Bounded(4)} {
		d := newDesk(t, 0)
		d.Deterministic = true
		ticket, err := d.Init(5, wire.Float32, policy, make([]byte, 4))
		if ticket != nil || fault.CodeOf(err) != fault.Value || !strings.Contains(err.Error(), "key 5: consistency "+policy.String()) {
			t.Errorf("%v: %v", policy, err)
		}
	}
	d := newDesk(t, 0)
	d.Deterministic = true
	d.must(d.Init(5, wire.Float32, wire.Sync, make([]byte, 4)))
	if got := d.mu.byKey[5].declaration().String(); got != "4 bytes of float32, sync and deterministic" {
		t.Errorf("declared as %s", got)
	}
}
