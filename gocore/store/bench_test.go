package store

import (
	"slices"
	"testing"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/wire"
)

// BenchmarkUpdateBesideCopy runs every optimiser over a tensor of 64 MB and 64 MB of gradients, packet by packet as the
// aggregator does, and copy() from 64 MB of packets' buffers to as many others, in turns, and reports the medians' bandwidths and their ratio. Neither the weights
// nor the gradients are in the cache, which is harder than life, where a gradient was just received. Bytes are those that
// are read and written: of an element of SGD's the weight, the gradient and the new weight, 12; with one array of state 8 more
// each; of copy's 8. Memory that is fetched only to be overwritten is not counted for either. What copy() reads was written before:
// memory that never was is one page of zeros, in the cache.
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
	s := New(1, pool, time.Now())
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
		gradients[p], replies[p] = pool.Get(wire.PacketBytes), complete(p, 0, pool.Get(wire.PacketBytes))
		clear(gradients[p].Bytes)
		clear(replies[p].Bytes)
	}
	if err := s.SetRule(0, rule); err != nil {
		b.Fatal(err)
	}
	round := uint64(0)
	update := func() {
		round++
		for p, g := range gradients { // the last but one reply is nobody else's any more, and is the next gradient
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
	update() // makes the state
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
	of := rate(updates, (3+2*rule.states())*benchBytes)
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
