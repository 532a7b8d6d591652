package ps

import (
	"fmt"
	"slices"
	"sync"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/transport"
	"fptps/gocore/van"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// link carries all messages to and from a peer over the data plane. Using it for all of them keeps their order.
type link struct {
	out *outbox
	in  *inbox
}

// links are a node's links.
type links struct {
	sync.RWMutex
	byPeer  map[int]*link
	discard [wire.PacketBytes]byte // receives packets that are discarded
}

func (l *links) get(id int) *link {
	l.RLock()
	defer l.RUnlock()
	return l.byPeer[id]
}

// Link sends messages for the given nodes over the data plane from now on; an existing link is replaced. It must be called
// before the first message of any of them arrives.
func (o *Office) Link(plane Plane, ids ...int) {
	o.links.Lock()
	defer o.links.Unlock()
	for _, id := range ids {
		o.links.byPeer[id] = &link{
			out: &outbox{peer: uint32(id), plane: plane, pool: &o.pool, limit: maxOpen},
			in: &inbox{limit: maxOpen, open: map[uint64]*incoming{}, pool: &o.pool, answerBuffer: func(meta *pspb.Meta, l layout) []byte {
				return o.answerBuffer(id, meta, l)
			}},
		}
	}
}

// DropPartial drops the incomplete messages of a node whose connection has ended. Like Place, it is called by the receive
// loop.
func (o *Office) DropPartial(id int) {
	if l := o.links.get(id); l != nil {
		l.in.open, l.in.bytes = map[uint64]*incoming{}, 0
	}
}

// answerBuffer returns the array that waits for the values of a message; nil if none does.
func (o *Office) answerBuffer(peer int, meta *pspb.Meta, l layout) []byte {
	o.mu.Lock()
	c := o.mu.customers[o.addressOf(meta.GetAppId(), meta.GetCustomerId())]
	o.mu.Unlock()
	if c == nil || meta.GetRequest() || meta.GetSimpleApp() {
		return nil
	}
	lens := len(l) > valuesFrame+1 && l[valuesFrame+1] > 0
	return c.answerBuffer(meta.GetTimestamp(), peer, l[valuesFrame], dtypeOf(meta), lens)
}

// Place implements transport.Handler for packets of the kind wire.Part.
func (o *Office) Place(peer uint32, h *wire.Header) transport.Destination {
	if l := o.links.get(int(peer)); l != nil {
		if place := l.in.place(h); place != nil {
			return transport.Destination{Bytes: place}
		}
	}
	return transport.Destination{Bytes: o.links.discard[:h.WireLen]}
}

// Arrived implements transport.Handler for packets of the kind wire.Part.
func (o *Office) Arrived(peer uint32, h *wire.Header, destination transport.Destination) {
	l := o.links.get(int(peer))
	if l == nil {
		o.Reject(int(peer), "a message from a node without a link to this one")
		return
	}
	d, err := l.in.handleArrived(h, destination.Bytes)
	switch {
	case d == nil && err == nil:
		return
	case err == nil && !cluster.IsMail(d.meta):
		err = fmt.Errorf("a control message over the data plane, which carries messages of apps only")
	}
	if err != nil {
		o.refuseDelivery(int(peer), d, err)
		return
	}
	m, err := Parse(int(peer), d.meta, d.frames)
	if m != nil {
		m.pooled, m.inPlace = d.pooled, d.inPlace
	}
	o.dispatch(int(peer), m, err)
}

// refuseDelivery counts a message that is refused, and answers it if it is a request with readable meta.
func (o *Office) refuseDelivery(peer int, d *delivery, why error) {
	var m *Message
	if d != nil && d.meta != nil && d.meta.GetRequest() && d.meta.AppId != nil && d.meta.Timestamp != nil {
		m = headOf(peer, d.meta)
	}
	o.dispatch(peer, m, why)
}

// transmit sends a message over the data plane. It copies the caller's values; values with a done function are sent without
// a copy.
func (o *Office) transmit(l *link, m *Message) error {
	meta, frames := m.Encode()
	first, err := van.Encode(meta)
	if err != nil {
		return fault.New(fault.Value, "%v", err)
	}
	if err := checkSizes(frames); err != nil {
		return err
	}
	frames = slices.Insert(frames, 0, first)
	done := m.done
	if inside, _ := layoutOf(frames).inFirstPacket(); done == nil && len(frames) > valuesFrame && inside <= valuesFrame {
		copied := o.pool.get(len(frames[valuesFrame]))
		copy(copied, frames[valuesFrame])
		frames[valuesFrame] = copied
		done = func() { o.pool.put(copied) }
	}
	m.done = nil
	l.out.send(m, frames, done)
	return nil
}

func checkSizes(frames [][]byte) error {
	for _, frame := range frames {
		if len(frame) > van.MaxFrame {
			return fault.New(fault.Value, "%d bytes for one server in one request, at most %d", len(frame), van.MaxFrame)
		}
	}
	return nil
}
