package store

import (
	"slices"
	"testing"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/wire"
)

// BenchmarkUpdateBesideCopy compares optimisers' steps with copy(). It alternates between updates of a 64 MB tensor by 64 MB of
// gradients, packet by packet as on an aggregator, and copies of 64 MB of packet buffers to others. It reports the medians of
// both bandwidths and their ratio. Neither weights nor gradients are in the cache; in a real cluster the gradient was just
// received and is. The bytes counted are those read and written: per element 12 for SGD (weight, gradient, new weight), 8 more
// for each state array, and 8 for copy. Memory fetched only to be overwritten is not counted. The source of copy() is written
// first, because untouched memory is a single page of zeros, which stays in the cache.
func BenchmarkUpdateBesideCopy(b *testing.B) {
	for _, rule := range []Rule{
		{Kind: SGD, Rate: 1e-3}, {Kind: SGD, Rate: 1e-3, Momentum: 0.9}, {Kind: Adam, Rate: 1e-3, Betas: [2]float64{0.9, 0.999}, Eps: 1e-8},
		{Kind: Adagrad, Rate: 1e-3, Eps: 1e-10},
	} {
		name := rule.Kind
		if rule.Momentum != 0 {
			name += " with momentum"
		}
		b.Run(name, func(b *testing.B) { besideCopy(b, rule) })
	}
}

const (
	benchPackets = 4096
	benchBytes   = benchPackets * wire.PacketBytes
)

func besideCopy(b *testing.B, rule Rule) {
	pool := aggregate.NewPool()
	s := New([]int{0}, pool, time.Now())
	gradients, replies := make([]*aggregate.Buffer, benchPackets), make([]*aggregate.Buffer, benchPackets)
	header := wire.Header{Kind: wire.Sum, DType: wire.Float32, Run: 1, Contributors: 1, RawLen: wire.PacketBytes, WireLen: wire.PacketBytes}
	complete := func(p int, round uint64, buffer *aggregate.Buffer) *aggregate.Buffer {
		sum := aggregate.Sum{Header: header, Buffer: buffer}
		sum.Header.Packet, sum.Header.Round = uint32(p), round
		if err := s.Complete(&sum); err != nil {
			b.Fatal(err)
		}
		return sum.Buffer
	}
	for p := range benchPackets {
		complete(p, 0, nil)
		gradients[p], replies[p] = pool.Get(wire.PacketBytes), pool.Get(wire.PacketBytes)
		clear(gradients[p].Bytes)
		clear(replies[p].Bytes)
	}
	if err := s.SetRule(0, rule); err != nil {
		b.Fatal(err)
	}
	round := uint64(0)
	update := func() {
		round++
		for p, g := range gradients { // the buffer of the last reply but one is free again and becomes the next gradient
			gradients[p], replies[p] = replies[p], complete(p, round, g)
		}
	}
	from, to := make([]*aggregate.Buffer, benchPackets), make([]*aggregate.Buffer, benchPackets)
	for p := range benchPackets {
		from[p], to[p] = pool.Get(wire.PacketBytes), pool.Get(wire.PacketBytes)
		clear(from[p].Bytes)
	}
	plain := func() {
		for p := range from {
			copy(to[p].Bytes, from[p].Bytes)
		}
	}
	update() // allocates the state
	plain()

	var updates, copies []time.Duration
	for b.Loop() {
		copies = append(copies, timed(plain))
		updates = append(updates, timed(update))
	}
	rate := func(all []time.Duration, bytes int) float64 {
		slices.Sort(all)
		return float64(bytes) / all[len(all)/2].Seconds() / 1e9
	}
	of := rate(updates, (3+2*rule.stateCount())*benchBytes)
	beside := rate(copies, 2*benchBytes)
	b.ReportMetric(of, "GB/s")
	b.ReportMetric(beside, "copy-GB/s")
	b.ReportMetric(of/beside, "of-copy")
}

func timed(f func()) time.Duration {
	begun := time.Now()
	f()
	return time.Since(begun)
}
