package kv

import (
	"fmt"
	"sync"
	"time"
)

// waits measures for how long at least one thread of the program has waited for a ticket.
type waits struct {
	sync.Mutex
	threads int       // that wait now
	since   time.Time // when the first of them began
	total   time.Duration
}

func (w *waits) begin(now time.Time) {
	w.Lock()
	defer w.Unlock()
	if w.threads == 0 {
		w.since = now
	}
	w.threads++
}

func (w *waits) end(now time.Time) {
	w.Lock()
	defer w.Unlock()
	w.threads--
	if w.threads == 0 {
		w.total += now.Sub(w.since)
	}
}

// until is the time so far, a wait under way included.
func (w *waits) until(now time.Time) time.Duration {
	w.Lock()
	defer w.Unlock()
	if w.threads > 0 {
		return w.total + now.Sub(w.since)
	}
	return w.total
}

// Wait is Ticket.Wait for a thread of the program: Waited counts its time.
func (t *Tickets) Wait(ticket *Ticket, timeout time.Duration) (done bool, err error) {
	if timeout > 0 && !ticket.Done() {
		t.waits.begin(time.Now())
		defer func() { t.waits.end(time.Now()) }()
	}
	return ticket.Wait(timeout)
}

// Waited is for how long at least one thread of the program has waited for tickets.
func (t *Tickets) Waited() time.Duration { return t.waits.until(time.Now()) }

// Delay is a round that waits for the contributions of other workers.
type Delay struct {
	What    string // "key 3 round 7"
	Missing []string
	For     time.Duration
}

// delayAfter is how long a round has to wait before Delay names it. The worker knows when a round began only to
// the second: it takes the time of the last tick.
const delayAfter = 2 * time.Second

// Delay returns the round that has waited longest, from delayAfter on, as far as aggregators have reported whom they wait for;
// What is "" if there is none.
func (w *Worker) Delay(now time.Time) (d Delay) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for e, looks := w.mu.late.Front(), 0; e != nil && looks < maxLooks; e, looks = e.Next(), looks+1 {
		t := e.Value.(*tensor)
		if since := now.Sub(t.begun); since >= delayAfter && since > d.For {
			d = Delay{fmt.Sprintf("%s round %d", t.name, t.round), t.missing, since}
		}
	}
	return d
}
