package kv

import (
	"fmt"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// Handler handles a node's packets: contributions go to its aggregator, sums
// to its worker. Either may be nil.
type Handler struct {
	Self       uint32
	Worker     *Worker
	Aggregator *Aggregator
	// OnLost is called when a connection has ended; err is nil after a goodbye.
	OnLost func(node uint32, err error)
	// OnFailed is called when the data plane itself broke.
	OnFailed func(err error)

	unwanted [wire.PacketBytes]byte // receives payloads that no operation waits for
}

var _ transport.Handler = (*Handler)(nil)

// Place returns the memory for a payload: a pooled buffer for the aggregator's packets, the
// caller's array for a sum or an answer.
func (d *Handler) Place(node uint32, h *wire.Header) (transport.Destination, error) {
	switch {
	case (h.Kind == wire.Contrib || h.Kind == wire.Ask || h.Kind == wire.Kept || h.Kind == wire.Replica) && d.Aggregator != nil:
		b := d.Aggregator.pool.Get(int(h.WireLen))
		return transport.Destination{Bytes: b.Bytes, Owner: b}, nil
	case (h.Kind == wire.Sum || h.Kind == wire.Answer) && d.Worker != nil:
		if region := d.Worker.place(node, h); region != nil {
			return transport.Destination{Bytes: region}, nil
		}
	case h.Kind == wire.Missing && d.Worker != nil: // rare; needs memory of its own, since two connections may receive one at the same time
		return transport.Destination{Bytes: make([]byte, h.WireLen)}, nil
	default:
		return transport.Destination{}, misplaced(node, h)
	}
	return transport.Destination{Bytes: d.unwanted[:h.WireLen]}, nil
}

func misplaced(node uint32, h *wire.Header) error {
	return fmt.Errorf("node %d sent a packet of kind %d, which this node does not take", node, h.Kind)
}

// Arrived handles a complete packet.
func (d *Handler) Arrived(node uint32, h *wire.Header, l transport.Destination) error {
	owned, _ := l.Owner.(*aggregate.Buffer)
	return d.take(node, h, l.Bytes, owned)
}

// Local handles a packet of this node to itself. It reads payload during the call only, that of a contribution until the
// round is complete: until then the worker keeps the array, since the sum is not whole.
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
	if d.Aggregator != nil && (d.Aggregator.backup != nil || h.Kind == wire.Replicated) {
		d.Aggregator.catchUp()
	}
	switch {
	case (h.Kind == wire.Contrib || h.Kind == wire.Empty) && d.Aggregator != nil:
		return d.Aggregator.add(node, h, payload, owned)
	case h.Kind == wire.Sum && d.Worker != nil:
		d.Worker.sum(node, h, payload)
		return nil
	case h.Kind == wire.Missing && d.Worker != nil:
		d.Worker.noteMissing(h, payload)
		return nil
	case h.Kind == wire.Have && d.Aggregator != nil:
		return d.Aggregator.have(node, h)
	case h.Kind == wire.Kept && d.Aggregator != nil:
		return d.Aggregator.kept(node, h, payload, owned)
	case h.Kind == wire.Replica && d.Aggregator != nil:
		return d.Aggregator.replica(node, h, payload, owned)
	case h.Kind == wire.Replicated && d.Aggregator != nil && (d.Aggregator.backup != nil || node == d.Self):
		d.Aggregator.confirmed(node, h)
		return nil
	case h.Kind == wire.Recall && d.Worker != nil:
		return d.Worker.recalled(node, h)
	case h.Kind == wire.Want && d.Aggregator != nil:
		return d.Aggregator.sendValues(node, h)
	case h.Kind == wire.Ask && h.Op == wire.AskInventory && d.Worker != nil:
		if owned != nil {
			owned.Release()
		}
		return d.Worker.asked(node, h)
	case h.Kind == wire.Ask && d.Aggregator != nil:
		return d.Aggregator.answer(node, h, payload, owned)
	case h.Kind == wire.Answer && d.Worker != nil:
		return d.Worker.answered(node, h, payload)
	}
	return misplaced(node, h)
}

// Lost calls OnLost.
func (d *Handler) Lost(node uint32, err error) { d.OnLost(node, err) }

// Tick lets the aggregator and the worker find rounds that stall.
func (d *Handler) Tick(now time.Time) {
	if d.Aggregator != nil {
		d.Aggregator.tick(now)
	}
	if d.Worker != nil {
		d.Worker.tick(now)
	}
}

// Failed calls OnFailed.
func (d *Handler) Failed(err error) { d.OnFailed(err) }
