package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/wire"
)

// pushed pushes and fails the test on an error; nil values are a skip.
func (r *rig) pushed(t *testing.T, rank int, round uint64, values []float64) []Reply {
	t.Helper()
	h, payload, owned := r.contribution(round, 0), []byte(nil), (*aggregate.Buffer)(nil)
	switch {
	case values == nil:
		h.Kind, h.WireLen = wire.Empty, 0
		h.RawLen = uint32(len(r.tensors[tensorID].packets[packetID].value.Bytes))
	case rank%2 == 0: // some arrive in a buffer of the pool, others in the caller's array
		owned = r.owned(values)
		payload = owned.Bytes
	default:
		payload = r.bytes(values)
	}
	if values != nil {
		h.RawLen, h.WireLen = uint32(len(payload)), uint32(len(payload))
	}
	replies, err := r.Push(rank, h, payload, owned, nil)
	if err != nil {
		t.Fatal(err)
	}
	return replies
}

// ledger is the reference for the policies: it decodes from a value the rounds of each worker that were applied to it. A push of worker w
// adds 1 to element w and a number unique to the push to element workers+w. So a value shows whether it holds exactly the first
// n rounds of each worker, each once.
type ledger struct {
	t       *testing.T
	workers int
}

func once(rank int, round uint64) float64 {
	return float64((uint64(rank)*7919+round*round*104729)%1000003 + 1)
}

func (l ledger) push(rank int, round uint64) []float64 {
	values := make([]float64, 2*l.workers)
	values[rank], values[l.workers+rank] = 1, once(rank, round)
	return values
}

// rounds decodes a value: the number of rounds of each worker.
func (l ledger) rounds(values []float64) []uint64 {
	l.t.Helper()
	clock := make([]uint64, l.workers)
	for rank := range clock {
		clock[rank] = uint64(values[rank])
		sum := 0.0
		for round := range clock[rank] {
			sum += once(rank, round+1)
		}
		if values[l.workers+rank] != sum {
			l.t.Fatalf("worker %d: the value has %v rounds that sum up to %v, expected %v", rank, values[rank], values[l.workers+rank], sum)
		}
	}
	return clock
}

// Workers that push one round at a time run in random order, with duplicates. Every reply must be one that the policy allows.
func TestPolicies(t *testing.T) {
	for _, policy := range []wire.Policy{wire.Async, wire.Bounded(0), wire.Bounded(1), wire.Bounded(3)} {
		t.Run(policy.String(), func(t *testing.T) {
			for seed := range uint64(40) {
				playPolicy(t, policy, rand.New(rand.NewPCG(seed, 11)))
			}
		})
	}
}

func playPolicy(t *testing.T, policy wire.Policy, rng *rand.Rand) {
	const rounds = 12
	workers := 1 + rng.IntN(5)
	l := ledger{t, workers}
	r := newRig(t, workers, policy, wire.Int64, make([]float64, 2*workers))
	sent, answered := make([]uint64, workers), make([]uint64, workers) // rounds
	for slices.Min(answered) < rounds {
		rank := rng.IntN(workers)
		again := rng.IntN(4) == 0 && sent[rank] > 0
		if !again && (sent[rank] > answered[rank] || sent[rank] == rounds) {
			continue // it waits for its reply, or has finished
		}
		if !again {
			sent[rank]++
		}
		replies := r.pushed(t, rank, sent[rank], l.push(rank, sent[rank]))
		if again && len(replies) > 0 {
			t.Fatalf("a repetition gets %d replies", len(replies))
		}
		for i := range replies {
			reply := &replies[i]
			clock := l.rounds(r.values(reply.Buffer.Bytes))
			reply.Buffer.Release()
			answered[reply.Rank]++
			if h := reply.Header; h.Round != answered[reply.Rank] || h.Kind != wire.Sum || h.Contributors != 1 || h.WireLen != h.RawLen {
				t.Fatalf("round %d of worker %d is answered by %+v", answered[reply.Rank], reply.Rank, h)
			}
			if clock[reply.Rank] != answered[reply.Rank] {
				t.Fatalf("worker %d gets a value with %d of its %d rounds", reply.Rank, clock[reply.Rank], answered[reply.Rank])
			}
			if apart := slices.Max(clock) - slices.Min(clock); apart > policy.Delay() {
				t.Fatalf("a value whose rounds are %d apart: %v", apart, clock)
			}
		}
		for rank := range sent { // no reply is late: nobody waits for workers within the bound
			if waits, needed := sent[rank] > answered[rank], policy != wire.Async && sent[rank] > slices.Min(sent)+policy.Delay(); waits != needed {
				t.Fatalf("worker %d of %v waits: %v", rank, sent, waits)
			}
		}
		if clock := r.Clock(tensorID, all); !slices.Equal(clock, answered) {
			t.Fatalf("the clock is %v, expected %v", clock, answered)
		}
	}
	r.end()
}

// A peer chooses the range of packets, and the receive loop serves other peers too. So the cost of an answer must not
// grow with the range: to count through it takes half a second each time.
func TestClockOfARangeBeyondTheTensor(t *testing.T) {
	r := newRig(t, 2, wire.Bounded(1), wire.Float32, []float64{1, 2})
	for range 1000 {
		if clock := r.Clock(tensorID, wire.Clock{Count: wire.MaxTensorBytes / wire.PacketBytes}); !slices.Equal(clock, []uint64{0, 0}) {
			t.Fatalf("the clock is %v", clock)
		}
	}
	r.end()
}

// A skip counts as a round and changes nothing.
func TestSkipsAdvanceTheClock(t *testing.T) {
	r := newRig(t, 2, wire.Bounded(1), wire.Float32, []float64{1, 2})
	r.setRule(Rule{Kind: SGD, Rate: 0.5, WeightDecay: 0.5})
	for round, rank := range []int{0, 1, 0} {
		replies := r.pushed(t, rank, uint64(round/2+1), nil)
		if len(replies) != 1 || !slices.Equal(r.values(replies[0].Buffer.Bytes), []float64{1, 2}) {
			t.Fatalf("round %d: %+v", round, replies)
		}
		replies[0].Buffer.Release()
	}
	if clock := r.Clock(tensorID, all); !slices.Equal(clock, []uint64{2, 1}) {
		t.Errorf("the clock is %v", clock)
	}
	r.end()
}

// Pushes that may be applied at the same moment are applied in the order of (round, rank), not of arrival, and all of them get
// the value after the last. With Adagrad the order matters.
func TestPushesAppliedTogether(t *testing.T) {
	rule := Rule{Kind: Adagrad, Rate: 1, Eps: 1e-10}
	want := reference{rule: rule, weight: 10}
	gradients := []float64{1, 2, 3}
	for _, g := range gradients {
		want.step(g, rule.Rate)
	}
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
		r := newRig(t, 3, wire.Bounded(0), wire.Float64, []float64{10})
		r.setRule(rule)
		var replies []Reply
		for _, rank := range order {
			if replies != nil {
				t.Fatalf("%v: answered before all were there", order)
			}
			replies = r.pushed(t, rank, 1, gradients[rank:rank+1])
		}
		for i := range replies {
			got := r.values(replies[i].Buffer.Bytes)[0]
			if d := got - want.weight; replies[i].Rank != i || d > 1e-12 || d < -1e-12 {
				t.Errorf("%v: worker %d gets %v, expected worker %d and %v", order, replies[i].Rank, got, i, want.weight)
			}
			replies[i].Buffer.Release()
		}
		r.end()
	}
}

// The learning rate arrives with a push of rank 0 and applies to all later pushes.
func TestLearningRateOfPushes(t *testing.T) {
	r := newRig(t, 2, wire.Async, wire.Float64, []float64{10})
	r.setRule(Rule{Kind: SGD, Rate: 1})
	expect := func(want float64, replies []Reply) {
		t.Helper()
		if got := r.values(replies[0].Buffer.Bytes)[0]; got != want {
			t.Errorf("%v, expected %v", got, want)
		}
		replies[0].Buffer.Release()
	}
	expect(9, r.pushed(t, 1, 1, []float64{1}))
	h := r.contribution(1, 8)
	h.Flags, h.LearningRate = wire.FlagLearningRate, 0.5
	replies, err := r.Push(0, h, r.bytes([]float64{1}), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if h := replies[0].Header; h.Flags != wire.FlagWeights || h.LearningRate != 0 {
		t.Errorf("the reply's header is %+v", h)
	}
	expect(8.5, replies)
	expect(8, r.pushed(t, 1, 2, []float64{1}))
	r.end()
}

// A reply does not change after it was handed out, however slow its receiver is.
func TestRepliesAreNotTorn(t *testing.T) {
	for _, rule := range []*Rule{nil, {Kind: SGD, Rate: 1, Momentum: 0.9}, {Kind: Adam, Rate: 1, Betas: [2]float64{0.9, 0.999}, Eps: 1}} {
		for _, dtype := range []wire.DType{wire.Float32, wire.Float16} {
			r := newRig(t, 2, wire.Async, dtype, []float64{10, 20, 30})
			if rule != nil {
				r.setRule(*rule)
			}
			var kept []Reply
			var saw [][]float64
			for round := range uint64(20) {
				reply := r.pushed(t, int(round%2), round/2+1, []float64{1, 2, float64(round)})[0]
				kept, saw = append(kept, reply), append(saw, r.values(reply.Buffer.Bytes))
			}
			for i := range kept {
				if got := r.values(kept[i].Buffer.Bytes); !slices.Equal(got, saw[i]) {
					t.Errorf("%v: reply %d was %v and is %v", dtype, i, saw[i], got)
				}
				kept[i].Buffer.Release()
			}
			r.end()
		}
	}
}

// Contributions that no correct worker sends are refused; the store and the pool stay as they were.
func TestPushIsRefused(t *testing.T) {
	for name, change := range map[string]func(rank *int, h *wire.Header){
		"a rank beyond":       func(rank *int, h *wire.Header) { *rank = 2 },
		"no rank":             func(rank *int, h *wire.Header) { *rank = -1 },
		"a round too far":     func(rank *int, h *wire.Header) { h.Round = 2 },
		"another tensor":      func(rank *int, h *wire.Header) { h.Tensor++ },
		"another packet":      func(rank *int, h *wire.Header) { h.Packet++ },
		"another type":        func(rank *int, h *wire.Header) { h.DType = wire.Int32 },
		"another consistency": func(rank *int, h *wire.Header) { h.Policy = wire.Bounded(2) },
		"another length":      func(rank *int, h *wire.Header) { h.RawLen += 4 },
	} {
		for _, kind := range []wire.Kind{wire.Contrib, wire.Empty} {
			r := newRig(t, 2, wire.Bounded(1), wire.Float32, []float64{1, 2})
			rank, h, buffer := 1, r.contribution(1, 8), r.owned([]float64{1, 2})
			if h.Kind = kind; kind == wire.Empty {
				buffer.Release()
				buffer = nil
			}
			change(&rank, h)
			var payload []byte
			if buffer != nil {
				payload = buffer.Bytes
			}
			if replies, err := r.Push(rank, h, payload, buffer, nil); err == nil || replies != nil {
				t.Errorf("%s: %d replies, error %v", name, len(replies), err)
			}
			if clock := r.Clock(tensorID, all); !slices.Equal(clock, []uint64{0, 0}) {
				t.Errorf("%s: the clock is %v", name, clock)
			}
			r.end()
		}
	}
}

// A worker that does not wait for its reply violates the protocol; the store and the pool stay as they were.
func TestOneRoundAtATime(t *testing.T) {
	r := newRig(t, 2, wire.Bounded(0), wire.Float32, []float64{1})
	r.pushed(t, 0, 1, []float64{1})
	if _, err := r.Push(0, r.contribution(2, 4), r.bytes([]float64{1}), nil, nil); err == nil {
		t.Error("a round was taken before the one before it was answered")
	}
	r.end()
}

// A stall names the missing workers of all packets. It is reported after a second, and at most once a second.
func TestStallsAreReported(t *testing.T) {
	now := time.Time{}
	r := newRig(t, 4, wire.Bounded(1), wire.Float32, []float64{1})
	for _, rank := range []int{0, 1, 3} {
		for _, reply := range r.pushed(t, rank, 1, []float64{1}) {
			reply.Buffer.Release()
		}
	}
	r.pushed(t, 0, 2, []float64{1}) // waits for worker 2
	r.pushed(t, 3, 2, nil)          // too
	const all = "[{5 2 [2] [0]} {5 2 [2] [3]}]"
	for _, tc := range []struct {
		after time.Duration
		want  string
	}{{aggregate.StallAfter / 2, "[]"}, {aggregate.StallAfter, all}, {aggregate.StallAfter * 3 / 2, "[]"}, {2 * aggregate.StallAfter, all}} {
		if got := fmt.Sprint(r.Tick(now.Add(tc.after))); got != tc.want {
			t.Errorf("after %v: %s, expected %s", tc.after, got, tc.want)
		}
	}
	for _, reply := range r.pushed(t, 2, 1, []float64{1}) {
		reply.Buffer.Release()
	}
	if got := r.Tick(now.Add(5 * aggregate.StallAfter)); got != nil {
		t.Errorf("nobody waits, but %v", got)
	}
	r.end()
}

// Once the pool has grown, updates do not allocate.
func TestUpdatesAllocateNothing(t *testing.T) {
	values := make([]float64, 1000)
	for _, rule := range append([]Rule{{}}, rules...) {
		for _, dtype := range []wire.DType{wire.Float32, wire.Float16} {
			for _, policy := range []wire.Policy{wire.Sync, wire.Async, wire.Bounded(1)} {
				r := newRig(t, 1, policy, dtype, values)
				if rule.Kind != "" {
					r.setRule(rule)
				}
				content, round := r.bytes(values), uint64(0)
				h := r.contribution(0, len(content))
				var replies []Reply
				step := func() {
					round++
					h.Round = round
					buffer := r.pool.Get(len(content))
					copy(buffer.Bytes, content)
					if policy == wire.Sync {
						sum := aggregate.Sum{Header: *h, Buffer: buffer}
						if err := r.Complete(&sum); err != nil {
							t.Fatal(err)
						}
						sum.Buffer.Release()
						return
					}
					replies, _ = r.Push(0, h, buffer.Bytes, buffer, replies[:0])
					replies[0].Buffer.Release()
				}
				if n := testing.AllocsPerRun(20, step); n != 0 {
					t.Errorf("%s, %v, %v: %v allocations", rule.Kind, dtype, policy, n)
				}
				r.end()
			}
		}
	}
}
