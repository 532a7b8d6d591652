package kv

import (
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/store"
	"fptps/gocore/wire"
)

// trainee is a desk whose key 1 is two float32s, of which workers may be 3 rounds apart.
func trainee(t *testing.T, rank int) *desk {
	d := newDesk(t, rank)
	ticket := d.must(d.Init(1, wire.Float32, wire.Bounded(3), make([]byte, 8)))
	d.declare(1, nil)
	d.contributed(0, false, 0)
	d.ended(ticket, "")
	return d
}

// contributed checks what the worker has sent for a round, and answers it.
func (d *desk) contributed(round uint64, rated bool, rate float32) {
	d.t.Helper()
	if len(d.sent) != 1 {
		d.t.Fatalf("%d packets were sent", len(d.sent))
	}
	h := d.sent[0].Header
	if h.Policy != wire.Bounded(3) || h.Round != round || h.Flags&wire.FlagLearningRate != 0 != rated || h.LearningRate != rate {
		d.t.Errorf("round %d is sent with %+v; expected rated %v %v", round, h, rated, rate)
	}
	d.letGo()
	d.arrive(wire.Header{Kind: wire.Sum, DType: wire.Float32, Tensor: 1, Round: round, RawLen: 8}, make([]byte, 8))
}

func (d *desk) trains(round uint64, rated bool, rate float32) {
	d.t.Helper()
	ticket := d.must(d.Push(1, wire.Float32, make([]byte, 8), wire.OpSum, 0))
	d.contributed(round, rated, rate)
	d.ended(ticket, "")
}

func (d *desk) ruled(number uint64, rule store.Rule) {
	d.t.Helper()
	ticket := d.must(d.SetRule(nil, rule))
	if p := d.sent[0]; len(d.sent) != 1 || p.node != 8 || p.Header.Op != wire.AskRule || string(p.Data) != string(rule.Text()) {
		d.t.Errorf("sent %+v", d.sent)
	}
	d.underWay(ticket)
	d.letGo()
	d.underWay(ticket)
	d.reply(8, number, 0, nil)
	d.ended(ticket, "")
}

// The rate rides in every round from the next on, in a skip too, until another rule brings its own.
func TestLearningRateRidesInPushes(t *testing.T) {
	d := trainee(t, 0)
	d.ruled(1, store.Rule{Kind: store.SGD, Rate: 1})
	d.trains(1, false, 0)
	if err := d.SetLearningRate([]uint64{1}, 0.25); err != nil {
		t.Fatal(err)
	}
	d.trains(2, true, 0.25)
	if err := d.SetLearningRate(nil, 0); err != nil {
		t.Fatal(err)
	}
	skip := d.must(d.Skip(1))
	d.contributed(3, true, 0)
	d.ended(skip, "")
	d.trains(4, true, 0)
	d.ruled(2, store.Rule{Kind: store.SGD, Rate: 2})
	d.trains(5, false, 0)
}

// Other ranks look at the arguments, and nothing else.
func TestRuleOnOtherRanks(t *testing.T) {
	d := trainee(t, 1)
	d.ended(d.must(d.SetRule([]uint64{1}, store.Rule{Kind: store.SGD, Rate: 1})), "")
	if err := d.SetLearningRate(nil, 0.25); err != nil || len(d.sent) != 0 {
		t.Errorf("error %v, %d packets are sent", err, len(d.sent))
	}
	d.trains(1, false, 0)
	_, err := d.SetRule([]uint64{2}, store.Rule{})
	d.refused(fault.Key, nil, err)
	d.refused(fault.Key, nil, d.SetLearningRate([]uint64{2}, 1))
	d.refused(fault.Value, nil, d.SetLearningRate(nil, -1))
}

func TestRuleIsRefused(t *testing.T) {
	d := trainee(t, 0)
	rule := store.Rule{Kind: store.SGD, Rate: 1}
	expect := func(code fault.Code, keys []uint64) {
		t.Helper()
		ticket, err := d.SetRule(keys, rule)
		d.refused(code, ticket, err)
	}
	expect(fault.Key, []uint64{1, 2})
	expect(fault.Value, []uint64{})
	push := d.must(d.Push(1, wire.Float32, make([]byte, 8), wire.OpSum, 0))
	expect(fault.Value, nil) // pushed without a rule
	d.contributed(1, false, 0)
	d.ended(push, "")
	expect(fault.Value, []uint64{1})
	d.ready(3) // of uint8
	expect(fault.Type, nil)
	d.refused(fault.Value, nil, d.SetLearningRate([]uint64{1}, 1))

	busy := trainee(t, 0)
	busy.ruled(1, rule)
	busy.must(busy.Skip(1))
	ticket, err := busy.SetRule(nil, rule)
	busy.refused(fault.Busy, ticket, err)
}

// An aggregator that refuses ends the ticket with its reason, and the key has no rule.
func TestRuleThatTheAggregatorRefuses(t *testing.T) {
	d := trainee(t, 0)
	ticket := d.must(d.SetRule(nil, store.Rule{Kind: store.SGD, Rate: 1}))
	d.letGo()
	d.reply(8, 1, wire.FlagRefused, wire.PutReason("value: too late"))
	d.ended(ticket, fault.Value)
	d.refused(fault.Value, nil, d.SetLearningRate([]uint64{1}, 1))
}
