package ps

import (
	"fmt"

	"fptps/gocore/van"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// valuesFrame is the place of the values among a message's frames.
const valuesFrame = 2

// firstRoom is what a frame gets on the word of its sender.
const firstRoom = 64 << 20

// inbox puts the messages of one node together from what comes over the data plane, each frame in one piece of memory.
// The parts of a message come in their order; whatever else comes is read to nowhere. It is pure, and the receive
// loop's alone.
type inbox struct {
	limit  int                                    // maxOpen
	open   map[uint64]*arrival                    // messages that are not whole, by number
	bytes  int                                    // their cost
	wanted func(meta *pspb.Meta, l layout) []byte // where the values of a message are waited for; nil: nowhere
	depot  *depot                                 // memory for other values
}

// delivery is a message that has come over the data plane; where it is refused, its meta alone, if that is known.
type delivery struct {
	meta   *pspb.Meta
	frames [][]byte
	lent   []byte // the depot's memory among them
	landed bool   // the values are where they were waited for
}

// arrival is a message that arrives.
type arrival struct {
	delivery // its meta is nil while that is on its way, and among the frames
	layout   layout
	cost     int
	parts    uint32
	whole    uint32 // parts that are here
	placed   uint32 // parts that have their place; at least as many
	frame    int    // of the next part to be placed
	at       int    // in that frame
}

// place says where a part is read to; nil: nowhere.
func (b *inbox) place(h *wire.Header) []byte {
	if h.Packet == 0 {
		return b.depot.get(int(h.WireLen))
	}
	a := b.open[h.Round]
	if a == nil {
		return nil
	}
	for a.placed < a.parts && a.at == a.layout[a.frame] {
		a.frame, a.at = a.frame+1, 0
	}
	if a.placed == a.parts || h.Packet != a.placed+1 || int(h.WireLen) != min(wire.PacketBytes, a.layout[a.frame]-a.at) {
		b.close(h.Round)
		return nil
	}
	if a.placed == a.whole { // else there is room for all that a header announces
		a.makeRoom()
	}
	a.placed++
	from := a.at
	a.at += int(h.WireLen)
	return a.frames[a.frame][from:a.at:a.at]
}

// makeRoom has place for the next parts of a frame: that of a long one grows with what comes, so that no announcement
// alone takes memory.
func (a *arrival) makeRoom() {
	had, all := a.frames[a.frame], a.layout[a.frame]
	if len(had) < all && len(had)-a.at < (wire.MaxAhead+1)*wire.PacketBytes {
		grown := make([]byte, min(2*len(had), all))
		copy(grown, had[:a.at])
		a.frames[a.frame] = grown
	}
}

func (b *inbox) close(number uint64) {
	b.bytes -= b.open[number].cost
	delete(b.open, number)
}

// arrived takes a part that is where place said. It gives the message that is whole by it, nil while none is; with an
// error the one that is refused.
func (b *inbox) arrived(h *wire.Header, payload []byte) (*delivery, error) {
	if h.Packet == 0 {
		return b.begin(h.Round, payload)
	}
	a := b.open[h.Round]
	if a == nil || h.Packet != a.whole+1 {
		return nil, fmt.Errorf("part %d of message %d, which is not under way", h.Packet, h.Round)
	}
	a.whole++
	if a.whole < a.parts {
		return nil, nil
	}
	b.close(h.Round)
	return a.end()
}

// end gives a message that is whole.
func (a *arrival) end() (_ *delivery, err error) {
	if a.meta == nil {
		a.meta, err = van.DecodeMeta(a.frames[0])
	}
	a.frames = a.frames[1:]
	return &a.delivery, err
}

// begin takes packet 0.
func (b *inbox) begin(number uint64, payload []byte) (*delivery, error) {
	l, frames, err := readFirst(payload)
	if err != nil {
		return nil, err
	}
	a := &arrival{delivery: delivery{frames: frames}, layout: l, cost: l.cost(), frame: len(frames)}
	if len(frames) > 0 {
		if a.meta, err = van.DecodeMeta(frames[0]); err != nil {
			return nil, err
		}
	}
	switch {
	case len(frames) == len(l):
		a.lent = payload
		return a.end()
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

// memory gives the place of a frame, or of its beginning.
func (b *inbox) memory(a *arrival, frame int, l layout) []byte {
	values := frame == valuesFrame
	if values && a.meta != nil {
		if place := b.wanted(a.meta, l); place != nil {
			a.landed = true
			return place
		}
	}
	if !values || l[frame] > firstRoom {
		return make([]byte, min(l[frame], firstRoom))
	}
	a.lent = b.depot.get(l[frame])
	return a.lent
}
