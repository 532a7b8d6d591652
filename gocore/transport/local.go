package transport

import "fmt"

// local passes this node's packets to itself to the handler, up to a limit, one at a time,
// so that more urgent ones can overtake.
func (r *receiver) local() error {
	for range localPerPass {
		t := r.t
		t.mu.Lock()
		if t.mu.local.empty() {
			t.mu.Unlock()
			return nil
		}
		p := t.mu.local.pop()
		t.mu.Unlock()
		if err := r.deliver(p); err != nil {
			return fmt.Errorf("packet of this node to itself: %w", err)
		}
	}
	return nil
}

// deliver calls the handler with p. After the last packet of a run it releases the run, also
// if the handler panics.
func (r *receiver) deliver(p packet) error {
	r.ownHeader = p.header()
	r.t.count.packetsLocal.Add(1)
	if p.last() {
		defer r.t.complete(p.run)
	}
	return r.t.handler.Local(&r.ownHeader, p.data())
}

// complete releases a run whose last packet was delivered.
func (t *Transport) complete(done *run) {
	if o := done.Owner; o != nil {
		done.Owner = nil
		o.Release()
	}
	t.mu.Lock()
	t.recycle(done)
	if t.mu.leaving && t.mu.local.empty() {
		t.notifyChanged()
	}
	t.mu.Unlock()
}
