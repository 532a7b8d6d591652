package ps

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fptps/gocore/wire"
)

func bytesOf(values []float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// Workers push and pull at random; every pull returns the value of a reference map.
func TestSumAgainstAMap(t *testing.T) { overBothPlanes(t, testSumAgainstAMap) }

func testSumAgainstAMap(t *testing.T, link bool) {
	random := rand.New(rand.NewPCG(5, 6))
	h := newHub(t, link, 2, 3)
	var servers []*Sum
	for rank := range 3 {
		servers = append(servers, &Sum{server: KVServer{h.open(wire.ServerID(rank), 0, 0)}, store: map[uint64]*entry{}})
	}
	workers := []*Customer{h.open(worker0, 0, 0), h.open(worker1, 0, 0)}
	size := func(key uint64) int { return int(key % 4) } // one key in four has no elements
	model := map[uint64][]float32{}
	for range 300 {
		var k KVs
		for range 1 + random.IntN(6) {
			k.Keys = append(k.Keys, random.Uint64N(8)*(math.MaxUint64/8)+random.Uint64N(4))
		}
		slices.Sort(k.Keys)
		k.Keys = slices.Compact(k.Keys)
		k.DType = wire.Float32
		push, pull := random.IntN(2) == 0, random.IntN(2) == 0
		if !push && !pull {
			continue
		}
		var want []float32
		known := true
		for _, key := range k.Keys {
			if push {
				value := make([]float32, size(key))
				for i := range value {
					value[i] = float32(random.IntN(100))
				}
				k.Vals, k.Lens = append(k.Vals, bytesOf(value)...), append(k.Lens, int32(len(value)))
				if model[key] == nil {
					model[key] = make([]float32, size(key))
				}
				for i := range value {
					model[key][i] += value[i]
				}
			}
			known = known && model[key] != nil
			want = append(want, model[key]...)
		}
		if !push && !known {
			continue // zero, of a length unknown to the server
		}
		c := workers[random.IntN(2)]
		ts, err := KVWorker{c}.exchange(push, pull, k, Completion{}, 0, int32(random.IntN(3)))
		if err != nil {
			t.Fatal(err)
		}
		h.serveAll(servers...)
		r := h.result(c, ts)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		if pull && (!slices.Equal(r.KVs.Keys, k.Keys) || !slices.Equal(r.KVs.Vals, bytesOf(want))) {
			t.Fatalf("keys %d: %v, want %v", k.Keys, r.KVs, want)
		}
	}
}

func TestSumRefuses(t *testing.T) { overBothPlanes(t, testSumRefuses) }

func testSumRefuses(t *testing.T, link bool) {
	h := newHub(t, link, 1, 1)
	s := &Sum{server: KVServer{h.open(server0, 0, 0)}, store: map[uint64]*entry{}}
	c := h.open(worker0, 0, 0)
	ask := func(push bool, k KVs) *Result {
		t.Helper()
		ts, err := KVWorker{c}.exchange(push, !push, k, Completion{}, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		h.serveAll(s)
		return h.result(c, ts)
	}
	if r := ask(true, KVs{Keys: []uint64{1, 2}, Vals: []byte{1, 2, 3, 4}, DType: wire.Uint8}); r.Err != nil {
		t.Fatal(r.Err)
	}
	if r := ask(true, KVs{Keys: []uint64{1, 2}, Vals: []byte{1, 2, 3}, DType: wire.Uint8, Lens: []int32{2, 1}}); r.Err == nil || !strings.Contains(r.Err.Error(), "key 2") {
		t.Errorf("another length: %v", r.Err)
	}
	if r := ask(true, KVs{Keys: []uint64{1}, Vals: []byte{1, 2}, DType: wire.Int8}); r.Err == nil || !strings.Contains(r.Err.Error(), "int8") {
		t.Errorf("another dtype: %v", r.Err)
	}
	if r := ask(false, KVs{Keys: []uint64{1, 2}, DType: wire.Uint8}); r.Err != nil || !slices.Equal(r.KVs.Vals, []byte{1, 2, 3, 4}) {
		t.Errorf("a refused push has changed the sum: %+v", r)
	}
	// A key that was never pushed is zero, as long as the others, and is counted as rejected.
	if r := ask(false, KVs{Keys: []uint64{1, 9}, DType: wire.Uint8}); r.Err != nil || !slices.Equal(r.KVs.Vals, []byte{1, 2, 0, 0}) || r.KVs.Lens != nil {
		t.Errorf("a key never pushed: %+v", r)
	}
	h.wantRejected(server0, 3, "worker 0")
	if r := ask(true, KVs{Keys: []uint64{20}, Vals: make([]byte, 5), DType: wire.Bool}); r.Err != nil {
		t.Fatal(r.Err)
	}
	if r := ask(false, KVs{Keys: []uint64{1, 20}, DType: wire.Uint8}); r.Err == nil {
		t.Errorf("two dtypes in one pull: %+v", r)
	}
}

// Half floats are summed in float32: 2048 + 1 + 1 is not 2048.
func TestSumOfHalves(t *testing.T) { overBothPlanes(t, testSumOfHalves) }

func testSumOfHalves(t *testing.T, link bool) {
	h := newHub(t, link, 1, 1)
	s := &Sum{server: KVServer{h.open(server0, 0, 0)}, store: map[uint64]*entry{}}
	c := h.open(worker0, 0, 0)
	for _, half := range []uint16{0x6800, 0x3c00, 0x3c00} {
		if _, err := (KVWorker{c}).Push(KVs{Keys: []uint64{1}, Vals: binary.LittleEndian.AppendUint16(nil, half), DType: wire.Float16}, Completion{}, 0, 0); err != nil {
			t.Fatal(err)
		}
		h.serveAll(s)
		h.event(c)
	}
	ts, err := KVWorker{c}.Pull(KVs{Keys: []uint64{1}, DType: wire.Float16}, Completion{}, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	h.serveAll(s)
	if r := h.result(c, ts); r.Err != nil || binary.LittleEndian.Uint16(r.KVs.Vals) != 0x6801 {
		t.Errorf("%+v", r)
	}
}
