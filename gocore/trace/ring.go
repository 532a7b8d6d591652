package trace

import "sync"

// ring holds the last events of one place. Each place is used by one thread at a time, or nearly so: the lock is free as a rule, and
// taken by two threads only while events are read.
type ring struct {
	mu     sync.Mutex
	events []Event // its length is a power of two
	next   uint64  // number of the next event
}

// reset empties the ring, and gives it room for n events, a power of two.
func (r *ring) reset(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) != n {
		r.events = make([]Event, n)
	}
	r.next = 0
}

// add records an event in the place of the oldest. Without room it does nothing.
func (r *ring) add(e *Event) {
	r.mu.Lock()
	if n := uint64(len(r.events)); n > 0 {
		r.events[r.next&(n-1)] = *e
		r.next++
	}
	r.mu.Unlock()
}

// appendTo appends the events to all, from the oldest on. It returns how many were overwritten.
func (r *ring) appendTo(all []Event) (_ []Event, lost uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := uint64(len(r.events))
	if r.next <= n {
		return append(all, r.events[:r.next]...), 0
	}
	at := r.next & (n - 1)
	return append(append(all, r.events[at:]...), r.events[:at]...), r.next - n
}
