package kv

import (
	"maps"
	"slices"

	"fptps/gocore/plan"
	"fptps/gocore/wire"
)

// A plan changes between the rounds of each tensor. Every worker promises to begin no further round of any tensor
// (Promise). Once all have, the new plan holds from the round after the newest that any of them had begun
// (Commit). No worker has begun that round, so all of them begin it under the new plan. Rounds that are under way go on, and
// the promise lasts a round trip of the control plane.
//
// Weights move with the plan (handover.go). Tables, and tensors under other policies than Sync, keep their plan. So do plain sums
// with a clock that was set, and tensors that were not pushed yet, as they may get an optimiser: the scheduler introduces the plan
// once more for these when they have been pushed.

// numbered is a plan and its number: 0 is that of the start.
type numbered struct {
	number uint32
	plan   *plan.Plan
	tally  *plan.Tally // has cut the tensors that follow the plan, in the order of their ids: the same on all workers
}

func newNumbered(number uint32, p *plan.Plan) numbered { return numbered{number, p, plan.NewTally(p)} }

// change is a plan that holds for a tensor from a round on.
type change struct {
	number uint32
	first  uint64
	runs   []plan.Run
}

// Promise returns the last round that this worker has begun of each tensor, wire.NoRound for those that keep their plan. Until
// Commit or Abort, it begins no further one of the others.
func (w *Worker) Promise() (begun wire.Rounds) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := uint32(0); w.mu.byID[id] != nil; id++ {
		t := w.mu.byID[id]
		last := uint64(wire.NoRound)
		switch pushed := t.next > 1; {
		case !t.moves():
		case w.leads() && !pushed: // it may get an optimiser, of which this worker alone knows
			begun.Unpushed++
		default:
			last = t.next - 1
		}
		if !begun.Add(last) {
			break
		}
		t.held = last != wire.NoRound
	}
	return begun
}

// moves reports whether the tensor's plan may change, once it has been pushed.
func (t *tensor) moves() bool {
	return t.table == nil && t.policy.Applied() == wire.Sync && (t.ruled() || !t.clockSet)
}

// Commit ends a promise: plan p holds for each tensor from its round in first on, and for tensors declared later from the start.
func (w *Worker) Commit(number uint32, p *plan.Plan, first wire.Rounds) {
	w.step(func() effects {
		w.mu.plan = newNumbered(number, p)
		for _, id := range slices.Sorted(maps.Keys(w.mu.byID)) {
			t := w.mu.byID[id]
			if round, known := first.Of(id); known && round != wire.NoRound {
				t.changes = append(t.changes, change{number, round, w.cut(t)})
			}
		}
		return w.endPromise()
	})
}

// PresentPlan is the plan of tensors that are declared now.
func (w *Worker) PresentPlan() *plan.Plan {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.plan.plan
}

// Abort ends a promise: the plan does not change.
func (w *Worker) Abort() { w.step(w.endPromise) }

// endPromise starts the rounds that the promise held back. The lock is held.
func (w *Worker) endPromise() (e effects) {
	for _, t := range w.mu.byID {
		t.held = false
		e.sends = append(e.sends, w.advance(t)...)
	}
	return e
}

// waits reports whether a promise, a freeze or a meeting forbids the round of the tensor's next operation. In a freeze values are not asked for either: the heir
// of a dead aggregator may not have adopted them yet.
func (w *Worker) waits(t *tensor) bool {
	return len(w.mu.frozen) > 0 || (t.held || w.mu.meeting || w.mu.standing != member) && t.queue[0].verb != verbFetch
}

// followPlan gives the tensor the newest plan that holds for its present round, and reports whether that is another one.
func (t *tensor) followPlan() (moved bool) {
	t.before = t.runs
	for i := len(t.changes) - 1; i >= 0; i-- {
		if c := t.changes[i]; c.first <= t.round {
			t.plan, t.runs, t.changes = uint16(c.number), c.runs, t.changes[i+1:]
			return true
		}
	}
	return false
}

// cut divides the tensor among the aggregators of the plan, after those that were cut before. The lock is held.
func (w *Worker) cut(t *tensor) []plan.Run {
	runs := plan.Split(t.key, w.mu.plan.tally.Cut(t.size, nil), len(w.Lanes))
	for _, d := range w.mu.deaths {
		runs = d.patch(t.key, runs)
	}
	return runs
}
