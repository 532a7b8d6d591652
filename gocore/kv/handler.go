package kv

import (
	"fmt"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// Handler is what a node does with packets: contributions go to its aggregator,
// sums to its worker. Either may be nil.
type Handler struct {
	Self       uint32
	Worker     *Worker
	Aggregator *Aggregator
	// OnLost is told that a connection ended; err is nil after a goodbye.
	OnLost func(node uint32, err error)
	// OnFailed is told that the data plane itself broke.
	OnFailed func(err error)

	unwanted [wire.PacketBytes]byte // where payloads go that nobody wants
}

var _ transport.Handler = (*Handler)(nil)

// Place says where a payload is read to: a pooled buffer for what the aggregator takes, the
// array that wants it for a sum or an answer.
func (d *Handler) Place(node uint32, h *wire.Header) (transport.Landing, error) {
	switch {
	case (h.Kind == wire.Contrib || h.Kind == wire.Ask) && d.Aggregator != nil:
		b := d.Aggregator.pool.Get(int(h.WireLen))
		return transport.Landing{Bytes: b.Bytes, Owner: b}, nil
	case (h.Kind == wire.Sum || h.Kind == wire.Answer) && d.Worker != nil:
		if region := d.Worker.place(node, h); region != nil {
			return transport.Landing{Bytes: region}, nil
		}
	case h.Kind == wire.Missing && d.Worker != nil: // rare; its bytes are read, so they are not shared between connections
		return transport.Landing{Bytes: make([]byte, h.WireLen)}, nil
	default:
		return transport.Landing{}, misplaced(node, h)
	}
	return transport.Landing{Bytes: d.unwanted[:h.WireLen]}, nil
}

func misplaced(node uint32, h *wire.Header) error {
	return fmt.Errorf("node %d sent a packet of kind %d, which this node does not take", node, h.Kind)
}

// Arrived takes a packet whose payload is whole.
func (d *Handler) Arrived(node uint32, h *wire.Header, l transport.Landing) error {
	owned, _ := l.Owner.(*aggregate.Buffer)
	return d.take(node, h, l.Bytes, owned)
}

// Local takes a packet that this node sent to itself; payload is read during the call only.
func (d *Handler) Local(h *wire.Header, payload []byte) error {
	if (h.Kind == wire.Sum || h.Kind == wire.Answer) && len(payload) > 0 {
		region := d.Worker.place(d.Self, h)
		if region == nil {
			return nil
		}
		copy(region, payload)
		payload = region
	}
	return d.take(d.Self, h, payload, nil)
}

func (d *Handler) take(node uint32, h *wire.Header, payload []byte, owned *aggregate.Buffer) error {
	switch {
	case (h.Kind == wire.Contrib || h.Kind == wire.Empty) && d.Aggregator != nil:
		return d.Aggregator.add(node, h, payload, owned)
	case h.Kind == wire.Sum && d.Worker != nil:
		d.Worker.sum(node, h, payload)
		return nil
	case h.Kind == wire.Missing && d.Worker != nil:
		d.Worker.told(h, payload)
		return nil
	case h.Kind == wire.Ask && d.Aggregator != nil:
		return d.Aggregator.asked(node, h, payload, owned)
	case h.Kind == wire.Answer && d.Worker != nil:
		d.Worker.answered(node, h, payload)
		return nil
	}
	return misplaced(node, h)
}

// Lost passes on that a connection ended.
func (d *Handler) Lost(node uint32, err error) { d.OnLost(node, err) }

// Tick lets aggregator and worker look for rounds that stall.
func (d *Handler) Tick(now time.Time) {
	if d.Aggregator != nil {
		d.Aggregator.tick(now)
	}
	if d.Worker != nil {
		d.Worker.tick(now)
	}
}

// Failed passes on that the data plane broke.
func (d *Handler) Failed(err error) { d.OnFailed(err) }
