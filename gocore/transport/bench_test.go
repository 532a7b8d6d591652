package transport

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"fptps/gocore/wire"
)

// BenchmarkGoodput sends runs of 1 MB one way over the loopback; the receiver reads
// each packet to the same place, so that memory's speed is left out.
func BenchmarkGoodput(b *testing.B) {
	const size, window = 1 << 20, 16
	place := make([]byte, wire.PacketBytes)
	arrived := make(chan struct{}, 1)
	left := b.N * size / wire.PacketBytes
	nodes := mesh(b, func(n *node) {
		n.h.place = func(_ uint32, h *wire.Header) (Destination, error) { return Destination{Bytes: place[:h.WireLen]}, nil }
		n.h.arrived = func(arrival) error {
			if left--; left == 0 {
				close(arrived)
			}
			return nil
		}
	}, 8, 9)
	data := make([]byte, size)
	credits := make(chan struct{}, window)
	owner := releaseFunc(func() { <-credits })
	b.SetBytes(size)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		credits <- struct{}{}
		nodes[1].Send(8, Outgoing{Header: contrib(1, 0), Data: data, Owner: owner})
	}
	<-arrived
	b.StopTimer()
	packets := float64(b.N * size / wire.PacketBytes)
	sent, received := nodes[1].Stats(), nodes[0].Stats()
	b.ReportMetric(float64(sent.Writes)/packets, "writes/packet")
	b.ReportMetric(float64(received.Reads)/packets, "reads/packet")
}

// BenchmarkPingPong sends 4 KB back and forth.
func BenchmarkPingPong(b *testing.B) {
	var trips []time.Duration
	done := make(chan struct{})
	place := make([]byte, 4096)
	var last time.Time
	nodes := mesh(b, func(n *node) {
		n.h.place = func(_ uint32, h *wire.Header) (Destination, error) { return Destination{Bytes: place[:h.WireLen]}, nil }
		n.h.arrived = func(a arrival) error {
			if n.id == 9 {
				now := time.Now()
				trips = append(trips, now.Sub(last))
				last = now
				if len(trips) == b.N {
					close(done)
					return nil
				}
			}
			n.Send(a.peer, Outgoing{Header: contrib(1, 0), Data: place})
			return nil
		}
	}, 8, 9)
	trips = make([]time.Duration, 0, b.N)
	b.ReportAllocs()
	b.ResetTimer()
	last = time.Now()
	nodes[1].Send(8, Outgoing{Header: contrib(1, 0), Data: place})
	<-done
	b.StopTimer()
	slices.Sort(trips)
	b.ReportMetric(float64(trips[len(trips)/2])/1e3, "p50-us")
	b.ReportMetric(float64(trips[len(trips)*99/100])/1e3, "p99-us")
}

// BenchmarkUrgent sends one 4 KB packet at a time while bulk of lower priority fills
// the connection: how long it takes, and how many packets of bulk arrive meanwhile,
// which is what had been given to the kernel.
func BenchmarkUrgent(b *testing.B) {
	place := make([]byte, wire.PacketBytes)
	urgent := make(chan struct{})
	var arrived atomic.Int64
	nodes := mesh(b, func(n *node) {
		n.h.place = func(_ uint32, h *wire.Header) (Destination, error) { return Destination{Bytes: place[:h.WireLen]}, nil }
		n.h.arrived = func(a arrival) error {
			if a.header.Priority > 0 {
				urgent <- struct{}{}
			}
			arrived.Add(1)
			return nil
		}
	}, 8, 9)
	bulk := make([]byte, 1<<20)
	var over atomic.Bool
	var more releaseFunc
	more = func() {
		if over.Load() {
			return
		}
		nodes[1].Send(8, Outgoing{Header: contrib(1, 0), Data: bulk, Owner: more})
	}
	for range 16 {
		more()
	}
	var took []time.Duration
	var ahead []int64
	for b.Loop() {
		start, before := time.Now(), arrived.Load()
		nodes[1].Send(8, Outgoing{Header: contrib(2, 1), Data: bulk[:4096]})
		<-urgent
		took, ahead = append(took, time.Since(start)), append(ahead, arrived.Load()-before)
	}
	over.Store(true)
	nodes[1].Close()
	slices.Sort(took)
	slices.Sort(ahead)
	b.ReportMetric(float64(took[len(took)/2])/1e3, "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100])/1e3, "p99-us")
	b.ReportMetric(float64(ahead[len(ahead)/2]), "p50-packets-ahead")
	b.ReportMetric(float64(ahead[len(ahead)*99/100]), "p99-packets-ahead")
}
