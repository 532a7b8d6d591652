package kv

import (
	"math"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// closedWorker is a worker that waits in the last barrier: it takes part in no round after its last ones.
type closedWorker struct {
	id   int
	last wire.Rounds
}

// Rounds returns the last round of each tensor that this worker takes part in, including those in its queues.
func (w *Worker) Rounds() (last wire.Rounds) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := uint32(0); w.mu.byID[id] != nil; id++ {
		if !last.Add(w.mu.byID[id].newest()) {
			break
		}
	}
	return last
}

// newest is the number of the last round that this worker takes part in, including those in its queue.
func (t *tensor) newest() uint64 {
	newest := t.next - 1
	for _, o := range t.queue {
		if o.verb != verbFetch {
			newest++
		}
	}
	return newest
}

// Closed records that a worker waits in the last barrier. It returns an error if a round under way here would wait for
// that worker for ever. Push and its like refuse later rounds.
func (w *Worker) Closed(id int, last wire.Rounds) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.closed = append(w.mu.closed, closedWorker{id, last})
	for id := uint32(0); w.mu.byID[id] != nil; id++ {
		if t := w.mu.byID[id]; t.active != nil || len(t.queue) > 0 {
			if err := w.checkClosed(t, t.newest()); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkClosed returns an error if a round needs a worker that has closed before it.
func (w *Worker) checkClosed(t *tensor, round uint64) error {
	for _, c := range w.mu.closed {
		last, known := c.last.Of(t.id)
		if delay := t.policy.Delay(); known && delay < math.MaxUint64-last && round > last+delay {
			about := wire.AboutNode(c.id)
			about.Key = t.about().Key
			return fault.New(fault.Mismatch, "%s: %s closed after round %d, and round %d waits for it: every worker has to push each key equally often, or skip it",
				t.name, wire.NodeName(c.id), last, round).With(about)
		}
	}
	return nil
}
