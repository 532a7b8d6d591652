package ps

import (
	"fmt"

	"fptps/gocore/van"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// valuesFrame is the index of the values among a message's frames.
const valuesFrame = 2

// initialFrameBytes bounds the memory that is allocated for a frame before any of it has arrived.
const initialFrameBytes = 64 << 20

// inbox reassembles the messages of one peer from the packets of the data plane, each frame in contiguous memory. The
// packets of a message must arrive in order; others are discarded. It is pure, and used by the receive loop alone.
type inbox struct {
	limit        int                                    // maxOpen
	open         map[uint64]*incoming                   // incomplete messages, by number
	bytes        int                                    // their cost
	answerBuffer func(meta *pspb.Meta, l layout) []byte // the array that waits for the values of a message; nil if none does
	pool         *pool                                  // memory for values without such an array
}

// delivery is a message that arrived over the data plane. With an error it holds the meta alone, if that is known.
type delivery struct {
	meta    *pspb.Meta
	frames  [][]byte
	pooled  []byte // buffer of the pool that frames refer to
	inPlace bool   // the values are in the requester's array
}

// incoming is a message that has arrived in part.
type incoming struct {
	delivery // while meta has not arrived, it is nil, and frames[0] is for it
	layout   layout
	cost     int
	parts    uint32
	arrived  uint32 // parts that have arrived
	placed   uint32 // parts with an assigned place; at least as many as arrived
	frame    int    // of the next part to place
	offset   int    // in that frame
}

// place returns the memory to read a packet into; nil to discard it.
func (b *inbox) place(h *wire.Header) []byte {
	if h.Packet == 0 {
		return b.pool.get(int(h.WireLen))
	}
	a := b.open[h.Number]
	if a == nil {
		return nil
	}
	for a.placed < a.parts && a.offset == a.layout[a.frame] {
		a.frame, a.offset = a.frame+1, 0
	}
	if a.placed == a.parts || h.Packet != a.placed+1 || int(h.WireLen) != min(wire.PacketBytes, a.layout[a.frame]-a.offset) {
		b.close(h.Number)
		return nil
	}
	if a.placed == a.arrived { // else frame has memory for all packets that the header announced
		a.makeRoom()
	}
	a.placed++
	from := a.offset
	a.offset += int(h.WireLen)
	return a.frames[a.frame][from:a.offset:a.offset]
}

// makeRoom makes memory for the next packets of a frame. A long frame grows as its bytes arrive, so that a peer cannot make
// this node allocate by an announcement alone.
func (a *incoming) makeRoom() {
	had, all := a.frames[a.frame], a.layout[a.frame]
	if len(had) < all && len(had)-a.offset < (wire.MaxAhead+1)*wire.PacketBytes {
		grown := make([]byte, min(2*len(had), all))
		copy(grown, had[:a.offset])
		a.frames[a.frame] = grown
	}
}

func (b *inbox) close(number uint64) {
	b.bytes -= b.open[number].cost
	delete(b.open, number)
}

// handleArrived handles a packet after it was read into place. It returns the message that the packet completes, nil if it
// completes none; with an error, the message that is refused.
func (b *inbox) handleArrived(h *wire.Header, payload []byte) (*delivery, error) {
	if h.Packet == 0 {
		return b.begin(h.Number, payload)
	}
	a := b.open[h.Number]
	if a == nil || h.Packet != a.arrived+1 {
		return nil, fmt.Errorf("part %d of message %d, which is not under way", h.Packet, h.Number)
	}
	a.arrived++
	if a.arrived < a.parts {
		return nil, nil
	}
	b.close(h.Number)
	return a.decode()
}

// decode returns a complete message.
func (a *incoming) decode() (_ *delivery, err error) {
	if a.meta == nil {
		a.meta, err = van.DecodeMeta(a.frames[0])
	}
	a.frames = a.frames[1:]
	return &a.delivery, err
}

// begin handles packet 0 of a message.
func (b *inbox) begin(number uint64, payload []byte) (*delivery, error) {
	l, frames, err := decodeFirst(payload)
	if err != nil {
		return nil, err
	}
	a := &incoming{delivery: delivery{frames: frames}, layout: l, cost: l.cost(), frame: len(frames)}
	if len(frames) > 0 {
		if a.meta, err = van.DecodeMeta(frames[0]); err != nil {
			return nil, err
		}
	}
	switch {
	case len(frames) == len(l):
		a.pooled = payload
		return a.decode()
	case b.open[number] != nil:
		return &a.delivery, fmt.Errorf("message %d begins twice", number)
	case len(b.open) > 0 && b.bytes+a.cost > b.limit:
		return &a.delivery, fmt.Errorf("a message of %d bytes begins while others of %d are under way", a.cost, b.bytes)
	}
	for i := len(frames); i < len(l); i++ {
		a.parts += wire.Packets(uint64(l[i]))
		a.frames = append(a.frames, b.memory(a, i, l))
	}
	b.open[number] = a
	b.bytes += a.cost
	return nil, nil
}

// memory returns the memory of a frame, or of the beginning of a long one.
func (b *inbox) memory(a *incoming, frame int, l layout) []byte {
	values := frame == valuesFrame
	if values && a.meta != nil {
		if place := b.answerBuffer(a.meta, l); place != nil {
			a.inPlace = true
			return place
		}
	}
	if !values || l[frame] > initialFrameBytes {
		return make([]byte, min(l[frame], initialFrameBytes))
	}
	a.pooled = b.pool.get(l[frame])
	return a.pooled
}
