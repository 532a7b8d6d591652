package ps

import (
	"encoding/binary"
	"fmt"

	"fptps/gocore/van"
	"fptps/gocore/wire"
)

// On the data plane a message is the frames that it has over ZeroMQ: meta, keys, values, lens. Packet 0 holds their
// number and lengths, then, in their order, those that fit. From the first that does not fit on, each begins a packet
// of its own, and its packets count on from 1.

const (
	maxFrames = 4
	headBytes = 8 * (1 + maxFrames)
)

// layout is the lengths of a message's frames.
type layout []int

func layoutOf(frames [][]byte) layout {
	l := make(layout, len(frames))
	for i, frame := range frames {
		l[i] = len(frame)
	}
	return l
}

// inside is how many frames are in packet 0, and how long that is.
func (l layout) inside() (frames, bytes int) {
	bytes = headBytes
	for _, n := range l {
		if bytes+n > wire.PacketBytes {
			break
		}
		frames, bytes = frames+1, bytes+n
	}
	return frames, bytes
}

// cost is about what the message takes in memory while it is on its way.
func (l layout) cost() int {
	total := wire.PacketBytes
	for _, n := range l {
		total += n
	}
	return total
}

// first makes packet 0, in memory that get lends.
func first(frames [][]byte, get func(int) []byte) []byte {
	l := layoutOf(frames)
	inside, bytes := l.inside()
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

// readFirst reads packet 0: the message's layout, and the frames that are in it.
func readFirst(b []byte) (layout, [][]byte, error) {
	if len(b) < headBytes {
		return nil, nil, fmt.Errorf("a message that begins with %d bytes", len(b))
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
	inside, bytes := l.inside()
	if len(b) != bytes {
		return nil, nil, fmt.Errorf("a message that begins with %d bytes, and says that it does with %d", len(b), bytes)
	}
	var frames [][]byte
	at := headBytes
	for _, n := range l[:inside] {
		frames = append(frames, b[at:at+n:at+n])
		at += n
	}
	return l, frames, nil
}
