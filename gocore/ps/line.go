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

// line is the way to a node that is reached over the data plane: all messages between two such nodes go this way, so
// that they keep their order.
type line struct {
	out *outbox
	in  *inbox
}

// lines are a node's, by the other end.
type lines struct {
	sync.RWMutex
	of     map[int]*line
	nobody [wire.PacketBytes]byte // where parts go that nobody wants
}

func (l *lines) get(id int) *line {
	l.RLock()
	defer l.RUnlock()
	return l.of[id]
}

// Link has messages for those nodes go over the data plane from now on, anew where one was linked before. It comes
// before the first message of any of them.
func (o *Office) Link(plane Plane, ids ...int) {
	o.lines.Lock()
	defer o.lines.Unlock()
	for _, id := range ids {
		o.lines.of[id] = &line{
			out: &outbox{peer: uint32(id), plane: plane, depot: &o.depot, limit: maxOpen},
			in: &inbox{limit: maxOpen, open: map[uint64]*arrival{}, depot: &o.depot, wanted: func(meta *pspb.Meta, l layout) []byte {
				return o.wanted(id, meta, l)
			}},
		}
	}
}

// Cut forgets what a node has begun to send: its connection has ended. A call of the receive loop's, as Place is.
func (o *Office) Cut(id int) {
	if l := o.lines.get(id); l != nil {
		l.in.open, l.in.bytes = map[uint64]*arrival{}, 0
	}
}

// wanted finds the array that waits for the values of a message.
func (o *Office) wanted(peer int, meta *pspb.Meta, l layout) []byte {
	o.mu.Lock()
	c := o.mu.customers[o.at(meta.GetAppId(), meta.GetCustomerId())]
	o.mu.Unlock()
	if c == nil || meta.GetRequest() || meta.GetSimpleApp() {
		return nil
	}
	lens := len(l) > valuesFrame+1 && l[valuesFrame+1] > 0
	return c.land(meta.GetTimestamp(), peer, l[valuesFrame], dtypeOf(meta), lens)
}

// Place is transport.Handler's, for parts of messages.
func (o *Office) Place(peer uint32, h *wire.Header) transport.Landing {
	if l := o.lines.get(int(peer)); l != nil {
		if place := l.in.place(h); place != nil {
			return transport.Landing{Bytes: place}
		}
	}
	return transport.Landing{Bytes: o.lines.nobody[:h.WireLen]}
}

// Arrived is transport.Handler's, for parts of messages.
func (o *Office) Arrived(peer uint32, h *wire.Header, landing transport.Landing) {
	l := o.lines.get(int(peer))
	if l == nil {
		o.Reject(int(peer), "a message from a node that this one has no business with")
		return
	}
	d, err := l.in.arrived(h, landing.Bytes)
	switch {
	case d == nil && err == nil:
		return
	case err == nil && !cluster.IsMail(d.meta):
		err = fmt.Errorf("a message of the cluster's own, where applications' are expected")
	}
	if err != nil {
		o.refuseDelivery(int(peer), d, err)
		return
	}
	m, err := Parse(int(peer), d.meta, d.frames)
	if m != nil {
		m.lent, m.landed = d.lent, d.landed
	}
	o.take(int(peer), m, err)
}

// refuseDelivery counts a message that is not taken, and answers it where it is a request that has said so much.
func (o *Office) refuseDelivery(peer int, d *delivery, why error) {
	var m *Message
	if d != nil && d.meta != nil && d.meta.GetRequest() && d.meta.AppId != nil && d.meta.Timestamp != nil {
		m = headOf(peer, d.meta)
	}
	o.take(peer, m, why)
}

// transmit sends a message over the data plane. Values that are the caller's are copied, those of the message's own go
// from where they are.
func (o *Office) transmit(l *line, m *Message) error {
	meta, frames := m.Encode()
	first, err := van.Encode(meta)
	if err != nil {
		return fault.New(fault.Value, "%v", err)
	}
	if err := bounded(frames); err != nil {
		return err
	}
	frames = slices.Insert(frames, 0, first)
	done := m.done
	if inside, _ := layoutOf(frames).inside(); done == nil && len(frames) > valuesFrame && inside <= valuesFrame {
		copied := o.depot.get(len(frames[valuesFrame]))
		copy(copied, frames[valuesFrame])
		frames[valuesFrame] = copied
		done = func() { o.depot.put(copied) }
	}
	m.done = nil
	l.out.send(m, frames, done)
	return nil
}

func bounded(frames [][]byte) error {
	for _, frame := range frames {
		if len(frame) > van.MaxFrame {
			return fault.New(fault.Value, "%d bytes for one server in one request, at most %d", len(frame), van.MaxFrame)
		}
	}
	return nil
}
