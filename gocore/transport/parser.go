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

// parser is the state of one connection's stream: a packet's payload in flight, or
// a header not yet whole. It does no IO: the loop reads into what target says and
// tells with took how much came.
type parser struct {
	peer    uint32
	bytes   [wire.HeaderBytes]byte // the next header; have of it are here
	have    int
	header  wire.Header // of the payload in flight
	landing Landing     // Bytes is nil where no payload is in flight
	got     int         // bytes of the payload that are here; less than all of it
	goodbye bool        // the last packet was a Goodbye
}

// target fills v with where the next bytes go: the rest of the payload straight to
// its place, and the next header, never more, since where the payload after it goes
// is not known before it is read. It returns the vector and its length.
func (p *parser) target(v *[2]unix.Iovec) (vector []unix.Iovec, bytes int) {
	n := 0
	if p.landing.Bytes != nil {
		rest := p.landing.Bytes[p.got:]
		v[n] = iovec(rest)
		bytes += len(rest)
		n++
	}
	head := p.bytes[p.have:]
	v[n] = iovec(head)
	return v[:n+1], bytes + len(head)
}

// took goes on by n bytes, at most target's. After an error the stream is dead.
func (p *parser) took(n int, s sink) error {
	if p.landing.Bytes != nil {
		k := min(n, len(p.landing.Bytes)-p.got)
		p.got += k
		n -= k
		if p.got < len(p.landing.Bytes) {
			return nil
		}
		l := p.landing
		p.landing, p.got = Landing{}, 0
		if err := s.Arrived(p.peer, &p.header, l); err != nil {
			return err
		}
	}
	p.have += n
	if p.have < wire.HeaderBytes {
		return nil
	}
	p.have = 0
	return p.begin(s)
}

// begin starts the packet whose header is whole.
func (p *parser) begin(s sink) error {
	h := &p.header
	if err := h.Get(p.bytes[:]); err != nil {
		return err
	}
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
	l, err := s.Place(p.peer, h)
	if err != nil {
		return err
	}
	p.landing = l
	if len(l.Bytes) != int(h.WireLen) {
		return fmt.Errorf("a place of %d bytes for a payload of %d", len(l.Bytes), h.WireLen)
	}
	return nil
}

// abandon gives the owner, if any, of the place of a packet that will not become
// whole.
func (p *parser) abandon() Releaser {
	o := p.landing.Owner
	p.landing = Landing{}
	return o
}
