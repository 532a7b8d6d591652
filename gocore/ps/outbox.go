package ps

import (
	"container/list"
	"sync"

	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// Plane sends packets over the data plane.
type Plane interface {
	Send(peer uint32, m transport.Outgoing)
}

// maxOpen bounds the memory of a peer's incomplete messages on this node. A single message may exceed it if no other is
// incomplete.
const maxOpen = 256 << 20

// outbox sends messages to one peer over the data plane, the most urgent packets first, without copying.
//
// A request must not overtake an earlier one for a common key, and no message may begin while incomplete ones hold too much
// of the receiver's memory. So a message's priority is lowered to that of the messages that it must not overtake: the data
// plane keeps the order of equal priorities.
type outbox struct {
	peer  uint32
	plane Plane
	pool  *pool
	limit int // maxOpen
	mu    struct {
		sync.Mutex
		number  uint64      // of the last message
		coming  []*outgoing // waiting to be sent, in order
		sending bool        // a goroutine is sending them
		unsent  list.List   // of *outgoing that the kernel has not taken completely, oldest first
		bytes   int         // cost of unsent
		least   int32       // lower bound of the priorities of unsent
	}
}

// outgoing is a message that is being sent. It is the Owner of each of its runs.
type outgoing struct {
	box      *outbox
	first    []byte   // packet 0
	rest     [][]byte // frames
	number   uint64
	request  bool
	keys     keyRange
	cost     int
	priority int32 // of its packets
	runs     int   // not released yet
	place    *list.Element
	done     func() // called when rest is no longer read; may be nil
}

// send sends a message. Frames that do not fit in packet 0 are read until done is called, by any thread, possibly before
// send returns.
func (b *outbox) send(m *Message, frames [][]byte, done func()) {
	l := layoutOf(frames)
	inside, _ := l.inFirstPacket()
	d := &outgoing{box: b, first: encodeFirst(frames, b.pool.get), cost: l.cost(), runs: 1, done: done, priority: m.Priority, request: m.Request, keys: keyRangeOf(m)}
	for _, frame := range frames[inside:] {
		if len(frame) > 0 {
			d.rest = append(d.rest, frame)
			d.runs++
		}
	}
	if len(d.rest) == 0 {
		d.finish() // packet 0 holds a copy of all frames
	}
	for d = b.next(d); d != nil; d = b.next(nil) {
		d.transmit(b.plane)
	}
}

// next queues a message, if any, and returns the one that the caller must send; nil if another goroutine is sending. So
// messages are sent in order, without holding a lock.
func (b *outbox) next(queued *outgoing) *outgoing {
	b.mu.Lock()
	defer b.mu.Unlock()
	if queued != nil {
		b.mu.coming = append(b.mu.coming, queued)
		if b.mu.sending {
			return nil
		}
	}
	b.mu.sending = len(b.mu.coming) > 0
	if !b.mu.sending {
		return nil
	}
	d := b.mu.coming[0]
	b.mu.coming[0] = nil
	b.mu.coming = b.mu.coming[1:]
	b.admit(d)
	return d
}

// admit numbers a message and lowers its priority if it must not overtake others. mu is held.
func (b *outbox) admit(d *outgoing) {
	b.mu.number++
	d.number = b.mu.number
	if b.mu.unsent.Len() == 0 {
		b.mu.least = d.priority
	}
	if b.mu.bytes+d.cost > b.limit {
		d.priority = min(d.priority, b.mu.least)
	}
	if d.request && d.priority > b.mu.least {
		for e := b.mu.unsent.Front(); e != nil; e = e.Next() {
			if before := e.Value.(*outgoing); before.request && before.keys.overlaps(d.keys) {
				d.priority = min(d.priority, before.priority)
			}
		}
	}
	b.mu.least = min(b.mu.least, d.priority)
	b.mu.bytes += d.cost
	d.place = b.mu.unsent.PushBack(d)
}

// transmit passes the packets of a message to the data plane. d may be released with the last one.
func (d *outgoing) transmit(plane Plane) {
	header := wire.Header{Kind: wire.Part, Run: 1, Number: d.number, Priority: d.priority}
	peer, rest := d.box.peer, d.rest
	plane.Send(peer, transport.Outgoing{Header: header, Data: d.first, Owner: d})
	header.Packet = 1
	for _, frame := range rest {
		plane.Send(peer, transport.Outgoing{Header: header, Data: frame, Owner: d})
		header.Packet += wire.Packets(uint64(len(frame)))
	}
}

// Release implements transport.Releaser; it is called once for each run of the message.
func (d *outgoing) Release() {
	if d.box.released(d) {
		d.box.pool.put(d.first)
		d.finish()
	}
}

// finish calls done, if set, once.
func (d *outgoing) finish() {
	if d.done != nil {
		d.done()
		d.done = nil
	}
}

// released reports whether this was the last run of d.
func (b *outbox) released(d *outgoing) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.runs--; d.runs > 0 {
		return false
	}
	b.mu.unsent.Remove(d.place)
	b.mu.bytes -= d.cost
	return true
}
