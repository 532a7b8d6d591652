package store

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"fptps/gocore/aggregate"
	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

var arrived = Arrival{
	DType: wire.Float32, Bytes: 8, Plan: 7, Round: 5, Steps: 5, Rate: 0.25, Offset: []uint64{0, 3}, Rule: &Rule{Kind: SGD, Rate: 0.5, Momentum: 0.5},
}

// A packet that moves goes on where it was, with its clock, and is gone from where it was.
func TestAPacketMoves(t *testing.T) {
	r := newRig(t, 2, wire.Sync, wire.Float32, []float64{1, 2})
	if err := r.Arrive(9, 4, arrived); err != nil {
		t.Fatal(err)
	}
	for array, values := range map[int][]float64{ArrayValue: {3, 4}, ArrayState: {8, 16}} {
		if err := r.Write(9, 4, Part(array, 0), r.bytes(values)); err != nil {
			t.Fatal(err)
		}
	}
	about := wire.Clock{First: 4, Count: 1}
	if clock := r.Clock(9, about); !reflect.DeepEqual(clock, []uint64{5, 8}) {
		t.Errorf("the clock is %v", clock)
	}
	sum := aggregate.Sum{Buffer: r.owned([]float64{2, 4}), Header: wire.Header{Kind: wire.Sum, DType: wire.Float32, Tensor: 9, Packet: 4, Run: 1, Round: 6, RawLen: 8}}
	if err := r.Complete(&sum); err != nil {
		t.Fatal(err)
	}
	if got := r.values(sum.Buffer.Bytes); !reflect.DeepEqual(got, []float64{1.5, 1}) { // 3 - 0.25 (0.5 * 8 + 2)
		t.Errorf("the weights are %v", got)
	}
	sum.Buffer.Release()
	if err := r.Leave(9, wire.Clock{First: 4, Count: 1, Complete: 5}, 8); err != nil || r.Clock(9, about)[0] == 0 {
		t.Errorf("a packet that has come back since is forgotten: %v", err)
	}
	if err := r.Leave(9, wire.Clock{First: 0, Count: 1 << 20, Complete: 6}, 8); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(9, 4, Part(ArrayValue, 0), 8); fault.CodeOf(err) != fault.Key {
		t.Errorf("a packet that has moved away: %v", err)
	}
	if err := r.Leave(10, about, 8); fault.CodeOf(err) != fault.Key {
		t.Errorf("an unknown tensor: %v", err)
	}
	r.end()
}

// A packet may arrive where an old copy of it is left: the copy is replaced.
func TestAPacketComesBack(t *testing.T) {
	r := newRig(t, 2, wire.Sync, wire.Float32, []float64{1, 2})
	a := arrived
	a.Offset = nil
	for range 2 {
		if err := r.Arrive(tensorID, packetID, a); err != nil {
			t.Fatal(err)
		}
	}
	if clock := r.Clock(tensorID, all); !reflect.DeepEqual(clock, []uint64{5, 5}) {
		t.Errorf("the clock is %v", clock)
	}
	r.end()
}

func TestArrivalsThatAreRefused(t *testing.T) {
	r := newRig(t, 2, wire.Sync, wire.Float32, []float64{1, 2})
	for name, change := range map[string]func(a *Arrival){
		"the clock of 1025 workers":  func(a *Arrival) { a.Offset = make([]uint64, wire.MaxWorkers+1) },
		"but the tensor here is of":  func(a *Arrival) { a.DType = wire.Float64 },
		"a moved packet of int32":    func(a *Arrival) { a.DType = wire.Int32 },
		"there are no such weights":  func(a *Arrival) { a.DType = 255 },
		"codec 7":                    func(a *Arrival) { a.Codec = 7 },
		"invalid consistency":        func(a *Arrival) { a.Policy = wire.MaxDelay + 2 },
		"the rounds of 0 workers":    func(a *Arrival) { a.Policy = wire.Async },
		"the rounds of 1025":         func(a *Arrival) { a.Policy, a.Arrived = wire.Async, make([]uint64, wire.MaxWorkers+1) },
		"of 0 bytes":                 func(a *Arrival) { a.Bytes = 0 },
		"of 6 bytes":                 func(a *Arrival) { a.Bytes = 6 },
		"of 16388 bytes":             func(a *Arrival) { a.Bytes = wire.PacketBytes + 4 },
		"rate of -1":                 func(a *Arrival) { a.Rate = -1 },
		"optimiser LION":             func(a *Arrival) { a.Rule = &Rule{Kind: "LION"} },
		"round 18446744073709551615": func(a *Arrival) { a.Round = math.MaxUint64 },
	} {
		a := arrived
		change(&a)
		parsed, err := ParseArrival(a.Text())
		if err == nil {
			err = r.Arrive(tensorID, packetID, parsed)
		}
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.end()
}

func FuzzArrival(f *testing.F) {
	f.Add(arrived.Text())
	f.Add([]byte(`{"dtype":12,"bytes":4,"round":1,"rule":{"kind":"Adam","betas":[0.9]}}`))
	f.Add([]byte(`{"dtype":12,"policy":65535,"codec":1,"bytes":4,"arrived":[1,2]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := ParseArrival(text)
		if err != nil {
			if code := fault.CodeOf(err); code != fault.Value && code != fault.Type {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if again, err := ParseArrival(a.Text()); err != nil || !reflect.DeepEqual(a, again) {
			t.Errorf("%+v becomes %+v: %v", a, again, err)
		}
	})
}
