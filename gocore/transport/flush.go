package transport

// The receive loop writes the packets that its pass has caused, mostly sums, itself, as long
// as the send loop sleeps and the kernel takes them: the bytes are still in this CPU's
// cache, and no thread needs to wake. If more packets accumulate, the send loop takes over,
// so that reading continues in parallel.

// flushWrites is the number of batches that one flush may write.
const flushWrites = 4

// flush writes queued packets, unless the send loop is awake.
func (r *receiver) flush() {
	for n := range flushWrites + 1 {
		more, wake := r.takeBatch(n == flushWrites)
		r.t.wake(wake)
		if !more {
			return
		}
		r.writeBatch()
	}
}

// takeBatch takes a batch into r.out, and reports whether there is one. With last set it wakes
// the send loop instead.
func (r *receiver) takeBatch(last bool) (more bool, wake *poller) {
	t := r.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.mu.sendSleeps || t.mu.stopped {
		return false, nil
	}
	r.out.now = t.now()
	c := t.mu.conns.choose(r.out.now)
	switch {
	case c.conn != nil && !last:
		r.out.take(c.conn)
		return true, nil
	case c.conn != nil || c.due < t.mu.sendWakes:
		return false, t.wakeSender()
	}
	return false, nil
}

// writeBatch writes the batch in r.out.
func (r *receiver) writeBatch() {
	c := r.out.conn
	if !r.transmit() {
		return
	}
	// After the write: finish would overwrite an earlier event.
	if err := r.t.sender.poller.rearm(c); err != nil {
		r.endConn(c, err)
	}
}

// transmit writes the batch, and reports whether the kernel did not take all of it. It gives
// the connection back even if a Release panics.
func (r *receiver) transmit() (full bool) {
	defer func() {
		full = r.out.full && r.out.broken == nil
		r.t.mu.Lock()
		r.out.finish() // the poller that it returns is this loop's
		r.t.mu.Unlock()
	}()
	r.out.transmit()
	return
}
