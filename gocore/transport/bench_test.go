package transport

import (
	"slices"
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
		n.h.place = func(uint32, *wire.Header) (Landing, error) { return Landing{Bytes: place}, nil }
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
		n.h.place = func(uint32, *wire.Header) (Landing, error) { return Landing{Bytes: place}, nil }
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
