package ps

import (
	"container/list"
	"sync"

	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// Plane is the data plane.
type Plane interface {
	Send(peer uint32, m transport.Outgoing)
}

// maxOpen bounds the memory of a node's messages that have begun to arrive here and are not whole. One message may be
// longer, if it is the only one.
const maxOpen = 256 << 20

// outbox sends messages to one node over the data plane: their packets most urgent first, straight from memory.
//
// A request must not overtake an earlier one for a common key, and no message may begin while too much of others is under
// way. Where it would, it goes with a lower priority, that of what is before it: equals leave in their order.
type outbox struct {
	peer  uint32
	plane Plane
	depot *depot
	limit int // maxOpen
	mu    struct {
		sync.Mutex
		number  uint64       // of the last message
		coming  []*departure // to be sent, in order
		sending bool         // somebody sends them
		unsent  list.List    // of *departure that the kernel does not have whole, oldest first
		bytes   int          // their cost
		least   int32        // no unsent one has a lower priority
	}
}

// departure is a message that leaves. It owns each of its runs.
type departure struct {
	box      *outbox
	first    []byte   // packet 0
	rest     [][]byte // frames
	number   uint64
	request  bool
	keys     span
	cost     int
	priority int32 // of its packets
	runs     int   // not released yet
	place    *list.Element
	done     func() // rest is no longer read; may be nil
}

// send takes a message. Those of its frames that packet 0 does not hold are read until done is called: by any thread,
// maybe before the return.
func (b *outbox) send(m *Message, frames [][]byte, done func()) {
	l := layoutOf(frames)
	inside, _ := l.inside()
	d := &departure{box: b, first: first(frames, b.depot.get), cost: l.cost(), runs: 1, done: done, priority: m.Priority, request: m.Request, keys: spanOf(m)}
	for _, frame := range frames[inside:] {
		if len(frame) > 0 {
			d.rest = append(d.rest, frame)
			d.runs++
		}
	}
	if len(d.rest) == 0 {
		d.finish() // packet 0 has a copy of all
	}
	for d = b.next(d); d != nil; d = b.next(nil) {
		d.leave(b.plane)
	}
}

// next queues a message, if any, and gives the one that the caller is to send; nil where another goroutine does that.
// So messages leave in their order, and no lock is held meanwhile.
func (b *outbox) next(queued *departure) *departure {
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
	b.rank(d)
	return d
}

// rank gives a message its number, and lowers its priority where it has to. mu is held.
func (b *outbox) rank(d *departure) {
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
			if before := e.Value.(*departure); before.request && before.keys.meets(d.keys) {
				d.priority = min(d.priority, before.priority)
			}
		}
	}
	b.mu.least = min(b.mu.least, d.priority)
	b.mu.bytes += d.cost
	d.place = b.mu.unsent.PushBack(d)
}

// leave gives the packets of a message to the data plane. d may be over with the last.
func (d *departure) leave(plane Plane) {
	header := wire.Header{Kind: wire.Part, Run: 1, Round: d.number, Priority: d.priority}
	peer, rest := d.box.peer, d.rest
	plane.Send(peer, transport.Outgoing{Header: header, Data: d.first, Owner: d})
	header.Packet = 1
	for _, frame := range rest {
		plane.Send(peer, transport.Outgoing{Header: header, Data: frame, Owner: d})
		header.Packet += wire.Packets(uint64(len(frame)))
	}
}

// Release implements transport.Releaser, for one of the message's runs.
func (d *departure) Release() {
	if d.box.released(d) {
		d.box.depot.put(d.first)
		d.finish()
	}
}

// finish calls done, if there is one, once.
func (d *departure) finish() {
	if d.done != nil {
		d.done()
		d.done = nil
	}
}

// released tells whether it was the last run of d.
func (b *outbox) released(d *departure) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.runs--; d.runs > 0 {
		return false
	}
	b.mu.unsent.Remove(d.place)
	b.mu.bytes -= d.cost
	return true
}
