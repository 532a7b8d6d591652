// Package wire defines the wire formats: the header and handshake of the data plane,
// element types, limits, and (in pspb) the protobuf messages of the control plane. It
// encodes and decodes, and does no IO.
package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
)

// HeaderBytes is the size of every header: one cache line.
const HeaderBytes = 64

const (
	magic   = 0x5046 // "FP", little endian
	version = 1
)

// Kind is the kind of a packet.
type Kind uint8

// The kinds of packets.
const (
	Contrib    Kind = iota + 1 // a worker's values for one packet of one round
	Sum                        // the sum of one packet; without payload it is all zeros
	Empty                      // zeros from one worker for Run packets, without the payload
	Ask                        // a request of a worker to an aggregator about a tensor; Op says which
	Missing                    // an aggregator names the nodes that a round waits for: node ids as uint32s
	Goodbye                    // the last packet of a connection that ends in order
	Answer                     // the answer to an Ask, with its Number and Op
	Part                       // a part of a message of an app (package ps), from Packet 0 on
	Want                       // a worker asks for the values of Run packets of a tensor: each comes as a Sum of the round that this names
	Probe                      // fills a link to another host, so that what it carries can be measured; nobody reads the payload
	Have                       // after the death of an aggregator, a worker names Run packets of which it has the sum of Round
	Recall                     // an aggregator asks a worker for a sum that the worker has named
	Kept                       // the answer: that sum; without payload as for Sum
	Ack                        // says nothing but Received
	Replica                    // an aggregator sends its backup what it stores; Op says how. See replica.go
	Replicated                 // the answer, when the backup has stored it
	kindEnd
)

// Op is the operation of the aggregator: on contributions, or for an Ask.
type Op uint8

// The operations on contributions. Those of Ask are in ask.go.
const (
	OpSum  Op = iota // the sum
	OpMean           // the sum divided by the number of contributors, once, on the aggregator
	opEnd
)

// Codec is the encoding of a payload.
type Codec uint8

// The codecs.
const (
	CodecPlain Codec = iota // the elements, not encoded
	CodecRows               // some rows of a packet of a table; see rows.go
	codecEnd
)

// Flags of a packet.
const (
	FlagClash        uint8 = 1 << iota // workers named different operations: there is no sum
	FlagLast                           // Contrib: the sender's last packet of this tensor and round for this aggregator
	FlagLearningRate                   // Contrib and Empty: LearningRate applies from this round on
	FlagRefused                        // Answer: the request was refused; the payload says why
	FlagWeights                        // Sum, Kept: the weights that an optimiser has made of it
	flagEnd
)

// Header precedes every payload. All integers are little endian. A field with a list of kinds is zero in all other kinds:
// fields of different kinds use the same bytes on the wire.
type Header struct {
	Kind         Kind
	Flags        uint8
	DType        DType
	Op           Op
	Codec        Codec  // encoding of the payload
	Tensor       uint32 // id given by the scheduler
	Packet       uint32 // number within the tensor
	Run          uint32 // Empty, Want, Have, and Sum of a table: number of packets; else 1
	Round        uint64 // the tensor's n-th push; 0 is init
	Rank         uint16 // Replica: of the worker whose push it is
	Epoch        uint16 // Contrib, Empty, Sum, Want, Have, Recall, Kept: of the round; see gocore/aggregate
	Number       uint64 // Ask, Answer: of the ask; Part: of the message
	Priority     int32  // larger is more urgent
	Contributors uint16 // Sum: number of workers that contributed
	Policy       Policy // Contrib, Empty, Replica of a value: consistency of the tensor
	Plan         uint16 // Contrib, Empty, Replica of a value: number of the plan, modulo 2^16; all contributions to a round have the same
	Part         uint16 // Ask, Answer, Replica of an Ask: chunk of a packet's state; see gocore/store
	Ahead        uint16 // number of packets of the same length that follow directly, with the next numbers of this tensor and round
	RawLen       uint32 // bytes of the elements, at most PacketBytes; Empty: of the last packet of the run
	WireLen      uint32 // bytes of the payload that follows
	LearningRate float32
	Received     uint32 // packets that have arrived from the receiver of this one, modulo 2^32, where a broken connection is made again; without FlagLearningRate
	Sent         uint32 // the sender's clock in us, modulo 2^32, when the packet was written to another host; 0: not set
	Waited       uint32 // how long the last packets of the other direction have waited on their way, in us plus 1; 0: not known
	Queue        uint16 // how long packets of all hosts wait before the link of the sender of this one, in 10 us
	Uplink       uint16 // the least time that packets of the sender to any host have waited, in 10 us
}

// Put encodes h into b[:HeaderBytes].
func (h *Header) Put(b []byte) {
	_ = b[HeaderBytes-1]
	le := binary.LittleEndian
	le.PutUint16(b[0:], magic)
	b[2], b[3], b[4], b[5], b[6], b[7] = version, byte(h.Kind), h.Flags, byte(h.DType), byte(h.Op), byte(h.Codec)
	le.PutUint32(b[8:], h.Tensor)
	le.PutUint32(b[12:], h.Packet)
	le.PutUint32(b[16:], h.Run)
	le.PutUint32(b[20:], h.Sent)
	le.PutUint32(b[32:], h.Waited)
	le.PutUint16(b[36:], h.Queue)
	le.PutUint16(b[38:], h.Plan)
	le.PutUint32(b[40:], uint32(h.Priority))
	switch {
	case h.contributes():
		le.PutUint64(b[24:], h.Round)
		le.PutUint16(b[44:], uint16(h.Policy))
	case h.numbered():
		le.PutUint64(b[24:], h.Number)
		le.PutUint16(b[44:], h.Part)
	default:
		le.PutUint64(b[24:], h.Round)
		le.PutUint16(b[44:], h.Contributors)
	}
	le.PutUint16(b[46:], h.Ahead)
	le.PutUint16(b[48:], uint16(h.RawLen))
	le.PutUint16(b[50:], h.Uplink)
	le.PutUint16(b[52:], uint16(h.WireLen))
	if h.Kind == Replica {
		le.PutUint16(b[54:], h.Rank)
	} else {
		le.PutUint16(b[54:], h.Epoch)
	}
	if h.Flags&FlagLearningRate != 0 {
		le.PutUint32(b[56:], math.Float32bits(h.LearningRate))
	} else {
		le.PutUint32(b[56:], h.Received)
	}
	le.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Get decodes and checks b[:HeaderBytes]. If the error is nil, the header is one that a node
// may send: no field makes the reader allocate more than a packet, or the slots of MaxRun
// packets.
func (h *Header) Get(b []byte) error {
	_ = b[HeaderBytes-1]
	le := binary.LittleEndian
	if le.Uint16(b[0:]) != magic {
		return fmt.Errorf("not an fptps packet (magic %#04x)", le.Uint16(b[0:]))
	}
	if b[2] != version {
		return fmt.Errorf("packet of protocol version %d, this node speaks %d", b[2], version)
	}
	if got, want := le.Uint32(b[60:]), crc32.Checksum(b[:60], castagnoli); got != want {
		return fmt.Errorf("header checksum %#08x, expected %#08x", got, want)
	}
	*h = Header{
		Kind: Kind(b[3]), Flags: b[4], DType: DType(b[5]), Op: Op(b[6]), Codec: Codec(b[7]),
		Tensor: le.Uint32(b[8:]), Packet: le.Uint32(b[12:]), Run: le.Uint32(b[16:]),
		Priority: int32(le.Uint32(b[40:])), Ahead: le.Uint16(b[46:]),
		RawLen: uint32(le.Uint16(b[48:])), WireLen: uint32(le.Uint16(b[52:])),
		Sent: le.Uint32(b[20:]), Waited: le.Uint32(b[32:]), Queue: le.Uint16(b[36:]), Plan: le.Uint16(b[38:]), Uplink: le.Uint16(b[50:]),
	}
	switch number, detail := le.Uint64(b[24:]), le.Uint16(b[44:]); {
	case h.contributes():
		h.Round, h.Policy = number, Policy(detail)
	case h.numbered():
		h.Number, h.Part = number, detail
	default:
		h.Round, h.Contributors = number, detail
	}
	if last := le.Uint16(b[54:]); h.Kind == Replica {
		h.Rank = last
	} else {
		h.Epoch = last
	}
	if last := le.Uint32(b[56:]); h.Flags&FlagLearningRate != 0 {
		h.LearningRate = math.Float32frombits(last)
	} else {
		h.Received = last
	}
	return h.check()
}

// contributes reports whether the packet is a worker's contribution, or the replica of one.
func (h *Header) contributes() bool {
	return h.Kind == Contrib || h.Kind == Empty || h.Kind == Replica && !h.replicatesAsk()
}

// numbered reports whether the packet has a Number and a Part instead of a round.
func (h *Header) numbered() bool {
	return h.Kind == Ask || h.Kind == Answer || h.Kind == Part || h.Kind == Replica && h.replicatesAsk()
}

// MayLead reports whether the header of such a packet may announce the packets after it. The first part of a message may not:
// the places of the other parts are unknown until it has been read.
func MayLead(k Kind, packet uint32) bool {
	return k == Contrib || k == Sum || k == Part && packet > 0
}

// check rejects headers that no node sends.
func (h *Header) check() error {
	switch {
	case h.Kind == 0 || h.Kind >= kindEnd:
		return fmt.Errorf("unknown packet kind %d", h.Kind)
	case h.Flags >= flagEnd || !h.goodOp() || h.Codec >= codecEnd:
		return fmt.Errorf("unknown flags %#x, operation %d or codec %d", h.Flags, h.Op, h.Codec)
	case h.RawLen > PacketBytes || h.WireLen > PacketBytes:
		return fmt.Errorf("packet of %d bytes (%d on the wire), at most %d", h.RawLen, h.WireLen, PacketBytes)
	}
	if h.Codec == CodecRows {
		if err := h.checkRows(); err != nil {
			return err
		}
	} else if err := h.checkKind(); err != nil {
		return err
	}
	contributes := h.contributes()
	if h.Plan != 0 && !contributes {
		return fmt.Errorf("kind %d with a plan", h.Kind)
	}
	if h.Epoch != 0 && h.Kind != Contrib && h.Kind != Empty && h.Kind != Sum && h.Kind != Want && h.Kind != Have && h.Kind != Recall && h.Kind != Kept {
		return fmt.Errorf("kind %d with an epoch", h.Kind)
	}
	if contributes && !h.Policy.Valid() {
		return fmt.Errorf("unknown consistency %d", h.Policy)
	}
	if h.Flags&FlagLearningRate != 0 && !(contributes && GoodLearningRate(float64(h.LearningRate))) {
		return fmt.Errorf("kind %d with flags %#x and learning rate %v", h.Kind, h.Flags, h.LearningRate)
	}
	if h.Ahead > MaxAhead || h.Ahead > 0 && (!MayLead(h.Kind, h.Packet) || h.WireLen == 0) {
		return fmt.Errorf("kind %d with %d bytes announces %d more", h.Kind, h.WireLen, h.Ahead)
	}
	if h.Tensor >= MaxTensors || uint64(h.Packet)+uint64(h.Run)+uint64(h.Ahead) > MaxTensorBytes/PacketBytes {
		return fmt.Errorf("tensor %d packet %d (run %d) is out of range", h.Tensor, h.Packet, h.Run)
	}
	return nil
}

// checkKind checks the requirements of a kind on a plain payload.
func (h *Header) checkKind() error {
	switch h.Kind {
	case Contrib, Sum, Kept:
		if !h.DType.Valid() || h.RawLen == 0 || int(h.RawLen)%h.DType.Size() != 0 {
			return fmt.Errorf("packet of %d bytes of %v", h.RawLen, h.DType)
		}
		if h.Run != 1 || h.WireLen != h.RawLen && !(h.Kind != Contrib && h.WireLen == 0) {
			return fmt.Errorf("%d bytes on the wire for %d, run %d", h.WireLen, h.RawLen, h.Run)
		}
	case Empty:
		if !h.DType.Valid() || h.WireLen != 0 || h.Run == 0 || h.Run > MaxRun || h.RawLen == 0 || int(h.RawLen)%h.DType.Size() != 0 {
			return fmt.Errorf("empty contribution of %v over %d packets with %d bytes", h.DType, h.Run, h.WireLen)
		}
	case Missing:
		if h.WireLen == 0 || h.WireLen%4 != 0 || h.RawLen != h.WireLen {
			return fmt.Errorf("list of missing nodes of %d bytes", h.WireLen)
		}
	case Goodbye, Ack:
		if h.WireLen != 0 {
			return fmt.Errorf("goodbye or acknowledgement with %d bytes", h.WireLen)
		}
	case Ask, Answer:
		return h.checkAsk()
	case Want, Have, Recall:
		if h.DType != 0 || h.RawLen != 0 || h.WireLen != 0 || h.Run == 0 || h.Run > MaxRun {
			return fmt.Errorf("kind %d about %d packets with %d bytes", h.Kind, h.Run, h.WireLen)
		}
	case Replica:
		return h.checkReplica()
	case Replicated:
		if h.DType != 0 || h.WireLen != 0 || h.RawLen != 0 || h.Run != 1 {
			return fmt.Errorf("the answer of a backup has %d bytes (%d on the wire), run %d", h.RawLen, h.WireLen, h.Run)
		}
	case Probe:
		if h.DType != 0 || h.WireLen == 0 || h.RawLen != h.WireLen || h.Run != 1 {
			return fmt.Errorf("probe of %d bytes (%d on the wire), dtype %d and run %d", h.RawLen, h.WireLen, h.DType, h.Run)
		}
	case Part:
		if h.WireLen == 0 || h.RawLen != h.WireLen || h.Run != 1 {
			return fmt.Errorf("part of a message of %d bytes (%d on the wire), run %d", h.RawLen, h.WireLen, h.Run)
		}
	}
	return nil
}

// GoodLearningRate reports whether a rate is finite in float32 and not negative.
func GoodLearningRate(rate float64) bool { return rate >= 0 && rate <= math.MaxFloat32 }
