package transport

import (
	"fmt"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// sink is the part of Handler that a stream of packets needs.
type sink interface {
	Place(peer uint32, h *wire.Header) (Landing, error)
	Arrived(peer uint32, h *wire.Header, l Landing) error
}

// parser is the state of one connection's stream. It does no IO: the loop reads into
// what target says and tells with took how much came.
//
// What it waits for is a train: the payload of a packet and the header after it, as
// often as headers have announced packets, once for the last. At the start and after
// a packet without payload the train is a header alone.
type parser struct {
	peer    uint32
	header  wire.Header // of the payload in flight, train[at]
	train   [wire.MaxAhead + 1]carriage
	n       int         // train[:n] is the train; 0 stands for a header alone
	at      int         // where the next byte goes
	got     int         // bytes of train[at] that are here; less than all of it
	coming  wire.Header // scratch: what a header announces
	goodbye bool        // the last packet was a Goodbye
}

// carriage is a payload and the header after it.
type carriage struct {
	landing Landing // Bytes is nil where there is no payload, Owner where it was given away
	next    [wire.HeaderBytes]byte
}

func (c *carriage) size() int { return len(c.landing.Bytes) + wire.HeaderBytes }

// vectorLen is the most entries of target's vector.
const vectorLen = 2 * (wire.MaxAhead + 1)

// target fills v with where the next bytes go: payloads straight to their places, up
// to the first header that is not announced, never more, since where the payload
// after it goes is not known before it is read. It returns the vector and its length.
func (p *parser) target(v *[vectorLen]unix.Iovec) (vector []unix.Iovec, bytes int) {
	n, got := 0, p.got
	for i := p.at; i < max(p.n, 1); i++ {
		c := &p.train[i]
		for _, part := range [2][]byte{c.landing.Bytes, c.next[:]} {
			if got >= len(part) {
				got -= len(part)
				continue
			}
			v[n] = iovec(part[got:])
			bytes += len(part) - got
			got = 0
			n++
		}
	}
	return v[:n], bytes
}

// took goes on by n bytes, at most target's. After an error the stream is dead.
func (p *parser) took(n int, s sink) error {
	for n > 0 {
		c := &p.train[p.at]
		payload := len(c.landing.Bytes)
		k := min(n, c.size()-p.got)
		whole := p.got < payload && p.got+k >= payload
		p.got += k
		n -= k
		if whole {
			l := c.landing
			c.landing.Owner = nil
			if err := s.Arrived(p.peer, &p.header, l); err != nil {
				return err
			}
		}
		if p.got < c.size() {
			return nil
		}
		if err := p.next(c, s); err != nil {
			return err
		}
	}
	return nil
}

// next takes the header after c, which is whole.
func (p *parser) next(c *carriage, s sink) error {
	before := p.header
	h := &p.header
	if err := h.Get(c.next[:]); err != nil {
		return err
	}
	p.at, p.got = p.at+1, 0
	if p.at >= p.n {
		return p.begin(s)
	}
	if h.Kind != before.Kind || h.Tensor != before.Tensor || h.Packet != before.Packet+1 || h.Round != before.Round ||
		h.WireLen != before.WireLen || h.Ahead != before.Ahead-1 {
		return fmt.Errorf("%+v follows, but %+v has announced another packet", *h, before)
	}
	return nil
}

// begin starts the train that p.header leads.
func (p *parser) begin(s sink) error {
	h := &p.header
	p.n, p.at = 0, 0
	p.train[0].landing = Landing{}
	if p.goodbye {
		return fmt.Errorf("a packet after the goodbye")
	}
	if h.Kind == wire.Goodbye {
		p.goodbye = true
		return nil
	}
	if h.WireLen == 0 {
		return s.Arrived(p.peer, h, Landing{})
	}
	p.coming = *h
	for range h.Ahead + 1 {
		l, err := s.Place(p.peer, &p.coming)
		if err != nil {
			return err
		}
		p.train[p.n].landing = l
		p.n++
		if len(l.Bytes) != int(h.WireLen) {
			return fmt.Errorf("a place of %d bytes for a payload of %d", len(l.Bytes), h.WireLen)
		}
		p.coming.Packet++
		p.coming.Ahead--
	}
	return nil
}

// abandon calls release with the owners of the places of packets that will not become
// whole.
func (p *parser) abandon(release func(Releaser)) {
	for i := range p.train[:p.n] {
		if o := p.train[i].landing.Owner; o != nil {
			release(o)
		}
	}
	p.n = 0
	p.train[0].landing = Landing{}
}
