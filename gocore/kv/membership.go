package kv

import (
	"fmt"
	"maps"
	"slices"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// After the death of a worker each round has its contribution in all sums of the tensor, or in none. The scheduler decides, once all nodes
// have ended their connections with the dead (Bury): until then every worker is frozen, so that no round ends. If any worker
// had all sums of a round before, the round stands: the others get the sums that they lack from their aggregators, or from that worker
// (recovery.go). Else nobody's caller has seen a sum, every worker still has its whole contribution, and all repeat the round in a new epoch,
// which aggregate.Members describes.

// Freeze keeps rounds from ending, and new ones from beginning, until Settle: a worker is dead.
func (w *Worker) Freeze() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.frozen = true
}

// Complete returns how many rounds of each tensor, round 0 included, have ended on this worker.
func (w *Worker) Complete() (rounds wire.Rounds) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := uint32(0); w.mu.byID[id] != nil; id++ {
		t := w.mu.byID[id]
		complete := t.next
		if t.inRound() != nil {
			complete--
		}
		if !rounds.Add(complete) {
			break
		}
	}
	return rounds
}

// Settle ends a freeze, after Bury of all workers that have died so far. complete has, for each tensor, the largest number that any worker's
// Complete has returned: later rounds are repeated. An error shows a fault of this program.
func (w *Worker) Settle(complete wire.Rounds) (err error) {
	w.step(func() (e effects) {
		if w.mu.failed != nil {
			return e
		}
		w.mu.epoch, w.mu.frozen = uint16(len(w.absent())), false
		for _, id := range slices.Sorted(maps.Keys(w.mu.byID)) {
			t := w.mu.byID[id]
			ended, known := complete.Of(id)
			if !known && t.next > 0 {
				err = fault.New(fault.Internal, "%s: the scheduler has not decided about its round %d after the death of a worker: too many tensors are in different rounds",
					t.name, t.round)
				return e
			}
			if t.inRound() != nil && t.round >= ended {
				t.repeat(w.mu.epoch)
			}
			e.sends = append(e.sends, t.sendAgain(t.runs, t.before)...)
			if t.active != nil {
				e.also = append(e.also, w.endRound(t))
			}
			e.sends = append(e.sends, w.advance(t)...)
		}
		return e
	})
	return err
}

// repeat begins the round under way anew.
func (t *tensor) repeat(epoch uint16) {
	o := t.active
	t.epoch, o.count, o.err = epoch, 0, nil
	clear(o.got)
	if t.clashed == t.round {
		t.clashed = 0
	}
}

// absent lists the ranks of the dead workers, in the order of their deaths.
func (w *Worker) absent() (ranks []int) {
	for _, d := range w.mu.deaths {
		if d.rank >= 0 {
			ranks = append(ranks, d.rank)
		}
	}
	return ranks
}

// Absent lists the ranks of the workers that have died and are settled, in the order of their deaths: in epoch n the first n are
// missing.
func (w *Worker) Absent() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.absent()[:w.mu.epoch]
}

// leads reports whether this worker is the leader: no worker of a lower rank lives.
func (w *Worker) leads() bool {
	absent := w.absent()
	for rank := range w.Rank {
		if !slices.Contains(absent, rank) {
			return false
		}
	}
	return true
}

// copySum returns a function that copies the sum of a round that has ended to the callers' arrays, and then ends their tickets. Until then no
// other round begins.
func (w *Worker) copySum(o *operation) func() {
	t, sum, pulls := o.tensor, o.pulls[0].memory, o.pulls[1:]
	t.readers++
	o.queued.Add(1)
	w.copies.Add(1)
	work := func() error {
		defer w.copies.Done()
		for _, p := range pulls {
			copy(p.memory, sum)
		}
		w.step(func() effects {
			o.queued.Add(-1)
			ended := w.end(o)
			return effects{sends: w.endRead(t), ended: ended, err: o.err}
		})
		return nil
	}
	if t.size <= copyAtOnce {
		return func() { _ = work() }
	}
	return func() {
		go func() {
			if err := fault.Catch(work); err != nil {
				w.Fail(fmt.Errorf("a sum could not be copied: %w", err))
			}
		}()
	}
}

// copyAtOnce is the size of sums that the receive loop copies itself: waking another thread takes longer.
const copyAtOnce = 128 << 10
