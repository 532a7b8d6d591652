package wire

// Every limit of the data plane, with its reason.
const (
	// PacketBytes is the payload of every packet of a tensor but the last. An urgent
	// packet may have to wait for one other packet: 131 us at 1 Gbit/s. A header adds
	// 0.4%. Smaller packets do not cost more system calls: one call carries many packets.
	PacketBytes = 16 << 10

	// MaxAhead bounds the packets that one header announces besides its own, and so
	// the memory that a receiver prepares for them: 128 KB in all.
	MaxAhead = 7

	// MaxRun bounds the packets that one Empty covers: 128 MB of a tensor. An aggregator
	// keeps a few hundred bytes for each packet.
	MaxRun = 8192

	// MaxTensorBytes keeps packet numbers in 32 bits with room for arithmetic.
	MaxTensorBytes = 1 << 40

	// MaxWorkers bounds the set of contributors that each slot keeps.
	MaxWorkers = 1024

	// MaxShare bounds one node's share, so that Cut stays in 64-bit integers:
	// packets (2^26) x the sum of at most 2^11 shares of 2^20 each.
	MaxShare = 1 << 20

	// MaxDelay bounds the rounds that workers may be apart in a bounded policy: far more than any training tolerates.
	MaxDelay = 1 << 15

	// MaxName bounds the name of a key, in bytes, and MaxShapeText the text of a shape (numpy has at most 64 axes): the
	// scheduler keeps both for each tensor.
	MaxName      = 512
	MaxShapeText = 2048

	// MaxTensors bounds the tensors of a cluster.
	MaxTensors = 1 << 24
)

// Packets is the number of packets of a tensor of size bytes; an empty tensor has none.
func Packets(size uint64) uint32 { return uint32((size + PacketBytes - 1) / PacketBytes) }

// PacketLen is the number of bytes of packet number p of a tensor of size bytes.
func PacketLen(size uint64, p uint32) int {
	return int(min(uint64(PacketBytes), size-uint64(p)*PacketBytes))
}
