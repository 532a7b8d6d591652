package transport

// What a turn of the receive loop leads to, sums as a rule, the loop writes itself, as
// long as the send loop sleeps and the kernel takes it: the bytes are still in this
// processor's cache, and no thread has to wake. Where more has gathered the send loop
// takes over, so that reading goes on beside it.

// flushWrites is how many batches the receive loop writes at a time.
const flushWrites = 4

// flush writes what waits, if it is not the send loop's.
func (r *receiver) flush() {
	for n := range flushWrites + 1 {
		more, wake := r.pick(n == flushWrites)
		r.t.wake(wake)
		if !more {
			return
		}
		r.writeOut()
	}
}

// pick takes a batch into r.out; in the place of the last one it wakes the send loop.
func (r *receiver) pick(last bool) (more bool, wake *poller) {
	t := r.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.mu.sendSleeps || t.mu.stopped {
		return false, nil
	}
	r.out.now = t.now()
	c := t.mu.table.choose(r.out.now)
	switch {
	case c.conn != nil && !last:
		r.out.take(c.conn)
		return true, nil
	case c.conn != nil || c.due < t.mu.sendWakes:
		return false, t.wakeSender()
	}
	return false, nil
}

// writeOut writes the batch in r.out.
func (r *receiver) writeOut() {
	c := r.out.conn
	if !r.transmit() {
		return
	}
	// Only now: an event before the end of the write would be forgotten by it.
	if err := r.t.sender.poller.rearm(c); err != nil {
		r.end(c, err)
	}
}

// transmit tells whether the kernel did not take all. The connection is given back
// also where a Release panics.
func (r *receiver) transmit() (full bool) {
	defer func() {
		full = r.out.full && r.out.broken == nil
		r.t.mu.Lock()
		r.out.finish() // what it would wake is this loop
		r.t.mu.Unlock()
	}()
	r.out.transmit()
	r.out.look()
	return
}
