package transport

import (
	"fmt"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// sink is what a parser calls: Began, and methods of Handler.
type sink interface {
	Began(h *wire.Header) error // a header has arrived
	Place(peer uint32, h *wire.Header) (Destination, error)
	Arrived(peer uint32, h *wire.Header, l Destination) error
}

// parser parses the stream of one connection. It does no IO: the receive loop reads into
// the vector from target, then calls advance with the number of bytes read.
//
// The parser expects a train: for each announced packet its payload and the header after
// it. At the start, and after a packet without payload, the train is a single header.
type parser struct {
	peer      uint32
	header    wire.Header // of the payload that is being received, train[at]
	train     [wire.MaxAhead + 1]trainPacket
	n         int         // train[:n] is the train; 0: a single header
	at        int         // index of the packet that the next byte belongs to
	received  int         // bytes of train[at] received so far
	announced wire.Header // scratch: an announced header
	goodbye   bool        // the last packet was a Goodbye
}

// trainPacket is a payload with the header after it.
type trainPacket struct {
	payload     int         // bytes; 0: none
	destination Destination // for the payload; cleared when that is complete: then the handler owns the memory and may unmap it
	next        [wire.HeaderBytes]byte
}

func (c *trainPacket) size() int { return c.payload + wire.HeaderBytes }

// vectorLen is the largest length of target's vector.
const vectorLen = 2 * (wire.MaxAhead + 1)

// target fills v with the memory for the next bytes: payloads go straight to their places.
// It ends with the first header that was not announced, because the place of the payload
// after it is unknown until that header is read. It returns the vector and its length.
func (p *parser) target(v *[vectorLen]unix.Iovec) (vector []unix.Iovec, bytes int) {
	n, got := 0, p.received
	for i := p.at; i < max(p.n, 1); i++ {
		c := &p.train[i]
		bytes += c.size() - got
		if got < c.payload {
			v[n] = iovec(c.destination.Bytes[got:])
			got = c.payload
			n++
		}
		v[n] = iovec(c.next[got-c.payload:])
		got = 0
		n++
	}
	return v[:n], bytes
}

// advance parses n received bytes, at most those of target. After an error the stream must
// not be used any more.
func (p *parser) advance(n int, s sink) error {
	for n > 0 {
		c := &p.train[p.at]
		k := min(n, c.size()-p.received)
		complete := p.received < c.payload && p.received+k >= c.payload
		p.received += k
		n -= k
		if complete {
			l := c.destination
			c.destination = Destination{}
			if err := s.Arrived(p.peer, &p.header, l); err != nil {
				return err
			}
		}
		if p.received < c.size() {
			return nil
		}
		if err := p.next(c, s); err != nil {
			return err
		}
	}
	return nil
}

// next parses the header after c, which is complete.
func (p *parser) next(c *trainPacket, s sink) error {
	before := p.header
	h := &p.header
	if err := h.Get(c.next[:]); err != nil {
		return err
	}
	if err := s.Began(h); err != nil {
		return err
	}
	p.at, p.received = p.at+1, 0
	if p.at >= p.n {
		return p.begin(s)
	}
	if h.Kind != before.Kind || h.Tensor != before.Tensor || h.Packet != before.Packet+1 || h.Round != before.Round || h.Number != before.Number ||
		h.WireLen != before.WireLen || h.Ahead != before.Ahead-1 {
		return fmt.Errorf("packet %+v follows, but %+v has announced another one", *h, before)
	}
	return nil
}

// begin starts the train whose first header is p.header.
func (p *parser) begin(s sink) error {
	h := &p.header
	p.n, p.at = 0, 0
	p.train[0].payload = 0
	if p.goodbye {
		return fmt.Errorf("a packet after the goodbye")
	}
	if h.Kind == wire.Goodbye {
		p.goodbye = true
		return nil
	}
	if h.WireLen == 0 {
		return s.Arrived(p.peer, h, Destination{})
	}
	p.announced = *h
	for range h.Ahead + 1 {
		l, err := s.Place(p.peer, &p.announced)
		if err != nil {
			return err
		}
		p.train[p.n].destination, p.train[p.n].payload = l, len(l.Bytes)
		p.n++
		if len(l.Bytes) != int(h.WireLen) {
			return fmt.Errorf("a place of %d bytes for a payload of %d", len(l.Bytes), h.WireLen)
		}
		p.announced.Packet++
		p.announced.Ahead--
	}
	return nil
}

// abandon calls release with the owners of places whose packets will not be completed.
func (p *parser) abandon(release func(Releaser)) {
	for i := range p.train[:p.n] {
		if o := p.train[i].destination.Owner; o != nil {
			release(o)
		}
		p.train[i].destination = Destination{}
	}
	p.n, p.train[0].payload = 0, 0
}
