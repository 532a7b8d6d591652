package transport

import (
	"errors"

	"fptps/gocore/wire"
)

// What the receive loop does about acknowledgements; see session.go.

// takeCount handles the number of packets that a header says have arrived at the peer.
func (r *receiver) takeCount(c *conn, h *wire.Header) error {
	s := c.session
	switch {
	case s == nil && (h.Received != 0 || h.Kind == wire.Ack):
		return errors.New("an acknowledgement on a connection that is not made again when it breaks")
	case s == nil:
		return nil
	case h.Kind == wire.Goodbye: // it has no payload, so it is whole
		s.received.Add(1)
	}
	if h.Flags&wire.FlagLearningRate != 0 || h.Received == s.acked {
		return nil
	}
	s.acked = h.Received
	r.t.mu.Lock()
	writing := 0
	if c.writing {
		writing = batchPackets
	}
	err := s.kept.acknowledge(h.Received, writing)
	r.popAcked(c)
	r.t.mu.Unlock()
	r.releaseAcked()
	return err
}

// popAcked takes out what the peer has acknowledged. The owners wait for releaseAcked. mu is held.
func (r *receiver) popAcked(c *conn) {
	for p, ok := c.session.kept.pop(); ok; p, ok = c.session.kept.pop() {
		if !p.last() {
			continue
		}
		if o := p.run.Owner; o != nil {
			r.acked = append(r.acked, o)
		}
		r.t.recycle(p.run)
	}
}

// releaseAcked releases what popAcked has taken out. If a Release panics, tearDown releases the rest.
func (r *receiver) releaseAcked() {
	for i, o := range r.acked {
		r.acked[i] = nil
		o.Release()
	}
	r.acked = r.acked[:0]
}

// acknowledgeMany queues an acknowledgement for c if many packets have arrived since the last one.
func (r *receiver) acknowledgeMany(c *conn) {
	s := c.session
	if s == nil || s.received.Load()-s.pushed < ackPackets {
		return
	}
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	r.acknowledge(c)
}

// acknowledgeAll queues an acknowledgement for each peer that needs one, and reports whether there are any.
func (r *receiver) acknowledgeAll() (queued bool) {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	if r.t.mu.addresses == nil {
		return false
	}
	for _, c := range r.conns {
		queued = r.acknowledge(c) || queued
	}
	return queued
}

// acknowledge queues an acknowledgement for c if it needs one. The next flush writes it. After this node's goodbye it sends nothing;
// the peer then sees the end of the connection. mu is held.
func (r *receiver) acknowledge(c *conn) bool {
	if s := c.session; s != nil {
		s.pushed = s.received.Load()
	}
	if r.t.mu.leaving || !c.mustAck() {
		return false
	}
	c.queue.push(r.t.newRun(&Outgoing{Header: wire.Header{Kind: wire.Ack}}))
	return true
}
