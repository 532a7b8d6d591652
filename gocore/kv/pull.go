package kv

import (
	"math/bits"
	"slices"

	"fptps/gocore/fault"
	"fptps/gocore/pages"
	"fptps/gocore/wire"
)

// A plain push keeps its sum in memory of the tensor, for any number of pulls. Large memory comes from the kernel and goes
// back at once when a push_pull follows, whose sum is not kept. Both happen without the lock: enter allocates
// the memory before it queues the operation, and step frees the memory in Worker.mu.freed. No worker keeps the initial value:
// the aggregators have it until the first round is complete, which needs a push of every worker, and an earlier pull asks them. So does the pull of
// a worker that was admitted later, if the aggregators keep weights.

// largeBytes is the size from which memory comes from the kernel: for less, whole pages would be wasteful.
const largeBytes = 64 << 10

func allocate(n uint64) []byte {
	if n < largeBytes {
		return make([]byte, n)
	}
	return pages.Alloc(int(n))
}

func free(kept []byte) {
	if len(kept) >= largeBytes {
		pages.Free(kept)
	}
}

// Pull copies the sum of this worker's last push of key to memory, without any message. After Init and before the first
// push, it asks the aggregators for rank 0's values; under a policy other than Sync these include the other workers' pushes
// so far. A worker that was admitted later gets the weights that the aggregators keep.
func (w *Worker) Pull(key uint64, dtype wire.DType, memory []byte) (ticket *Ticket, err error) {
	var copies func() // copies what has arrived already
	w.step(func() (e effects) {
		var t *tensor
		if t, err = w.find(key); err == nil {
			err = t.fits(dtype, memory)
		}
		if err == nil && t.last.verb == verbPushPull {
			err = fault.New(fault.Value, "%s: the sum of its last push went to push_pull's own array and is not kept: push first", t.name)
		}
		if err == nil && t.last.verb == verbInit && t.since > 1 && !t.stored() {
			err = fault.New(fault.Value, "%s: this worker has not pushed since it was admitted, so that it has no sum: push first", t.name).With(t.about())
		}
		if err == nil && t.last.verb == verbInit && t.lost != "" {
			err = t.lostValue()
		}
		if err == nil {
			err = w.mu.flights.take(key, memory, nil, t.last)
		}
		if err != nil {
			return e
		}
		o := t.last
		if o.verb == verbInit {
			o = &operation{worker: w, tensor: t, verb: verbFetch, pulls: []pull{{memory: memory, caller: true}}}
		}
		ticket = w.Tickets.New(func() Waiting { return w.explain(o) })
		ticket.tensor = t.id
		kept := t.kept
		switch {
		case o.verb == verbFetch:
			o.ticket = ticket
			t.queue = append(t.queue, o)
			e.sends = w.advance(t)
		case o.whole:
			t.readers++
			copies = func() { w.copyWhole(o, kept, memory, ticket) }
		case t.join(o, pull{memory: memory, ticket: ticket, caller: true}):
			copies = func() { w.copyArrived(o, kept, memory) }
		}
		return e
	})
	if copies != nil {
		copies()
	}
	return ticket, err
}

// stored reports whether the aggregators keep weights of the tensor.
func (t *tensor) stored() bool { return t.ruled() || t.policy.Applied() != wire.Sync }

// copyWhole copies a whole sum to memory and ends the pull; until then no round overwrites the sum.
func (w *Worker) copyWhole(o *operation, kept, memory []byte, ticket *Ticket) {
	copy(memory, kept)
	w.step(func() effects {
		w.mu.flights.leave(memory, nil)
		ticket.epoch = o.epoch
		return effects{sends: w.endRead(o.tensor), ended: []*Ticket{ticket}, err: o.err}
	})
}

// join adds a pull to a push whose sum is not whole. Later packets are read straight into the memory of the pull that joined
// last, unless the worker recovers. It reports whether some packets have arrived already, which the caller has to copy by copyArrived: until then o does
// not end and no other round begins. The lock is held.
func (t *tensor) join(o *operation, p pull) (some bool) {
	if o.worker.Recovers { // the sum is copied when the round has ended
		o.pulls = append(o.pulls, p)
		return false
	}
	o.pulls = slices.Insert(o.pulls, 0, p)
	if o != t.active || o.count == 0 {
		return false
	}
	o.queued.Add(1)
	t.readers++
	return true
}

// copyArrived copies to memory the packets of o's sum that arrived before the pull joined. It takes the lock once for every
// 64 packets, and never holds it while it copies: packets that have arrived do not change any more.
func (w *Worker) copyArrived(o *operation, kept, memory []byte) {
	t := o.tensor
	for first := uint32(0); first < t.packets; first += 64 {
		w.mu.Lock()
		arrived := o.got[first/64]
		w.mu.Unlock()
		for ; arrived != 0; arrived &= arrived - 1 {
			packet := first + uint32(bits.TrailingZeros64(arrived))
			copy(t.region(memory, packet), t.region(kept, packet))
		}
	}
	w.step(func() effects { return effects{sends: w.endRead(t)} })
	o.Release()
}

// endRead ends one reader's use of t.kept. The lock is held.
func (w *Worker) endRead(t *tensor) []sending {
	t.readers--
	if w.mu.failed != nil {
		w.dropKept(t)
	}
	return w.advance(t)
}

// dropKept hands the memory of t's last sum to step, which frees it, if no pull copies from it. The lock is held.
func (w *Worker) dropKept(t *tensor) {
	if t.kept != nil && t.readers == 0 {
		w.mu.freed = append(w.mu.freed, t.kept)
		t.kept = nil
	}
}

// wantPackets bounds the packets of a value in one request, so that an aggregator answers each request quickly.
const wantPackets = 64

// requestValue asks the aggregators for a tensor's value.
func (t *tensor) requestValue(o *operation) (out []sending) {
	for _, run := range t.runs {
		for end := run.First + run.Count; run.First < end; run.First += wantPackets {
			h := wire.Header{Kind: wire.Want, Tensor: t.id, Packet: run.First, Run: min(end-run.First, wantPackets), Round: t.round, Epoch: t.epoch}
			out = append(out, sending{run.Node, run.Lane, h, nil, o})
		}
	}
	o.queued.Add(int32(len(out)))
	return out
}
