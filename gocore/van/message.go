package van

import (
	"bytes"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire/pspb"
)

const (
	// MaxMeta bounds the first frame. The longest message is the list of all nodes
	// (2 x wire.MaxWorkers, at most about 300 bytes each).
	MaxMeta = 1 << 20
	// MaxFrame bounds every frame: what an int32 counts in ps-lite's lengths.
	MaxFrame = 1<<31 - 1
	// MaxFrames bounds the frames of a message: meta and ps-lite's keys, values and
	// lengths, with some room.
	MaxFrames = 8
	// maxDepth bounds messages within messages: Meta, Control, Node.
	maxDepth = 8
)

// Encode gives the first frame of m.
func Encode(m *pspb.Meta) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err == nil && len(b) > MaxMeta {
		err = fmt.Errorf("message of %d bytes, at most %d", len(b), MaxMeta)
	}
	return b, err
}

// Decode makes an envelope of a message's frames. Whatever the bytes, it allocates
// in proportion to MaxMeta at most.
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

// DecodeMeta reads a message's first frame. It keeps none of b.
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

// identity is what a node's connections are called: ps-lite's "ps<id>", and between
// our own nodes "ps<id>-<secret>". A ROUTER gives a connection's place to whoever
// connects under the same name, which therefore no stranger must be able to guess.
func identity(id int, secret string) string {
	name := "ps" + strconv.Itoa(id)
	if secret != "" {
		name += "-" + secret
	}
	return name
}

// parseIdentity gives the id in an identity; 0 for what no identified node sends.
func parseIdentity(b []byte) int {
	b, _, _ = bytes.Cut(b, []byte("-"))
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
