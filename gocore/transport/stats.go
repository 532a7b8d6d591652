package transport

import "sync/atomic"

// Stats counts what the data plane did since Listen.
type Stats struct {
	BytesSent, BytesReceived     uint64 // of payload, without what this node sent to itself
	PacketsSent, PacketsReceived uint64 // whole ones, Goodbyes left out of the second
	PacketsLocal                 uint64 // that this node sent to itself
	Writes, Reads                uint64 // system calls that move data
	Wakeups                      uint64 // times that a loop was woken out of its sleep
	Rejected                     uint64 // handshakes that were refused, rubbish, or too slow
	Malformed                    uint64 // connections closed for what came on them
	Dropped                      uint64 // runs sent to a peer that has no connection, or whose connection ended first
}

type counters struct {
	bytesSent, bytesReceived, packetsSent, packetsReceived, packetsLocal atomic.Uint64
	writes, reads, wakeups, rejected, malformed, dropped                 atomic.Uint64
}

// Stats reads the counters.
func (t *Transport) Stats() Stats {
	c := &t.count
	return Stats{
		BytesSent: c.bytesSent.Load(), BytesReceived: c.bytesReceived.Load(),
		PacketsSent: c.packetsSent.Load(), PacketsReceived: c.packetsReceived.Load(),
		PacketsLocal: c.packetsLocal.Load(),
		Writes:       c.writes.Load(), Reads: c.reads.Load(), Wakeups: c.wakeups.Load(),
		Rejected: c.rejected.Load(), Malformed: c.malformed.Load(), Dropped: c.dropped.Load(),
	}
}
