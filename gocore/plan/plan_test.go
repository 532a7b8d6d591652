package plan

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// dumbOwner is the reference for Cut, in unbounded integers: a packet's aggregator is
// the first whose run ends after the packet.
func dumbOwner(p *Plan, key, size uint64, packet uint32) uint32 {
	total := new(big.Int).SetUint64(p.total)
	r := new(big.Int).SetUint64(hash(key) % p.total)
	cumulated := new(big.Int)
	for _, s := range p.shares {
		cumulated.Add(cumulated, big.NewInt(int64(s.Share)))
		end := new(big.Int).SetUint64(uint64(wire.Packets(size)))
		end.Mul(end, cumulated).Add(end, r).Div(end, total)
		if end.Cmp(big.NewInt(int64(packet))) > 0 {
			return s.Node
		}
	}
	panic("a packet without an aggregator")
}

func TestCutAssignsEveryPacketOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		shares := make([]Share, 1+rng.IntN(9))
		for i := range shares {
			shares[i] = Share{Node: uint32(8 + i), Share: rng.Uint32N(5)}
		}
		shares[rng.IntN(len(shares))].Share = 1 + rng.Uint32N(wire.MaxShare)
		p, err := New(shares)
		if err != nil {
			t.Fatal(err)
		}
		key, size := rng.Uint64(), 1+rng.Uint64N(40*wire.PacketBytes)
		next := uint32(0)
		for _, run := range p.Cut(key, size, nil) {
			if run.First != next || run.Count == 0 {
				t.Fatalf("run %+v should start at %d and not be empty", run, next)
			}
			for next < run.First+run.Count {
				if want := dumbOwner(p, key, size, next); want != run.Node {
					t.Fatalf("packet %d of %d bytes: node %d, expected %d (shares %v)", next, size, run.Node, want, shares)
				}
				next++
			}
		}
		if next != wire.Packets(size) {
			t.Fatalf("runs end at packet %d of %d", next, wire.Packets(size))
		}
	}
}

func TestSmallTensorsSpreadByShare(t *testing.T) {
	p, err := New([]Share{{Node: 8, Share: 1}, {Node: 10, Share: 2}, {Node: 12, Share: 5}})
	if err != nil {
		t.Fatal(err)
	}
	const keys = 80000
	count := map[uint32]int{}
	for key := range uint64(keys) {
		count[p.Cut(key, 1, nil)[0].Node]++
	}
	for node, share := range map[uint32]int{8: 1, 10: 2, 12: 5} {
		if want := keys * share / 8; count[node] < want*97/100 || count[node] > want*103/100 {
			t.Errorf("node %d sums %d of %d one-packet tensors, expected about %d", node, count[node], keys, want)
		}
	}
}

func TestCutAtTheLimits(t *testing.T) {
	shares := make([]Share, 2048)
	for i := range shares {
		shares[i] = Share{Node: uint32(i), Share: wire.MaxShare}
	}
	p, err := New(shares)
	if err != nil {
		t.Fatal(err)
	}
	runs := p.Cut(0, wire.MaxTensorBytes, nil)
	last := runs[len(runs)-1]
	if len(runs) != len(shares) || last.First+last.Count != wire.Packets(wire.MaxTensorBytes) {
		t.Errorf("%d runs, the last is %+v", len(runs), last)
	}
}

func TestInvalidPlans(t *testing.T) {
	for name, shares := range map[string][]Share{
		"nobody sums":   {{Node: 8, Share: 0}},
		"no node":       nil,
		"share too big": {{Node: 8, Share: wire.MaxShare + 1}},
	} {
		if _, err := New(shares); fault.CodeOf(err) != fault.Config {
			t.Errorf("%s: got %v, expected a Config error", name, err)
		}
	}
}
