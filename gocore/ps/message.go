package ps

import (
	"encoding/binary"
	"fmt"
	"math"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// KVs holds keys and their values.
type KVs struct {
	Keys  []uint64   // strictly ascending
	Vals  []byte     // the elements of all values, concatenated
	DType wire.DType // of the elements
	Lens  []int32    // number of elements of each value; nil if all values have the same
}

// Message is a request or its response.
type Message struct {
	Peer       int // the sender, or the receiver
	App        int32
	Customer   int32 // of the requesting node
	Timestamp  int32 // of the request, at its customer
	Head       int32 // of a Simple message the number, else the command
	Body       []byte
	Request    bool
	Simple     bool // without keys and values
	Push       bool
	Pull       bool
	Priority   int32
	KVs        KVs
	Failure    string // of a response: why the request failed
	PeerDeaths int    // of a received request, and of its answer: the number of nodes that had died with Peer's id

	done    func() // of a message to send: called when its values are no longer read; nil if the values are the caller's
	pooled  []byte // of a received message: the buffer of the pool that holds its values
	inPlace bool   // of a received message: its values are in the requester's array
}

// release calls done, once.
func (m *Message) release() {
	if m.done != nil {
		m.done()
		m.done = nil
	}
}

const noReason = "no reason was given"

// Parse decodes a message of peer. The message keeps the frame of the values, and copies of the others.
func Parse(peer int, meta *pspb.Meta, frames [][]byte) (*Message, error) {
	m := headOf(peer, meta)
	if meta.AppId == nil || meta.Timestamp == nil {
		return nil, fmt.Errorf("a message without app or timestamp")
	}
	if failure, failed := meta.GetOwn().(*pspb.Meta_Failure); failed {
		if m.Failure = failure.Failure.GetText(); m.Failure == "" {
			m.Failure = noReason
		}
		if m.Request {
			return m, fmt.Errorf("a request with the text of a failure")
		}
		return m, nil
	}
	if m.Simple {
		return m, nil
	}
	// In old versions of ps-lite a message is either a push or, if that flag is not set, a pull.
	m.Pull = m.Pull || !m.Push
	return m, m.parseKVs(meta, frames)
}

// headOf decodes a message without its keys and values.
func headOf(peer int, meta *pspb.Meta) *Message {
	return &Message{
		Peer: peer, App: meta.GetAppId(), Customer: meta.GetCustomerId(), Timestamp: meta.GetTimestamp(), Head: meta.GetHead(),
		Body: meta.GetBody(), Request: meta.GetRequest(), Simple: meta.GetSimpleApp(),
		Push: meta.GetPush(), Pull: meta.GetPull(), Priority: meta.GetPriority(),
	}
}

func (m *Message) parseKVs(meta *pspb.Meta, frames [][]byte) error {
	switch len(frames) {
	case 0:
		if m.Request || m.carries() {
			return fmt.Errorf("%s without its data frames", m.kind())
		}
		return nil
	case 1:
		return fmt.Errorf("%s with keys and no frame of values", m.kind())
	case 2, 3:
	default:
		return fmt.Errorf("%s of %d data frames, at most 3", m.kind(), len(frames))
	}
	m.KVs.Vals, m.KVs.DType = frames[1], dtypeOf(meta)
	if len(frames[0])%8 != 0 {
		return fmt.Errorf("keys of %d bytes, 8 each", len(frames[0]))
	}
	m.KVs.Keys = make([]uint64, len(frames[0])/8)
	for i := range m.KVs.Keys {
		m.KVs.Keys[i] = binary.LittleEndian.Uint64(frames[0][8*i:])
	}
	if len(frames) == 3 {
		if len(frames[2])%4 != 0 {
			return fmt.Errorf("lens of %d bytes, 4 each", len(frames[2]))
		}
		m.KVs.Lens = make([]int32, len(frames[2])/4)
		for i := range m.KVs.Lens {
			m.KVs.Lens[i] = int32(binary.LittleEndian.Uint32(frames[2][4*i:]))
		}
	}
	if len(m.KVs.Lens) == 0 {
		m.KVs.Lens = nil
	}
	return m.KVs.validate(m.carries())
}

// carries reports whether the message must have values.
func (m *Message) carries() bool { return m.Request && m.Push || !m.Request && m.Pull }

func (m *Message) kind() string {
	kind := map[[2]bool]string{{true, false}: "a push", {false, true}: "a pull", {true, true}: "a push and pull"}[[2]bool{m.Push, m.Pull}]
	if !m.Request {
		kind = "the answer to " + kind
	}
	return kind
}

// validate checks that keys, values and lengths are consistent; values says whether there must be values.
func (k *KVs) validate(values bool) error {
	for i := 1; i < len(k.Keys); i++ {
		if k.Keys[i] <= k.Keys[i-1] {
			return fmt.Errorf("key %d after key %d: keys are ascending, each once", k.Keys[i], k.Keys[i-1])
		}
	}
	if k.Lens != nil && len(k.Lens) != len(k.Keys) {
		return fmt.Errorf("%d lens for %d keys", len(k.Lens), len(k.Keys))
	}
	total := 0
	for _, n := range k.Lens {
		if n < 0 {
			return fmt.Errorf("a length of %d", n)
		}
		total += int(n)
	}
	if !values {
		if len(k.Vals) > 0 {
			return fmt.Errorf("%d bytes of values where none belong", len(k.Vals))
		}
		return nil
	}
	size := k.DType.Size()
	if size == 0 {
		return fmt.Errorf("values of an unknown dtype")
	}
	n := len(k.Vals) / size
	switch {
	case len(k.Vals)%size != 0:
		return fmt.Errorf("%d bytes of values, elements of %v have %d", len(k.Vals), k.DType, size)
	case k.Lens != nil && total != n:
		return fmt.Errorf("lens add up to %d, and there are %d values", total, n)
	case k.Lens == nil && len(k.Keys) == 0 && n > 0:
		return fmt.Errorf("%d values without keys", n)
	case k.Lens == nil && len(k.Keys) > 0 && (n == 0 || n%len(k.Keys) != 0):
		return fmt.Errorf("%d values for %d keys: as many for each are expected", n, len(k.Keys))
	}
	return nil
}

// length is the number of elements of value i. There must be values.
func (k *KVs) length(i int) int {
	if k.Lens != nil {
		return int(k.Lens[i])
	}
	return len(k.Vals) / k.DType.Size() / len(k.Keys)
}

// Encode encodes m. The frame of the values is m.KVs.Vals itself, not a copy.
func (m *Message) Encode() (*pspb.Meta, [][]byte) {
	meta := &pspb.Meta{
		Head: proto.Int32(m.Head), Request: proto.Bool(m.Request), SimpleApp: proto.Bool(m.Simple), AppId: proto.Int32(m.App),
		Timestamp: proto.Int32(m.Timestamp), CustomerId: proto.Int32(m.Customer), Push: proto.Bool(m.Push), Pull: proto.Bool(m.Pull),
		Priority: proto.Int32(m.Priority),
	}
	if len(m.Body) > 0 {
		meta.Body = m.Body
	}
	if m.Failure != "" {
		meta.Own = &pspb.Meta_Failure{Failure: &pspb.Failure{Text: proto.String(m.Failure)}}
	}
	if m.Simple || len(m.KVs.Keys) == 0 {
		return meta, nil
	}
	keys := make([]byte, 0, 8*len(m.KVs.Keys))
	for _, key := range m.KVs.Keys {
		keys = binary.LittleEndian.AppendUint64(keys, key)
	}
	frames := [][]byte{keys, m.KVs.Vals}
	meta.DataType = []int32{typeUint64, typeOf(m.KVs.DType)}
	meta.Dtype = proto.Uint32(uint32(m.KVs.DType))
	if m.KVs.Lens != nil {
		lens := make([]byte, 0, 4*len(m.KVs.Lens))
		for _, n := range m.KVs.Lens {
			lens = binary.LittleEndian.AppendUint32(lens, uint32(n))
		}
		frames, meta.DataType = append(frames, lens), append(meta.DataType, typeInt32)
	}
	total := 0
	for _, frame := range frames {
		total += len(frame)
	}
	meta.DataSize = proto.Int32(int32(min(total, math.MaxInt32)))
	return meta, frames
}

// ps-lite's numbers of element types.
const (
	typeChar   = 0
	typeInt32  = 3
	typeUint64 = 8
	typeOther  = 11
)

var types = map[int32]wire.DType{
	typeChar: wire.Uint8, 1: wire.Int8, 2: wire.Int16, typeInt32: wire.Int32, 4: wire.Int64,
	5: wire.Uint8, 6: wire.Uint16, 7: wire.Uint32, typeUint64: wire.Uint64, 9: wire.Float32, 10: wire.Float64,
	typeOther: wire.Uint8,
}

// dtypeOf is the element type of a message's values; 0 if it is unknown. Plain bytes
// (ps-lite's char, and types without a number) are uint8.
func dtypeOf(meta *pspb.Meta) wire.DType {
	if meta.Dtype != nil {
		if meta.GetDtype() > math.MaxUint8 {
			return 0
		}
		return wire.DType(meta.GetDtype())
	}
	if len(meta.DataType) < 2 {
		return wire.Uint8
	}
	return types[meta.DataType[1]]
}

// typeOf is ps-lite's number of an element type.
func typeOf(d wire.DType) int32 {
	for number, dtype := range types {
		if dtype == d && number != typeChar && number != typeOther {
			return number
		}
	}
	return typeOther
}
