package node

import (
	"fptps/gocore/kv"
	"fptps/gocore/ps"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// plane dispatches arriving packets: those of messages of apps to the office, all others to the handler of tensors.
type plane struct {
	*kv.Handler
	office *ps.Office
}

var _ transport.Handler = plane{}

// Place implements transport.Handler.
func (p plane) Place(peer uint32, h *wire.Header) (transport.Destination, error) {
	if h.Kind == wire.Part {
		return p.office.Place(peer, h), nil
	}
	return p.Handler.Place(peer, h)
}

// Arrived implements transport.Handler.
func (p plane) Arrived(peer uint32, h *wire.Header, l transport.Destination) error {
	if h.Kind == wire.Part {
		p.office.Arrived(peer, h, l)
		return nil
	}
	return p.Handler.Arrived(peer, h, l)
}

// Lost implements transport.Handler.
func (p plane) Lost(peer uint32, err error) {
	p.office.DropPartial(int(peer))
	p.Handler.Lost(peer, err)
}
