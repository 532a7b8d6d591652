package ps

import (
	"encoding/binary"
	"fmt"

	"fptps/gocore/van"
	"fptps/gocore/wire"
)

// Over the data plane a message has the same frames as over ZeroMQ: meta, keys, values, lens. Packet 0 holds the number of
// frames, their lengths, and then, in order, the frames that fit. From the first frame that does not fit on, each frame
// begins a new packet; these packets are numbered from 1.

const (
	maxFrames = 4
	headBytes = 8 * (1 + maxFrames)
)

// layout holds the lengths of a message's frames.
type layout []int

func layoutOf(frames [][]byte) layout {
	l := make(layout, len(frames))
	for i, frame := range frames {
		l[i] = len(frame)
	}
	return l
}

// inFirstPacket is the number of frames in packet 0, and the length of packet 0.
func (l layout) inFirstPacket() (frames, bytes int) {
	bytes = headBytes
	for _, n := range l {
		if bytes+n > wire.PacketBytes {
			break
		}
		frames, bytes = frames+1, bytes+n
	}
	return frames, bytes
}

// cost is about the memory that the message takes until it is complete.
func (l layout) cost() int {
	total := wire.PacketBytes
	for _, n := range l {
		total += n
	}
	return total
}

// encodeFirst encodes packet 0 into memory from get.
func encodeFirst(frames [][]byte, get func(int) []byte) []byte {
	l := layoutOf(frames)
	inside, bytes := l.inFirstPacket()
	b := get(bytes)[:headBytes]
	clear(b)
	binary.LittleEndian.PutUint64(b, uint64(len(l)))
	for i, n := range l {
		binary.LittleEndian.PutUint64(b[8*(1+i):], uint64(n))
	}
	for _, frame := range frames[:inside] {
		b = append(b, frame...)
	}
	return b
}

// decodeFirst decodes packet 0: the message's layout, and the frames that it holds.
func decodeFirst(b []byte) (layout, [][]byte, error) {
	if len(b) < headBytes {
		return nil, nil, fmt.Errorf("packet 0 has %d bytes, less than its header", len(b))
	}
	count := binary.LittleEndian.Uint64(b)
	if count < 1 || count > maxFrames {
		return nil, nil, fmt.Errorf("a message of %d frames", count)
	}
	l := make(layout, count)
	for i := range l {
		n := binary.LittleEndian.Uint64(b[8*(1+i):])
		if n > van.MaxFrame || i == 0 && n > van.MaxMeta {
			return nil, nil, fmt.Errorf("a frame of %d bytes", n)
		}
		l[i] = int(n)
	}
	inside, bytes := l.inFirstPacket()
	if len(b) != bytes {
		return nil, nil, fmt.Errorf("packet 0 has %d bytes, but its header announces %d", len(b), bytes)
	}
	var frames [][]byte
	at := headBytes
	for _, n := range l[:inside] {
		frames = append(frames, b[at:at+n:at+n])
		at += n
	}
	return l, frames, nil
}
