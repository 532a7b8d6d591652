package ps

import (
	"testing"

	"fptps/gocore/wire"
)

// BenchmarkRequest measures a short push and pull at both ends, without the transport.
func BenchmarkRequest(b *testing.B) {
	h := newHub(&testing.T{}, true, 1, 1)
	Serve(h.open(server0, 0, 0))
	c := h.open(worker0, 0, 0)
	k := KVs{Keys: []uint64{1}, Vals: make([]byte, 4096), DType: wire.Float32}
	end := Completion{Out: make([]byte, 4096), Awaited: true}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := (KVWorker{c}).PushPull(k, end, 0, 0); err != nil {
			b.Fatal(err)
		}
		for h.deliverPacket() {
		}
	}
}
