package kv

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/store"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// trainedKeys are tensors of one short packet, of three, and of more packets than move in a batch.
var trainedKeys = []struct {
	key  uint64
	size int
}{{3, 24}, {6, stateBytes}, {7, (batchPackets + 2) * wire.PacketBytes}}

// small is a gradient of small whole numbers, of which a sum is exact in any order.
func small(dtype wire.DType, size, rank, step int) []byte {
	rng := rand.New(rand.NewPCG(uint64(step), uint64(rank)))
	b := make([]byte, 0, size)
	for len(b) < size {
		n := float64(rng.IntN(9) - 4)
		switch dtype {
		case wire.Float64:
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(n))
		case wire.BFloat16:
			b = binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(float32(n))>>16))
		default:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(n)))
		}
	}
	return b
}

// trained trains all keys for some steps on a new cluster, which plans change if seed is not 0. It gives rank 0's weights of each
// step and key, the clock at the end, and how often the plan has changed.
func trained(t *testing.T, dtype wire.DType, rule store.Rule, seed uint64) (weights map[string][]byte, clock []uint64, changes int) {
	const workers, servers, steps = 3, 2, 6
	weights = map[string][]byte{}
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 3))
		pause := func(int, *wire.Header) { time.Sleep(10 * time.Microsecond) }
		c := newCluster(t, []uint32{1, 0, 2}, []uint32{1, 1}, picker(rng), pause)
		o := newOffice(c, rng)
		for _, k := range trainedKeys {
			c.all(func(w *Worker) (*Ticket, error) { return w.Init(k.key, dtype, wire.Sync, small(dtype, k.size, 0, 0)) })
		}
		c.all(func(w *Worker) (*Ticket, error) { return w.SetRule(nil, rule) })
		c.one(func(w *Worker) (*Ticket, error) {
			return w.Resume(6, binary.LittleEndian.AppendUint64(make([]byte, 8*(workers-1)), 70))
		})
		stop := make(chan struct{})
		var planning, training sync.WaitGroup
		if seed > 0 {
			planning.Go(func() { o.changePlans(rng, servers, 15, stop) })
		}
		for _, w := range c.workers {
			training.Go(func() { c.train(w, dtype, steps, weights) })
		}
		training.Wait()
		close(stop)
		planning.Wait()
		clock = c.clock(1)
		o.close()
		changes = o.changes
		c.checkOwners(dtype)
		c.close()
	})
	return weights, clock, changes
}

// node is the id of the node with aggregator i: servers come first.
func (c *cluster) node(i int) uint32 {
	servers := len(c.aggregators) - len(c.workers)
	if i < servers {
		return serverID(i)
	}
	return workerID(i - servers)
}

// train trains all keys on one worker, and notes rank 0's weights.
func (c *cluster) train(w *Worker, dtype wire.DType, steps int, weights map[string][]byte) {
	for step := 1; step <= steps; step++ {
		if w.Rank == 0 && step == 5 {
			if err := w.SetLearningRate(nil, 0.25); err != nil {
				c.t.Error(err)
			}
		}
		for _, k := range trainedKeys {
			out := make([]byte, k.size)
			ticket, err := w.PushPull(k.key, dtype, small(dtype, k.size, w.Rank, step), out, wire.OpSum, 0)
			if err == nil {
				err = wait(c.t, w, ticket)
			}
			if err != nil {
				c.t.Errorf("rank %d, key %d, step %d: %v", w.Rank, k.key, step, err)
				return
			}
			if w.Rank == 0 {
				weights[fmt.Sprintf("key %d step %d", k.key, step)] = out
			}
		}
		time.Sleep(3 * time.Millisecond)
	}
}

// checkOwners checks that the aggregator to which workers push a packet has its weights, and no other aggregator has them.
func (c *cluster) checkOwners(dtype wire.DType) {
	w := c.workers[0]
	for _, k := range trainedKeys {
		for p := range uint32(wire.Packets(uint64(k.size))) {
			t := w.mu.byKey[k.key]
			var kept []uint32
			for i, a := range c.aggregators {
				if steps, err := a.store.Read(t.id, p, store.Part(store.ArraySteps, 0), 8); err == nil {
					steps.Release()
					kept = append(kept, c.node(i))
				}
			}
			if want := []uint32{t.owner(p)}; !slices.Equal(kept, want) {
				c.t.Errorf("key %d packet %d of %v is kept by %v, want %v", k.key, p, dtype, kept, want)
			}
		}
	}
}

// Weights and the optimiser's state follow the plan: each step gives the same bits as without changes of the plan.
func TestWeightsMoveWithThePlan(t *testing.T) {
	for _, tc := range []struct {
		dtype wire.DType
		rule  store.Rule
	}{
		{wire.Float32, store.Rule{Kind: store.SGD, Rate: 0.5}},
		{wire.Float64, store.Rule{Kind: store.SGD, Rate: 0.1, Momentum: 0.9}},
		{wire.Float32, store.Rule{Kind: store.Adam, Rate: 0.1, Betas: [2]float64{0.9, 0.99}, Eps: 1e-8}},
		{wire.BFloat16, store.Rule{Kind: store.AdamW, Rate: 0.1, WeightDecay: 0.1, Betas: [2]float64{0.9, 0.99}, Eps: 1e-8}},
		{wire.Float32, store.Rule{Kind: store.Adagrad, Rate: 0.1, Initial: 0.5, Eps: 1e-8}},
	} {
		want, wantClock, _ := trained(t, tc.dtype, tc.rule, 0)
		total := 0
		for seed := range uint64(3) {
			got, clock, changes := trained(t, tc.dtype, tc.rule, seed+1)
			total += changes
			for name, weights := range want {
				if !slices.Equal(got[name], weights) {
					t.Errorf("%v %s, seed %d: the weights of %s differ from those under a plan that stays", tc.dtype, tc.rule.Kind, seed+1, name)
				}
			}
			if !slices.Equal(clock, wantClock) {
				t.Errorf("%v %s, seed %d: the clock is %v, want %v", tc.dtype, tc.rule.Kind, seed+1, clock, wantClock)
			}
		}
		if total < 5 {
			t.Errorf("%v %s: the plan changed %d times only", tc.dtype, tc.rule.Kind, total)
		}
	}
}

// moving is a desk of rank 0 whose tensor has weights, and is about to begin round 2 under a plan that moves it to server 1.
func moving(t *testing.T) (d *desk, ticket *Ticket) {
	d = deskWithRounds(t, 0)
	d.mu.byKey[1].rule = &store.Rule{Kind: store.SGD, Rate: 0.5, Momentum: 0.5}
	d.complete()
	d.Promise()
	p, err := plan.New([]plan.Share{{Node: 8}, {Node: 10, Share: 1}})
	if err != nil {
		t.Fatal(err)
	}
	d.Commit(1, p, wire.Rounds{Counts: []uint32{1}, Last: []uint64{2}})
	d.sent = nil
	ticket = d.must(d.Skip(1))
	return d, ticket
}

// answerAll answers all asks that were sent, and returns them as "node op".
func (d *desk) answerAll(t *testing.T) (asked []string) {
	t.Helper()
	sent := d.sent
	d.sent = nil
	for _, m := range sent {
		if m.Header.Kind != wire.Ask {
			t.Fatalf("not an ask: %+v", m.Header)
		}
		asked = append(asked, fmt.Sprintf("%d %d", m.node, m.Header.Op))
		m.Owner.Release()
		h := wire.Header{Kind: wire.Answer, Op: m.Header.Op, Tensor: m.Header.Tensor, Number: m.Header.Number, Run: 1}
		var payload []byte
		switch m.Header.Op {
		case wire.AskState:
			payload = make([]byte, m.Header.RawLen)
		case wire.AskDepart:
			rule := store.Rule{Kind: store.SGD, Rate: 0.5, Momentum: 0.5}
			payload = store.Arrival{DType: wire.Float32, Bytes: 4, Round: 1, Rule: &rule, Arrays: rule.Arrays()}.Text()
		}
		h.RawLen, h.WireLen = uint32(len(payload)), uint32(len(payload))
		copy(d.place(m.node, &h), payload)
		if err := d.answered(m.node, &h, payload); err != nil {
			t.Fatal(err)
		}
	}
	return asked
}

// Rank 0 contributes to a round when the weights are on their new aggregators, and not before.
func TestWeightsMoveBeforeTheContribution(t *testing.T) {
	d, ticket := moving(t)
	if text := ticket.Explain().Text; !strings.Contains(text, "round 2: the weights of 1 packets move to other aggregators first") {
		t.Errorf("the operation says %q", text)
	}
	ask := func(node uint32, op wire.Op) string { return fmt.Sprintf("%d %d", node, op) }
	read, write := ask(8, wire.AskState), ask(10, wire.AskRestore)
	for _, want := range [][]string{{ask(8, wire.AskDepart)}, {read, read}, {ask(10, wire.AskArrive)}, {write, write}, {ask(8, wire.AskLeave)}} { // weights, momentum
		if got := d.answerAll(t); !slices.Equal(got, want) {
			t.Errorf("it asks %v, want %v", got, want)
		}
	}
	if len(d.sent) != 1 || d.sent[0].node != 10 || d.sent[0].Header.Kind != wire.Empty || d.sent[0].Header.Round != 2 {
		t.Errorf("then it sends %+v", d.sent)
	}
}

// A refused move ends the connection, and so the cluster, which would wait for ever otherwise.
func TestMoveThatIsRefused(t *testing.T) {
	d, ticket := moving(t)
	h := d.sent[0].Header
	reason := wire.PutReason("internal: it is not here")
	answer := wire.Header{
		Kind: wire.Answer, Op: h.Op, Tensor: h.Tensor, Number: h.Number, Run: 1, Flags: wire.FlagRefused,
		RawLen: uint32(len(reason)), WireLen: uint32(len(reason)),
	}
	err := (&Handler{Worker: d.Worker}).Arrived(d.sent[0].node, &answer, transport.Destination{Bytes: reason})
	if fault.CodeOf(err) != fault.Internal || !strings.Contains(err.Error(), "it is not here") {
		t.Errorf("the refusal gives %v", err)
	}
	d.letGo()
	d.Fail(err)
	d.ended(ticket, fault.Internal)
}

// A plan that is replaced before the tensor's next round moves nothing.
func TestPlanThatIsReplacedBeforeTheNextRound(t *testing.T) {
	d := deskWithRounds(t, 0)
	d.mu.byKey[1].rule = &store.Rule{Kind: store.SGD, Rate: 0.5}
	d.complete()
	for number, shares := range [][]plan.Share{{{Node: 8}, {Node: 10, Share: 1}}, {{Node: 8, Share: 1}}} {
		p, err := plan.New(shares)
		if err != nil {
			t.Fatal(err)
		}
		d.Promise()
		d.Commit(uint32(number)+1, p, wire.Rounds{Counts: []uint32{1}, Last: []uint64{2}})
	}
	d.must(d.Skip(1))
	if len(d.sent) != 1 || d.sent[0].node != 8 || d.sent[0].Header.Kind != wire.Empty || d.sent[0].Header.Plan != 2 {
		t.Errorf("it sends %+v", d.sent)
	}
}
