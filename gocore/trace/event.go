// Package trace records what happens to packets, operations and threads, as fixed events in rings, so that a timeline of the whole
// cluster can be made of all nodes' events. It does no IO: node gives it the clock and writes what it has recorded.
//
// Tensor, round and packet name a piece of work alike on all nodes. Of packets only a sample is recorded, the same on all nodes, so that
// each packet of the sample is seen on its whole way. Operations, waits, runs of several packets and the samples of counters are all
// recorded: they are few.
package trace

import "encoding/binary"

// Kind says what an event is about. The numbers are part of the format of a part; see part.go.
type Kind uint8

// The kinds. A contribution is queued, written, read and summed; its sum is complete, queued, written and read.
const (
	Called     Kind = iota + 1 // an operation of a round was called; Packet is its priority, Bytes those of the tensor
	Begun                      // the round has begun here: the one before is complete
	Queued                     // contributions for Peer, from Packet on, with Bytes altogether
	Written                    // the kernel or the shared memory has taken a contribution for Peer
	Read                       // a contribution of Peer has arrived
	Summed                     // a contribution of Peer is in the sum
	Complete                   // Peer's contribution was the last: the sum is complete
	SumQueued                  // a sum for Peer
	SumWritten                 //
	SumRead                    // a sum of Peer has arrived
	Done                       // the operation has ended
	Waited                     // the caller has waited for a tensor (NoTensor: something else) since Time, for Bytes us
	Sent                       // since Time and for Packet us, Bytes were sent to Peer
	Received                   // the same of bytes received from Peer
	Processor                  // since Time and for Packet us, the process has used Bytes us of processors
	Loop                       // the same: the busiest thread of the data plane has run for Bytes us, or could have and waited for a processor
	Delayed                    // the same: the process's first thread has waited for a processor for Bytes us
	Missing                    // an aggregator has waited one second for Peer's contribution to a round
	kindEnd
)

// NoTensor stands for the tensor of an event that is about none.
const NoTensor = ^uint32(0)

// EventBytes is the size of an event in memory and in a part.
const EventBytes = 32

// Event is one thing that happened. Times are those of the host's monotonic clock, in ns.
type Event struct {
	Time   int64
	Tensor uint32
	Round  uint32 // modulo 2^32
	Packet uint32
	Bytes  uint32
	Peer   uint32 // node id
	Kind   Kind
}

// put encodes e into b[:EventBytes].
func (e *Event) put(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b, uint64(e.Time))
	le.PutUint32(b[8:], e.Tensor)
	le.PutUint32(b[12:], e.Round)
	le.PutUint32(b[16:], e.Packet)
	le.PutUint32(b[20:], e.Bytes)
	le.PutUint32(b[24:], e.Peer)
	le.PutUint32(b[28:], uint32(e.Kind))
}

// sampled reports whether a packet is in the sample of 1 in n. All nodes choose alike.
func sampled(tensor, round, packet, n uint32) bool {
	x := uint64(tensor)<<32 | uint64(packet)
	x ^= uint64(round) * 0x9e3779b97f4a7c15
	x ^= x >> 33 // the finaliser of MurmurHash3
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return x>>32*uint64(n) < 1<<32
}
