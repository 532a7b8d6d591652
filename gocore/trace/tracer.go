package trace

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

// ringEvents is the number of events in each ring: 2 MB of memory while a tracer is on, or was.
const ringEvents = 1 << 16

// The rings, one for each place that records.
const (
	callers   = iota // the program's threads
	queue            // under the lock of the transport
	writers          // the send loop, mostly
	receivers        // the receive loop
	samplers         // the goroutine that reads counters
	places
)

var placeOf = [kindEnd]int{
	Called: callers, Begun: callers, Waited: callers,
	Queued: queue, SumQueued: queue,
	Written: writers, SumWritten: writers,
	Read: receivers, Summed: receivers, Complete: receivers, SumRead: receivers, Done: receivers, Missing: receivers,
	Sent: samplers, Received: samplers, Processor: samplers, Loop: samplers, Delayed: samplers,
}

// Tracer records the events of a node. A nil Tracer is off. All methods may be called from any thread.
type Tracer struct {
	Clock Clock // against the scheduler's

	now      func() int64
	sampling atomic.Uint32 // packets are recorded 1 in so many; 0: the tracer is off
	last     atomic.Uint32 // sampling when it was last on
	rings    [places]ring
}

// New makes a tracer that is off. now reads the host's monotonic clock, in ns.
func New(now func() int64) *Tracer { return &Tracer{now: now} }

// Start turns the tracer on, and forgets what it has recorded before. It records 1 packet in n, n > 0.
func (t *Tracer) Start(n uint32) {
	t.sampling.Store(0)
	for i := range t.rings {
		t.rings[i].reset(ringEvents)
	}
	t.last.Store(n)
	t.sampling.Store(n)
}

// Stop turns the tracer off. What it has recorded stays.
func (t *Tracer) Stop() { t.sampling.Store(0) }

// On reports whether the tracer is on.
func (t *Tracer) On() bool { return t != nil && t.sampling.Load() != 0 }

// Now is the time on the host's monotonic clock, in ns; 0 without a tracer.
func (t *Tracer) Now() int64 {
	if t == nil {
		return 0
	}
	return t.now()
}

// Packet records what happens to a packet, if the packet is in the sample.
func (t *Tracer) Packet(k Kind, tensor uint32, round uint64, packet, peer uint32, bytes int) {
	if t == nil {
		return
	}
	if n := t.sampling.Load(); n != 0 && sampled(tensor, uint32(round), packet, n) {
		t.rings[placeOf[k]].add(&Event{t.now(), tensor, uint32(round), packet, uint32(bytes), peer, k})
	}
}

// Note records an event, whatever the sample. An event without a time happens now.
func (t *Tracer) Note(e Event) {
	if !t.On() {
		return
	}
	if e.Time == 0 {
		e.Time = t.now()
	}
	t.rings[placeOf[e.Kind]].add(&e)
}

// events returns all events that the rings have, in the order of their times, how many were overwritten, and from when on
// all are there.
func (t *Tracer) events() (all []Event, lost uint64, from int64) {
	for i := range t.rings {
		begin := len(all)
		var overwritten uint64
		all, overwritten = t.rings[i].appendTo(all)
		if lost += overwritten; overwritten > 0 {
			from = max(from, all[begin].Time)
		}
	}
	slices.SortStableFunc(all, func(a, b Event) int { return cmp.Compare(a.Time, b.Time) })
	return all, lost, from
}

// Monotonic makes Now of a reading of the host's monotonic clock in ns, taken when began was: Go's own clock goes on from there.
func Monotonic(reading int64, began time.Time) func() int64 {
	return func() int64 { return reading + int64(time.Since(began)) }
}
