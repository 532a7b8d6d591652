// Package wire is the layout of what travels between nodes: the data plane's
// header and handshake, element types, limits, and (in pspb) the control plane's
// protobuf messages. It encodes and decodes and does no IO.
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

// Kind says what a packet is.
type Kind uint8

// The kinds of packets.
const (
	Contrib Kind = iota + 1 // a worker's values for one packet of one round
	Sum                     // the sum of one packet; no payload means that it is all zeros
	Empty                   // zeros from one worker for Run packets, without the payload
	Ask                     // a worker asks an aggregator about a tensor: what is in Op, the ask's number in Round
	Missing                 // an aggregator tells a worker whom a round waits for: payload is node ids, uint32 each
	Goodbye                 // the last packet of a connection that ends in good order
	Rate                    // a receiver tells how fast this connection's sender may send: bytes per second in Round
	Answer                  // to an Ask, whose number and Op it has
	Part                    // of an application's message (package ps): message number Round, Packet from 0
	kindEnd
)

// Op is what the aggregator does: with the contributions, or for who asks.
type Op uint8

// The operations on contributions. What can be asked is in ask.go.
const (
	OpSum  Op = iota // the sum
	OpMean           // the sum divided by the number of contributors, once, on the aggregator
	opEnd
)

// Codec is what a payload is.
type Codec uint8

// The codecs.
const (
	CodecPlain Codec = iota // the elements as they are
	CodecRows               // some rows of a packet of a table; see rows.go
	codecEnd
)

// Flags of a packet.
const (
	FlagScaled       uint8 = 1 << iota // a mean's division is done
	FlagAgain                          // sent again after a failure
	FlagClash                          // workers named different operations: there is no sum
	FlagLast                           // Contrib: the last packet that its sender has of this tensor and round for this aggregator
	FlagLearningRate                   // Contrib and Empty: LearningRate holds from this round on
	FlagRefused                        // Answer: what was asked is not done; the payload says why
	flagEnd
)

// Header goes before every payload. All integers travel little endian.
type Header struct {
	Kind         Kind
	Flags        uint8
	DType        DType
	Op           Op
	Codec        Codec  // what the payload is
	Tensor       uint32 // id given by the scheduler
	Packet       uint32 // number within the tensor
	Run          uint32 // Empty, and Sum of a table: how many packets; else 1
	Round        uint64 // the tensor's n-th push; 0 is init. Ask and Answer: number of the ask
	Epoch        uint32 // membership that the contribution counts in
	Plan         uint32 // version of the shares that cut it, to assert that no round is split
	Generation   uint32 // deaths that the sender knows of
	Priority     int32  // larger is more urgent
	Contributors uint16 // Sum: how many workers took part; Contrib and Empty: the tensor's Policy; Ask and Answer: Part
	Ahead        uint16 // how many packets of the same length follow directly, with the next numbers of this tensor and round
	RawLen       uint32 // bytes of the elements; Empty: of the last packet of the run
	WireLen      uint32 // bytes of payload that follow
	LearningRate float32
}

// Policy is the consistency of the tensor that a Contrib or an Empty is for.
func (h *Header) Policy() Policy { return Policy(h.Contributors) }

// Put encodes h into b[:HeaderBytes].
func (h *Header) Put(b []byte) {
	_ = b[HeaderBytes-1]
	le := binary.LittleEndian
	le.PutUint16(b[0:], magic)
	b[2], b[3], b[4], b[5], b[6], b[7] = version, byte(h.Kind), h.Flags, byte(h.DType), byte(h.Op), byte(h.Codec)
	le.PutUint32(b[8:], h.Tensor)
	le.PutUint32(b[12:], h.Packet)
	le.PutUint32(b[16:], h.Run)
	le.PutUint32(b[20:], h.Epoch)
	le.PutUint64(b[24:], h.Round)
	le.PutUint32(b[32:], h.Plan)
	le.PutUint32(b[36:], h.Generation)
	le.PutUint32(b[40:], uint32(h.Priority))
	le.PutUint16(b[44:], h.Contributors)
	le.PutUint16(b[46:], h.Ahead)
	le.PutUint32(b[48:], h.RawLen)
	le.PutUint32(b[52:], h.WireLen)
	le.PutUint32(b[56:], math.Float32bits(h.LearningRate))
	le.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Get decodes and checks b[:HeaderBytes]. Whatever the bytes, the header of a nil
// error is one that some node could have sent: no field of it makes the reader
// allocate more than a packet, or the slots of MaxRun packets.
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
		Tensor: le.Uint32(b[8:]), Packet: le.Uint32(b[12:]), Run: le.Uint32(b[16:]), Epoch: le.Uint32(b[20:]),
		Round: le.Uint64(b[24:]), Plan: le.Uint32(b[32:]), Generation: le.Uint32(b[36:]),
		Priority: int32(le.Uint32(b[40:])), Contributors: le.Uint16(b[44:]), Ahead: le.Uint16(b[46:]),
		RawLen: le.Uint32(b[48:]), WireLen: le.Uint32(b[52:]),
		LearningRate: math.Float32frombits(le.Uint32(b[56:])),
	}
	return h.check()
}

// MayLead tells whether the header of such a packet may announce those that follow it. The first part of a message may
// not: where the others go is not known before it has been read.
func MayLead(k Kind, packet uint32) bool {
	return k == Contrib || k == Sum || k == Part && packet > 0
}

// check rejects what no node sends.
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
	contributes := h.Kind == Contrib || h.Kind == Empty
	if contributes && !h.Policy().Valid() {
		return fmt.Errorf("unknown consistency %d", h.Contributors)
	}
	if !h.goodLearningRate(contributes) {
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

// checkKind is the part of check for what a kind demands of its payload, where that is plain.
func (h *Header) checkKind() error {
	switch h.Kind {
	case Contrib, Sum:
		if !h.DType.Valid() || h.RawLen == 0 || int(h.RawLen)%h.DType.Size() != 0 {
			return fmt.Errorf("packet of %d bytes of %v", h.RawLen, h.DType)
		}
		if h.Run != 1 || h.WireLen != h.RawLen && !(h.Kind == Sum && h.WireLen == 0) {
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
	case Goodbye, Rate:
		if h.WireLen != 0 {
			return fmt.Errorf("goodbye or rate with %d bytes", h.WireLen)
		}
	case Ask, Answer:
		return h.checkAsk()
	case Part:
		if h.WireLen == 0 || h.RawLen != h.WireLen || h.Run != 1 {
			return fmt.Errorf("part of a message of %d bytes (%d on the wire), run %d", h.RawLen, h.WireLen, h.Run)
		}
	}
	return nil
}

// goodLearningRate tells whether the rate is one where the flag says so, and nothing elsewhere.
func (h *Header) goodLearningRate(contributes bool) bool {
	if h.Flags&FlagLearningRate == 0 {
		return math.Float32bits(h.LearningRate) == 0
	}
	return contributes && GoodLearningRate(float64(h.LearningRate))
}

// GoodLearningRate tells whether a rate is 0 or more, and a number that float32 holds.
func GoodLearningRate(rate float64) bool { return rate >= 0 && rate <= math.MaxFloat32 }
