package store

import (
	"math/rand/v2"
	"slices"
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// copyState copies the state of a rig's packet to another's, chunk by chunk.
func (r *rig) copyState(to *rig, bytes int) {
	r.t.Helper()
	for array := range ArrayState + r.tensors[tensorID].rule.stateCount() {
		left := ArrayBytes(r.dtype, array, bytes)
		for n := 0; left > 0 && array != ArraySent; n++ {
			b, err := r.Read(tensorID, packetID, Part(array, n), min(left, wire.PacketBytes))
			if err == nil {
				err = to.Write(tensorID, packetID, Part(array, n), b.Bytes)
				b.Release()
			}
			if err != nil {
				r.t.Fatalf("array %d part %d: %v", array, n, err)
			}
			left -= wire.PacketBytes
		}
	}
}

// After the state of a packet is copied to another store, both continue with equal bits.
func TestCopiedStateContinues(t *testing.T) {
	for i, rule := range rules {
		for _, dtype := range []wire.DType{wire.Float32, wire.Float64, wire.Float16} {
			for _, elements := range []int{50, wire.PacketBytes / dtype.Size()} {
				rng := rand.New(rand.NewPCG(uint64(i), 3))
				first := newRig(t, 2, wire.Sync, dtype, normal(rng, elements))
				first.setRule(rule)
				rate := float32(0.03)
				for round := uint64(1); round <= 7; round++ {
					first.complete(round, normal(rng, elements), &rate)
				}
				second := newRig(t, 2, wire.Sync, dtype, normal(rng, elements))
				second.setRule(rule)
				first.copyState(second, elements*dtype.Size())
				for round := uint64(1); round <= 5; round++ {
					gradient := normal(rng, elements)
					if a, b := first.complete(7+round, gradient, nil), second.complete(round, gradient, nil); !slices.Equal(a, b) {
						t.Fatalf("%s %v: the weights differ in round %d", rule.Kind, dtype, round)
					}
				}
				first.end()
				second.end()
			}
		}
	}
}

// Writing to weights that are queued for a worker does not change what the worker receives.
func TestWriteTearsNoReply(t *testing.T) {
	r := newRig(t, 2, wire.Async, wire.Float32, []float64{1, 2})
	replies, err := r.Push(0, r.contribution(1, 8), r.bytes([]float64{10, 20}), nil, nil)
	if err == nil {
		err = r.Write(tensorID, packetID, Part(ArrayValue, 0), r.bytes([]float64{5}))
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := r.values(replies[0].Buffer.Bytes); !slices.Equal(got, []float64{11, 22}) {
		t.Errorf("the reply became %v", got)
	}
	replies[0].Buffer.Release()
	b, err := r.Read(tensorID, packetID, Part(ArraySent, 0), 8)
	if err != nil || !slices.Equal(r.values(b.Bytes), []float64{5, 22}) {
		t.Errorf("the weights are %v, error %v", r.values(b.Bytes), err)
	}
	b.Release()
	r.end()
}

func TestInvalidChunksAreRefused(t *testing.T) {
	plain := newRig(t, 2, wire.Sync, wire.Float32, []float64{1})
	plain.complete(1, []float64{1}, nil)
	kept := newRig(t, 2, wire.Sync, wire.Float32, []float64{1, 2})
	kept.setRule(Rule{Kind: SGD, Rate: 1, Momentum: 1})
	for name, tc := range map[string]struct {
		of             *rig
		tensor, packet uint32
		part           uint16
		bytes          int
		code           fault.Code
	}{
		"plain sum":       {plain, tensorID, packetID, Part(ArrayValue, 0), 4, fault.Key},
		"another tensor":  {kept, tensorID + 1, packetID, Part(ArrayValue, 0), 8, fault.Key},
		"another packet":  {kept, tensorID, packetID + 1, Part(ArrayValue, 0), 8, fault.Key},
		"another array":   {kept, tensorID, packetID, Part(ArrayState+1, 0), 8, fault.Value},
		"another part":    {kept, tensorID, packetID, Part(ArrayValue, 1), 8, fault.Value},
		"the last number": {kept, tensorID, packetID, 65535, 8, fault.Value},
		"too much":        {kept, tensorID, packetID, Part(ArrayState, 0), 12, fault.Value},
		"nothing":         {kept, tensorID, packetID, Part(ArrayState, 0), 0, fault.Value},
		"half a number":   {kept, tensorID, packetID, Part(ArraySteps, 0), 4, fault.Value},
		"a quantised one": {quantised(t), tensorID, packetID, Part(ArrayValue, 0), 4, fault.Type},
	} {
		if _, err := tc.of.Read(tc.tensor, tc.packet, tc.part, tc.bytes); fault.CodeOf(err) != tc.code {
			t.Errorf("reading %s: %v", name, err)
		}
		if err := tc.of.Write(tc.tensor, tc.packet, tc.part, make([]byte, tc.bytes)); fault.CodeOf(err) != tc.code {
			t.Errorf("writing %s: %v", name, err)
		}
	}
	if err := kept.Write(tensorID, packetID, Part(ArrayRate, 0), []byte{0, 0, 0, 0, 0, 0, 0xf0, 0xff}); fault.CodeOf(err) != fault.Value {
		t.Errorf("writing a learning rate of minus infinity: %v", err)
	}
	if err := kept.Write(tensorID, packetID, Part(ArraySent, 0), make([]byte, 8)); fault.CodeOf(err) != fault.Value {
		t.Errorf("writing what is sent: %v", err)
	}
	plain.end()
	kept.end()
}

func quantised(t *testing.T) *rig {
	r := newRig(t, 2, wire.Async, wire.Float32, []float64{1})
	r.tensors[tensorID].dtype = wire.Quant(4)
	return r
}

func TestResumedClock(t *testing.T) {
	r := newRig(t, 2, wire.Async, wire.Float32, []float64{1})
	push := func(rank int, round uint64) {
		t.Helper()
		replies, err := r.Push(rank, r.contribution(round, 4), r.bytes([]float64{1}), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		replies[0].Buffer.Release()
	}
	shows := func(want ...uint64) {
		t.Helper()
		if got := r.Clock(tensorID, all); !slices.Equal(got, want) {
			t.Errorf("the clock is %v, expected %v", got, want)
		}
	}
	push(0, 1)
	push(0, 2)
	shows(2, 0)
	if err := r.Resume(tensorID, all, []uint64{1, 50}); err != nil {
		t.Fatal(err)
	}
	shows(1, 50)
	push(0, 3)
	push(1, 1)
	shows(2, 51)
	if err := r.Resume(tensorID, all, []uint64{7, 7}); err != nil {
		t.Fatal(err)
	}
	shows(7, 7)
	push(1, 2)
	shows(7, 8)
	if r.Resume(tensorID, all, []uint64{1}) == nil || r.Resume(tensorID+1, all, []uint64{1, 2}) == nil {
		t.Error("a clock of another size, or of an unknown tensor, was accepted")
	}
	shows(7, 8)
	r.end()
}
