package plan

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"fptps/gocore/wire"
)

// modelSizes returns the bytes of the float32 tensors of each profiled model, in order.
func modelSizes(t *testing.T) map[string][]uint64 {
	models := map[string][]uint64{}
	paths, _ := filepath.Glob("../../benchmarks/profiles/*.json")
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var profile struct {
			Name   string
			Layers []struct{ Tensors []struct{ Elements uint64 } }
		}
		if err := json.Unmarshal(text, &profile); err != nil {
			t.Fatal(err)
		}
		for _, layer := range profile.Layers {
			for _, tensor := range layer.Tensors {
				models[profile.Name] = append(models[profile.Name], 4*tensor.Elements)
			}
		}
	}
	if len(models["resnet50"]) != 161 {
		t.Fatalf("resnet50 has %d tensors", len(models["resnet50"]))
	}
	return models
}

// randomPlan has shares of all orders of magnitude.
func randomPlan(t *testing.T, random *rand.Rand, nodes int) *Plan {
	shares := make([]Share, nodes)
	for i := range shares {
		shares[i] = Share{Node: uint32(8 + i), Share: 1 + random.Uint32N(1<<random.IntN(21))}
	}
	p, err := New(shares)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// excess cuts tensors of the given sizes and checks that each cut is valid. It returns the
// most packets by which an aggregator was ever above its share of the tensors so far, and below.
func excess(t *testing.T, p *Plan, sizes []uint64) (above, below float64) {
	tally := NewTally(p)
	got := map[uint32]float64{}
	sum := 0.0
	var runs []Run
	for _, size := range sizes {
		sum += float64(size)
		next, seen := uint32(0), map[uint32]bool{}
		runs = tally.Cut(size, runs[:0])
		for _, run := range runs {
			if run.First != next || run.Count == 0 || seen[run.Node] {
				t.Fatalf("%d bytes: runs %+v", size, runs)
			}
			seen[run.Node] = true
			next += run.Count
			got[run.Node] += float64(min(size, uint64(next)*wire.PacketBytes) - uint64(run.First)*wire.PacketBytes)
		}
		if next != wire.Packets(size) {
			t.Fatalf("runs end at packet %d of %d", next, wire.Packets(size))
		}
		for _, s := range p.shares {
			more := (got[s.Node] - sum*float64(s.Share)/float64(p.total)) / wire.PacketBytes
			above, below = max(above, more), max(below, -more)
		}
	}
	return above, below
}

// At every point of each profiled model, whatever the shares, every aggregator is within
// one packet of its share of the bytes.
func TestTallyFollowsTheShares(t *testing.T) {
	for name, sizes := range modelSizes(t) {
		random := rand.New(rand.NewPCG(1, 2))
		for _, nodes := range []int{1, 2, 3, 5, 8, 16, 64} {
			for range 20 {
				p := randomPlan(t, random, nodes)
				if above, below := excess(t, p, sizes); above > 1 || below > 1 {
					t.Errorf("%s, shares %v: %.2f packets above, %.2f below", name, p.shares, above, below)
				}
			}
		}
	}
}

// Tensors of random sizes, most of them smaller than the number of aggregators in packets.
func TestTallyOfRandomTensors(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		sizes := make([]uint64, 1+random.IntN(300))
		for i := range sizes {
			sizes[i] = random.Uint64N(1 << (1 + random.IntN(20))) // empty ones, too
		}
		p := randomPlan(t, random, 1+random.IntN(40))
		if above, below := excess(t, p, sizes); above > 1 || below > 1.5 {
			t.Errorf("seed %d, shares %v: %.2f packets above, %.2f below", seed, p.shares, above, below)
		}
	}
}

// The 108 tensors of ResNet-50 that fit into a packet, over 4 equal aggregators: each sums its
// share to within a packet.
func TestSmallTensorsOfResNet(t *testing.T) {
	small := slices.DeleteFunc(modelSizes(t)["resnet50"], func(size uint64) bool { return size > wire.PacketBytes })
	if len(small) != 108 {
		t.Fatalf("%d tensors fit into a packet", len(small))
	}
	p, err := New([]Share{{8, 1}, {10, 1}, {12, 1}, {14, 1}})
	if err != nil {
		t.Fatal(err)
	}
	if above, below := excess(t, p, small); above > 0.8 || below > 0.8 {
		t.Errorf("%.2f packets above, %.2f below", above, below)
	}
}

func TestTallyAtTheLimits(t *testing.T) {
	shares := make([]Share, 2048)
	for i := range shares {
		shares[i] = Share{Node: uint32(i), Share: wire.MaxShare}
	}
	p, err := New(shares)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*Plan{"2048 aggregators": p, "one": {shares: shares[:1], total: wire.MaxShare}} {
		if above, below := excess(t, p, []uint64{1, wire.MaxTensorBytes, wire.MaxTensorBytes - 1, 5}); above > 1 || below > 1 {
			t.Errorf("%s: %.2f packets above, %.2f below", name, above, below)
		}
	}
}
