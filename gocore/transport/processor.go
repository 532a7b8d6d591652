package transport

import (
	"slices"
	"time"
)

// A node may be slower than its link: its processor may be slow, its container may get only a part of one, and other programs may
// take most of it. Then a loop has work at almost any time: its thread runs, or waits for a processor. What the node moves meanwhile
// is its capacity (the law of utilisation: Denning and Buzen, ACM Computing Surveys 1978), and loads both directions alike.
const (
	// windowTime is the least time of a window. In a limited one the thread of a loop is busy for busyPart of the time.
	windowTime = 180 * time.Millisecond
	busyPart   = 0.7
	// The processor limits if it did in limitedWindows of the last recentWindows. Between them a node waits for the others, and for its
	// own program. On two cores that were too slow for 16 nodes together, it limited single nodes in up to
	// 6 of 20 windows; a server with a twentieth of a processor was limited in 9.
	recentWindows  = 20
	limitedWindows = 8
	// After forgetTime without a limited window a processor may have become faster, and is forgotten. Each attempt costs some slow
	// iterations if it has not. So the time doubles with each.
	forgetTime = time.Minute
	forgetMost = time.Hour
)

// processor estimates what the processor of this node moves. It is pure: the times are arguments.
type processor struct {
	begun   time.Duration   // of the present window
	busy    []time.Duration // of each thread, until then
	moved   uint64          // bytes in both directions, until then
	windows [recentWindows]float64
	next    int // in windows

	known   float64       // bytes per second in each direction; 0: it is not the limit
	limited time.Duration // end of the last limited window
	forget  time.Duration
}

// observe ends a window, with the time for which each thread has been busy, and the bytes that have been sent and received. It keeps busy.
func (p *processor) observe(now time.Duration, busy []time.Duration, moved uint64) {
	taken, rate := now-p.begun, 0.0
	for i, b := range busy {
		if i < len(p.busy) && float64(b-p.busy[i]) >= busyPart*float64(taken) {
			rate = float64(moved-p.moved) / 2 / taken.Seconds()
		}
	}
	p.begun, p.busy, p.moved = now, busy, moved
	p.windows[p.next] = rate
	p.next = (p.next + 1) % recentWindows
	if rate > 0 {
		p.limited = now
	}
	p.estimate(now)
}

// estimate takes the median of the windows in which the processor was the limit.
func (p *processor) estimate(now time.Duration) {
	rates := slices.DeleteFunc(slices.Sorted(slices.Values(p.windows[:])), func(rate float64) bool { return rate == 0 })
	wait := max(forgetTime, p.forget)
	switch {
	case len(rates) >= limitedWindows:
		p.known = rates[len(rates)/2]
	case p.known > 0 && now-p.limited >= wait:
		p.known, p.forget = 0, min(forgetMost, 2*wait)
	}
}

// due reports whether observe would end a window now.
func (p *processor) due(now time.Duration) bool { return p.busy == nil || now-p.begun >= windowTime }

// observeProcessor takes the busy times of all loops when a window has ended. It learns nothing where the kernel does not count them.
func (t *Transport) observeProcessor() float64 {
	t.mu.Lock()
	known, due := t.mu.processor.known, t.mu.processor.due(t.now())
	t.mu.Unlock()
	if !due {
		return known
	}
	busy, err := t.Busy()
	if err != nil {
		return 0
	}
	sent, received := t.count.peers.total()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.processor.observe(t.now(), busy, sent+received)
	return t.mu.processor.known
}
