package kv

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// LogAfter is how long a round may stall before it is logged, and the time until it is logged again.
const LogAfter = 5 * time.Second

// maxLooks bounds the tensors that one tick inspects, so that a tick is short in a large model too.
const maxLooks = 1024

// Stall is a round of a tensor that waits for other nodes.
type Stall struct {
	Tensor  uint32
	Round   uint64
	Missing []string // their names
}

// stalls is what ticks note of them.
type stalls struct {
	logged time.Time // when one was last logged
	last   Stall     // that one
	times  int       // how often it was logged
	sums   uint64    // Worker.mu.sums as the last tick found it
	heard  time.Time // of the first tick that found it so
}

// stall is the round that has waited longest.
type stall struct {
	*tensor
	missing []string
	begun   time.Time
	round   uint64
	others  int // other keys that wait, of those that the tick inspects
}

// tick logs the longest stall and unanswered questions, from LogAfter on.
func (w *Worker) tick(now time.Time) {
	w.step(func() effects { return effects{sends: w.learnRules()} })
	w.tickAsks(now)
	s, times := w.stalled(now)
	if times == 0 {
		return
	}
	key := s.label
	if key == "" {
		key = strconv.FormatUint(s.key, 10)
	}
	w.Log.Warn(fmt.Sprintf("no progress for %.0f s", now.Sub(s.begun).Seconds()),
		"key", key, "round", s.round, "missing", strings.Join(s.missing, ", "), "other_keys", s.others)
	if w.Stalled != nil && times&(times-1) == 0 {
		w.Stalled(Stall{s.id, s.round, s.missing})
	}
}

// stalled returns the longest stall of LogAfter or more, once in LogAfter, and how often it has done so; 0: there is none.
func (w *Worker) stalled(now time.Time) (s stall, times int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.now = now
	last := &w.mu.stalls
	if w.mu.sums != last.sums || last.heard.IsZero() {
		last.sums, last.heard = w.mu.sums, now
	}
	if now.Sub(last.logged) < LogAfter {
		return s, 0
	}
	for e, looks := w.mu.late.Front(), 0; e != nil && looks < maxLooks; e, looks = e.Next(), looks+1 {
		t := e.Value.(*tensor)
		s.consider(now, t, t.begun, t.missing)
	}
	if s.tensor == nil && now.Sub(last.heard) >= LogAfter {
		w.findSilent(now, &s)
	}
	if s.tensor == nil {
		return s, 0
	}
	if last.last.Tensor != s.id || last.last.Round != s.round {
		last.times = 0
	}
	last.logged, last.last = now, Stall{s.id, s.round, s.missing}
	last.times++
	return s, last.times
}

// findSilent finds the round that has waited longest for aggregators which say nothing, not even who is missing. It is only
// called while no sum arrives at all: a tensor that waits behind others in a slow network does not stall.
func (w *Worker) findSilent(now time.Time, s *stall) {
	if len(w.mu.frozen) > 0 {
		return
	}
	for _, t := range w.mu.byID {
		if t.active != nil && t.handing == nil && !t.active.hasAll() {
			s.consider(now, t, later(t.begun, w.mu.stalls.heard), nil)
		}
	}
	if s.tensor != nil {
		for _, node := range s.silent() {
			s.missing = append(s.missing, w.Name(node))
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// consider counts a tensor that has waited for LogAfter since begun, and keeps the one that has waited longest.
func (s *stall) consider(now time.Time, t *tensor, begun time.Time, missing []string) {
	if now.Sub(begun) < LogAfter {
		return
	}
	if s.tensor != nil {
		s.others++
	}
	if s.tensor == nil || begun.Before(s.begun) || begun.Equal(s.begun) && t.key < s.key {
		s.tensor, s.round, s.begun, s.missing = t, t.round, begun, missing
	}
}

// silent lists the aggregators whose sums are missing from the round that is under way.
func (t *tensor) silent() (nodes []uint32) {
	for _, run := range t.runs {
		for p := run.First; p < run.First+run.Count; p++ {
			if !t.active.has(p) {
				nodes = append(nodes, run.Node)
				break
			}
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// Doing describes, for the log of a node that waits, how far this worker is with a round of a tensor, and for what it waits
// itself.
func (w *Worker) Doing(tensor uint32, round uint64) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.mu.byID[tensor]
	if t == nil {
		return w.latestPush()
	}
	name := fmt.Sprintf("%s round %d", t.name, round)
	switch {
	case round < t.round || round == t.round && t.active == nil && t.next > 0:
		return "it has the sum of " + name + ", " + w.latestPush()
	case round == t.round && t.active != nil:
		return fmt.Sprintf("it has pushed %s, %v ago, and waits for the sum: %s", name, w.since(t), w.waitsFor(t.active).Text)
	case len(t.queue) > 0:
		return fmt.Sprintf("it has called push, but not begun %s: %s", name, w.waitsFor(t.queue[0]).Text)
	}
	return "it has not pushed " + name + ", " + w.latestPush()
}

// DoingAtAll is Doing where nothing but this worker's presence is missing.
func (w *Worker) DoingAtAll() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.latestPush()
}

// latestPush describes the round that this worker has begun last. The lock is held.
func (w *Worker) latestPush() string {
	t := w.mu.latest
	if t == nil {
		return "it has pushed nothing yet"
	}
	text := fmt.Sprintf("its latest push is %s round %d, %v ago", t.name, t.round, w.since(t))
	if t.active != nil {
		text += ", and waits: " + w.waitsFor(t.active).Text
	}
	return text
}

// since is how long the round of a tensor has been under way, to the second. The lock is held.
func (w *Worker) since(t *tensor) time.Duration { return w.mu.now.Sub(t.begun).Round(time.Second) }
