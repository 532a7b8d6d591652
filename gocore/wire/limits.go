package wire

// Every limit of the data plane, with its reason.
const (
	// PacketBytes is the payload of every packet of a tensor but the last. An urgent
	// packet may have to wait for one: 131 us at 1 Gbit/s. A header is 0.4% of it.
	// What a system call costs does not depend on it: one carries many.
	PacketBytes = 16 << 10

	// MaxAhead bounds the packets that one header announces besides its own, and so
	// what a receiver keeps ready for them: 128 KB with its own.
	MaxAhead = 7

	// MaxRun bounds the packets that one Empty speaks for: 128 MB. An aggregator
	// keeps a few hundred bytes for each.
	MaxRun = 8192

	// MaxTensorBytes keeps packet numbers in 32 bits with room for arithmetic.
	MaxTensorBytes = 1 << 40

	// MaxWorkers bounds the set of contributors that each slot keeps.
	MaxWorkers = 1024

	// MaxShare bounds one node's share, so that Cut stays in 64-bit integers:
	// packets (2^26) x the sum of at most 2^11 shares of 2^20 each.
	MaxShare = 1 << 20

	// MaxDelay bounds how many rounds apart a bounded policy lets workers be: far more than any training bears.
	MaxDelay = 1 << 15

	// MaxTensors bounds the tensors of a cluster.
	MaxTensors = 1 << 24
)

// Packets is the number of packets of a tensor of size bytes; an empty tensor has none.
func Packets(size uint64) uint32 { return uint32((size + PacketBytes - 1) / PacketBytes) }

// PacketLen is the number of bytes of packet number p of a tensor of size bytes.
func PacketLen(size uint64, p uint32) int {
	return int(min(uint64(PacketBytes), size-uint64(p)*PacketBytes))
}
