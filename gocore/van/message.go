package van

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire/pspb"
)

const (
	// MaxMeta bounds the first frame. The longest message is the list of all nodes
	// (2 x wire.MaxWorkers, at most about 300 bytes each).
	MaxMeta = 1 << 20
	// MaxFrame bounds every frame: ps-lite's lengths are int32.
	MaxFrame = 1<<31 - 1
	// MaxFrames bounds the frames of a message: meta and ps-lite's keys, values and
	// lengths, with some room.
	MaxFrames = 8
	// maxDepth bounds messages within messages: Meta, Control, Node.
	maxDepth = 8
)

// Encode encodes the first frame of m.
func Encode(m *pspb.Meta) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err == nil && len(b) > MaxMeta {
		err = fmt.Errorf("message of %d bytes, at most %d", len(b), MaxMeta)
	}
	return b, err
}

// Decode decodes the frames of a message. For any bytes it allocates at most in proportion
// to MaxMeta.
func Decode(identity []byte, frames [][]byte) (*Envelope, error) {
	if len(frames) == 0 || len(frames) > MaxFrames {
		return nil, fmt.Errorf("message of %d frames, expected 1 to %d", len(frames), MaxFrames)
	}
	m, err := DecodeMeta(frames[0])
	if err != nil {
		return nil, err
	}
	return &Envelope{From: parseIdentity(identity), Meta: m, Data: frames[1:]}, nil
}

// DecodeMeta decodes the first frame of a message. It does not keep b.
func DecodeMeta(b []byte) (*pspb.Meta, error) {
	if len(b) > MaxMeta {
		return nil, fmt.Errorf("message of %d bytes, at most %d", len(b), MaxMeta)
	}
	m := new(pspb.Meta)
	options := proto.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: maxDepth}
	if err := options.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("not a message of ps-lite: %w", err)
	}
	return m, nil
}

// identity is the ZeroMQ identity of a node's connections, as in ps-lite.
func identity(id int) string { return "ps" + strconv.Itoa(id) }

// parseIdentity returns the id in an identity; 0 for an invalid one.
func parseIdentity(b []byte) int {
	if len(b) < 3 || len(b) > 7 || b[0] != 'p' || b[1] != 's' || b[2] == '0' {
		return 0
	}
	id := 0
	for _, c := range b[2:] {
		if c < '0' || c > '9' {
			return 0
		}
		id = id*10 + int(c-'0')
	}
	return id
}
