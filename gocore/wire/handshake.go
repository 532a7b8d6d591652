package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Sizes of the handshake. The dialing side sends a Hello; the other side sends an Answer. The
// reason of a refusal follows the fixed part of the Answer.
const (
	HelloBytes  = 64
	AnswerBytes = 32
	// MaxReason bounds the text of a refusal: a sentence.
	MaxReason = 512
)

const (
	helloMagic  = 0x48545046 // "FPTH", little endian
	answerMagic = 0x41545046 // "FPTA", little endian
)

// TokenBytes is the size of the cluster's token.
const TokenBytes = 16

// Purpose says what the dialing node wants.
type Purpose uint8

// The purposes.
const (
	Connect Purpose = iota // a connection, which is lost when it breaks
	Endure                 // a connection, which is made again when it breaks
	Resume                 // to go on with a connection that has broken
	Wake                   // to be dialed: the connection has broken, and the dialed node is the one to dial
	purposeEnd
)

// Hello is the first message on a connection. It identifies the dialing node and the node that it wants to reach.
type Hello struct {
	Version       uint16 // of the data plane's protocol; if it differs, only the magic is meaningful
	Lane          uint16 // the lane of this connection
	ID            uint32 // the node that dials
	To            uint32 // the node that it wants to reach
	Incarnation   uint64 // of the node that dials
	ToIncarnation uint64
	Packet        uint32 // PacketBytes of the node that dials
	Token         [TokenBytes]byte
	Purpose       Purpose
	Socket        uint16 // Resume: number of the new socket of the connection; Wake: of the broken one
	Received      uint32 // Resume: packets that have arrived over the connection, modulo 2^32
}

// NewHello makes a Hello with this node's version and packet size, for lane 0.
func NewHello(id uint32, incarnation uint64, to uint32, toIncarnation uint64, token [TokenBytes]byte) Hello {
	return Hello{Version: version, ID: id, To: to, Incarnation: incarnation, ToIncarnation: toIncarnation,
		Packet: PacketBytes, Token: token}
}

// Put encodes h into b[:HelloBytes].
func (h *Hello) Put(b []byte) {
	_ = b[HelloBytes-1]
	le := binary.LittleEndian
	le.PutUint32(b[0:], helloMagic)
	le.PutUint16(b[4:], h.Version)
	le.PutUint16(b[6:], h.Lane)
	le.PutUint32(b[8:], h.ID)
	le.PutUint32(b[12:], h.To)
	le.PutUint64(b[16:], h.Incarnation)
	le.PutUint64(b[24:], h.ToIncarnation)
	le.PutUint32(b[32:], h.Packet)
	copy(b[36:52], h.Token[:])
	b[52], b[53] = byte(h.Purpose), 0
	le.PutUint16(b[54:], h.Socket)
	le.PutUint32(b[56:], h.Received)
	le.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
}

// Get decodes b[:HelloBytes]. It returns an error if the bytes are not a Hello; Compatible and
// the receiving node check its fields.
func (h *Hello) Get(b []byte) error {
	_ = b[HelloBytes-1]
	le := binary.LittleEndian
	if le.Uint32(b) != helloMagic {
		return fmt.Errorf("not an fptps handshake (magic %#08x)", le.Uint32(b))
	}
	if got, want := le.Uint32(b[60:]), crc32.Checksum(b[:60], castagnoli); got != want {
		return fmt.Errorf("handshake checksum %#08x, expected %#08x", got, want)
	}
	*h = Hello{
		Version: le.Uint16(b[4:]), Lane: le.Uint16(b[6:]), ID: le.Uint32(b[8:]), To: le.Uint32(b[12:]),
		Incarnation: le.Uint64(b[16:]), ToIncarnation: le.Uint64(b[24:]), Packet: le.Uint32(b[32:]),
		Purpose: Purpose(b[52]), Socket: le.Uint16(b[54:]), Received: le.Uint32(b[56:]),
	}
	copy(h.Token[:], b[36:52])
	return nil
}

// Compatible returns why this node cannot communicate with the sender of h; "" if it can.
func (h *Hello) Compatible() string {
	switch {
	case h.Version != version:
		return fmt.Sprintf("data plane version %d, this node speaks %d: install the same fptps everywhere", h.Version, version)
	case h.Packet != PacketBytes:
		return fmt.Sprintf("packets of %d bytes, this node's are of %d: install the same fptps everywhere", h.Packet, PacketBytes)
	case h.Purpose >= purposeEnd:
		return fmt.Sprintf("unknown purpose %d: install the same fptps everywhere", h.Purpose)
	}
	return ""
}

// PutAnswer encodes the answer to a Hello: acceptance if reason is empty, else a refusal with
// the reason, truncated to MaxReason.
func PutAnswer(reason string) []byte { return putAnswer(reason, 0) }

// PutResumed encodes the acceptance of a Hello that resumes a connection, with the number of packets that have arrived over it.
func PutResumed(received uint32) []byte { return putAnswer("", received) }

func putAnswer(reason string, received uint32) []byte {
	text := PutReason(reason)
	b := make([]byte, AnswerBytes+len(text))
	le := binary.LittleEndian
	le.PutUint32(b[0:], answerMagic)
	le.PutUint16(b[4:], version)
	le.PutUint16(b[6:], uint16(len(text)))
	le.PutUint32(b[8:], received)
	le.PutUint32(b[28:], crc32.Checksum(b[:28], castagnoli))
	copy(b[AnswerBytes:], text)
	return b
}

// GetAnswer decodes the fixed part of an answer, b[:AnswerBytes]. It returns the length of
// the reason that follows, 0 if the answer accepts, and the number of PutResumed.
func GetAnswer(b []byte) (reason int, received uint32, err error) {
	_ = b[AnswerBytes-1]
	le := binary.LittleEndian
	if le.Uint32(b) != answerMagic {
		return 0, 0, fmt.Errorf("not an fptps handshake's answer (magic %#08x)", le.Uint32(b))
	}
	if got, want := le.Uint32(b[28:]), crc32.Checksum(b[:28], castagnoli); got != want {
		return 0, 0, fmt.Errorf("handshake answer's checksum %#08x, expected %#08x", got, want)
	}
	reason = int(le.Uint16(b[6:]))
	if reason > MaxReason {
		return 0, 0, fmt.Errorf("refusal of %d bytes, at most %d", reason, MaxReason)
	}
	if v := le.Uint16(b[4:]); v != version && reason == 0 {
		return 0, 0, fmt.Errorf("welcome in data plane version %d, this node speaks %d", v, version)
	}
	return reason, le.Uint32(b[8:]), nil
}

// PutReason encodes the text of a refusal, truncated to MaxReason.
func PutReason(text string) []byte { return []byte(printable(text)) }

// GetReason decodes the text of a refusal, and makes it safe to print.
func GetReason(b []byte) string { return printable(string(b)) }

// printable replaces control characters, and truncates to MaxReason.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	for len(s) > MaxReason {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	return s
}
