package transport

import "sync/atomic"

// Stats holds counters of the data plane since Listen.
type Stats struct {
	Lanes           int    `json:"lanes"`
	LinkRate        uint64 `json:"link_rate"`        // bit/s of TCP payload that this node's link sends, as measured; 0: not known
	BytesSent       uint64 `json:"bytes_sent"`       // payload, without packets of this node to itself
	BytesReceived   uint64 `json:"bytes_received"`   // likewise
	PacketsSent     uint64 `json:"packets_sent"`     // whole ones
	PacketsReceived uint64 `json:"packets_received"` // whole ones, Goodbyes left out
	ProbeBytes      uint64 `json:"probe_bytes"`      // payload of probes that were sent; no other number counts them
	PacketsLocal    uint64 `json:"packets_local"`    // packets of this node to itself
	Writes          uint64 `json:"writes"`           // system calls that transfer data
	Reads           uint64 `json:"reads"`            // likewise
	Wakeups         uint64 `json:"wakeups"`          // times that a sleeping loop was woken
	Rejected        uint64 `json:"rejected"`         // handshakes that were refused, malformed, or too slow
	Malformed       uint64 `json:"malformed"`        // connections closed because of a malformed packet
	Dropped         uint64 `json:"dropped"`          // runs sent to a peer that has no connection, or whose connection ended first
	Acks            uint64 `json:"acks"`             // packets that were sent only to acknowledge others; no other number counts them
	Resumed         uint64 `json:"resumed"`          // times that a broken connection was made again
}

type counters struct {
	peers                                                            peers
	packetsSent, packetsReceived, packetsLocal                       atomic.Uint64
	writes, reads, wakeups, rejected, malformed, dropped, probeBytes atomic.Uint64
	acks, resumed                                                    atomic.Uint64
}

// Stats reads the counters of all lanes.
func (t *Transport) Stats() Stats {
	c := t.count
	rate, _ := t.LinkRates()
	sent, received := c.peers.total()
	return Stats{
		Lanes: 1 + len(t.others()), LinkRate: uint64(8 * rate),
		BytesSent: sent, BytesReceived: received,
		PacketsSent: c.packetsSent.Load(), PacketsReceived: c.packetsReceived.Load(),
		PacketsLocal: c.packetsLocal.Load(), ProbeBytes: c.probeBytes.Load(),
		Writes: c.writes.Load(), Reads: c.reads.Load(), Wakeups: c.wakeups.Load(),
		Rejected: c.rejected.Load(), Malformed: c.malformed.Load(), Dropped: c.dropped.Load(),
		Acks: c.acks.Load(), Resumed: c.resumed.Load(),
	}
}
