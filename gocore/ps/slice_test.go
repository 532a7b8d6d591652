package ps

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"fptps/gocore/wire"
)

func TestBounds(t *testing.T) {
	const whole = math.MaxUint64
	for servers, want := range map[int][]uint64{
		1: {0, whole}, 2: {0, whole / 2, whole / 2 * 2}, 3: {0, whole / 3, whole / 3 * 2, whole},
	} {
		if got := Bounds(servers); !slices.Equal(got, want) {
			t.Errorf("%d servers: %d, want %d", servers, got, want)
		}
	}
}

// Every key goes to the server whose range contains it, with its value.
func TestSliceAgainstKeyByKey(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		bounds := Bounds(1 + random.IntN(5))
		k := KVs{DType: wire.Uint16}
		for range random.IntN(20) {
			k.Keys = append(k.Keys, random.Uint64()%bounds[len(bounds)-1])
		}
		for _, bound := range bounds[1:] { // just below and above each bound
			k.Keys = append(k.Keys, bound-1, bound)
		}
		k.Keys = k.Keys[:len(k.Keys)-1]
		slices.Sort(k.Keys)
		k.Keys = slices.Compact(k.Keys)
		each := random.IntN(2) == 0
		want := make([]KVs, len(bounds)-1)
		for i, key := range k.Keys {
			n := 2
			if !each {
				n = random.IntN(4)
				k.Lens = append(k.Lens, int32(n))
			}
			value := bytes.Repeat([]byte{byte(i), byte(i >> 8)}, n)
			k.Vals = append(k.Vals, value...)
			for s := range want {
				if key >= bounds[s] && key < bounds[s+1] {
					want[s].Keys = append(want[s].Keys, key)
					want[s].Vals = append(want[s].Vals, value...)
					if !each {
						want[s].Lens = append(want[s].Lens, int32(n))
					}
				}
			}
		}
		got, err := Slice(&k, bounds)
		if err != nil {
			t.Fatal(err)
		}
		for s := range want {
			if !slices.Equal(got[s].Keys, want[s].Keys) || !bytes.Equal(got[s].Vals, want[s].Vals) || !slices.Equal(got[s].Lens, want[s].Lens) {
				t.Fatalf("server %d of %v: %v, want %v", s, bounds, got[s], want[s])
			}
		}
	}
	if _, err := Slice(&KVs{Keys: []uint64{math.MaxUint64}}, Bounds(2)); err == nil {
		t.Error("a key beyond all ranges was accepted")
	}
}
