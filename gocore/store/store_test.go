package store

import (
	"slices"
	"testing"

	"fptps/gocore/aggregate"
	"fptps/gocore/wire"
)

// A tensor without a rule is a plain sum; its initial value is released.
func TestPlainSums(t *testing.T) {
	r := newRig(t, 2, wire.Sync, wire.Float32, []float64{1, 2})
	if r.BufferCount() != 1 {
		t.Errorf("%d buffers are held after round 0", r.BufferCount())
	}
	for round := uint64(1); round < 5; round++ {
		if got := r.complete(round, []float64{float64(round), 7}, nil); !slices.Equal(got, []float64{float64(round), 7}) {
			t.Errorf("round %d: %v", round, got)
		}
		if r.BufferCount() != 0 || !slices.Equal(r.Clock(tensorID, all), []uint64{round, round}) {
			t.Errorf("round %d: %d buffers are held, the clock is %v", round, r.BufferCount(), r.Clock(tensorID, all))
		}
	}
	r.end()
}

// If no worker has a gradient, or the operations clash, nothing is applied; all workers receive the weights, or the clash flag.
func TestRoundsWithoutASum(t *testing.T) {
	r := newRig(t, 2, wire.Sync, wire.Float32, []float64{1, 2})
	r.setRule(Rule{Kind: SGD, Rate: 1, Momentum: 0.5, WeightDecay: 0.5})
	header := func(round uint64, flags uint8) aggregate.Sum {
		h := *r.contribution(round, 8)
		h.Kind, h.Flags, h.WireLen = wire.Sum, flags, 0
		return aggregate.Sum{Header: h}
	}
	zeros := header(1, 0)
	if err := r.Complete(&zeros); err != nil || zeros.Header.WireLen != 8 || !slices.Equal(r.values(zeros.Buffer.Bytes), []float64{1, 2}) {
		t.Errorf("error %v, %+v", err, zeros)
	}
	zeros.Buffer.Release()
	clash := header(2, wire.FlagClash)
	if err := r.Complete(&clash); err != nil || clash.Buffer != nil || clash.Header.WireLen != 0 {
		t.Errorf("error %v, %+v", err, clash)
	}
	if got := r.complete(3, []float64{1, 1}, nil); !slices.Equal(got, []float64{-0.5, 0}) {
		t.Errorf("round 3: %v", got)
	}
	r.end()
}

// The initial value is zeros if no worker sent one.
func TestInitialZeros(t *testing.T) {
	r := newRig(t, 1, wire.Async, wire.Float32, []float64{5})
	dirty := r.owned([]float64{9, 9})
	dirty.Release()
	h := *r.contribution(0, 8)
	h.Kind, h.Tensor, h.WireLen = wire.Sum, tensorID+1, 0
	if err := r.Complete(&aggregate.Sum{Header: h, Policy: wire.Async}); err != nil {
		t.Fatal(err)
	}
	h = *r.contribution(1, 8)
	h.Tensor++
	replies, err := r.Push(0, &h, r.bytes([]float64{1, 2}), nil, nil)
	if err != nil || !slices.Equal(r.values(replies[0].Buffer.Bytes), []float64{1, 2}) {
		t.Errorf("error %v, %+v", err, replies)
	}
	replies[0].Buffer.Release()
	r.end()
}

// A sum out of order is refused, and its buffer is released.
func TestCompleteIsRefused(t *testing.T) {
	for name, change := range map[string]func(s *aggregate.Sum){
		"a round too far":     func(s *aggregate.Sum) { s.Header.Round = 2 },
		"another packet":      func(s *aggregate.Sum) { s.Header.Packet++ },
		"another type":        func(s *aggregate.Sum) { s.Header.DType = wire.Int32 },
		"another length":      func(s *aggregate.Sum) { s.Header.RawLen = 4 },
		"another consistency": func(s *aggregate.Sum) { s.Policy = wire.Async },
	} {
		r := newRig(t, 2, wire.Sync, wire.Float32, []float64{1, 2})
		sum := aggregate.Sum{Header: *r.contribution(1, 8), Buffer: r.owned([]float64{1, 2})}
		change(&sum)
		if r.Complete(&sum) == nil {
			t.Errorf("%s is taken", name)
		}
		r.end()
	}
}
