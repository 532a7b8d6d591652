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

// turnover is what a worker knows of the deaths and admissions of others.
type turnover struct {
	deaths []death // of other nodes, in order
	roster roster  // the workers that take part
	epoch  uint16  // of the rounds that begin now; those after it are not settled yet
	// The workers whose deaths this one has heard of, and that are not settled: while there are any, no round begins or ends. True: it is
	// buried, and the next Settle is about it.
	frozen map[uint32]bool
}

// Freeze keeps rounds from ending, and new ones from beginning, until Settle: that worker is dead.
func (w *Worker) Freeze(node uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.freeze(node, false)
}

func (m *turnover) freeze(node uint32, buried bool) {
	if m.frozen == nil {
		m.frozen = map[uint32]bool{}
	}
	m.frozen[node] = m.frozen[node] || buried
}

// thaw ends the freeze for the workers that are buried, and reports whether there were any.
func (m *turnover) thaw() bool {
	before := len(m.frozen)
	maps.DeleteFunc(m.frozen, func(_ uint32, buried bool) bool { return buried })
	return len(m.frozen) < before
}

// Complete returns how many rounds of each tensor, round 0 included, have ended on this worker; false if it does not know, as a newcomer that
// has not fetched them: none has ended there.
func (w *Worker) Complete() (rounds wire.Rounds, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.complete()
}

// complete is Complete with the lock held.
func (w *Worker) complete() (rounds wire.Rounds, known bool) {
	if w.mu.standing != member {
		return rounds, false
	}
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
	return rounds, true
}

// Settle begins an epoch, after Bury of all workers that have died so far and Join of all that have come. It ends a freeze and a meeting.
// complete has, for each tensor, the largest number that any worker's Complete has returned: after a death later rounds are repeated. An error
// shows a fault of this program.
func (w *Worker) Settle(complete wire.Rounds) (err error) {
	w.step(func() (e effects) {
		if w.mu.failed != nil {
			return e
		}
		died := w.mu.thaw()
		w.mu.epoch = uint16(w.mu.roster.epoch())
		if w.mu.joined {
			e = w.welcome()
		}
		e.sends = append(e.sends, w.mu.asks.resend()...)
		for _, id := range slices.Sorted(maps.Keys(w.mu.byID)) {
			t := w.mu.byID[id]
			ended, known := complete.Of(id)
			if !known && t.next > 0 {
				err = fault.New(fault.Internal, "%s: the scheduler has not decided about its round %d after the death of a worker: too many tensors are in different rounds",
					t.name, t.round)
				return e
			}
			if died {
				e.also = append(e.also, w.settleRound(t, ended))
			}
			e.sends = append(e.sends, w.advance(t)...)
		}
		e.sends = append(e.sends, w.learnRules()...)
		return e
	})
	return err
}

// settleRound repeats the round under way unless it stands: so many have ended somewhere. Where each worker has rounds of its own, none is repeated, as
// nobody else has a part in it. The lock is held.
func (w *Worker) settleRound(t *tensor, ended uint64) (e effects) {
	stands := t.round < ended || t.policy.Applied() != wire.Sync && t.round > 0
	if t.inRound() != nil && !stands {
		t.repeat(w.mu.epoch)
	}
	switch {
	case t.handing != nil: // the contributions follow
		e.sends = t.sendAgain(nil, t.before)
	case t.inRound() != nil && !stands && t.ruled() && w.leads() && t.hasMoved(): // perhaps the leader has died that moved the weights
		e.sends = append(t.sendAgain(nil, t.before), w.handOver(t)...)
	case t.active != nil && t.active.verb == verbFetch && t.again:
		e.sends = t.requestValue(t.active)
	default:
		e.sends = t.sendAgain(t.runs, t.before)
	}
	if t.active != nil {
		e.also = []effects{w.endRound(t)}
	}
	t.again = false
	return e
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

// Present lists the ranks of the workers that take part in the rounds of an epoch, of which a ticket has had a sum, or if it is negative, in
// those that begin now.
func (w *Worker) Present(epoch int) []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if epoch < 0 {
		epoch = int(w.mu.epoch)
	}
	return w.mu.roster.at(epoch)
}

// Ranks is the number of ranks so far, those of dead workers included.
func (w *Worker) Ranks() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(w.Rank, w.mu.roster.highest()) + 1
}

// leads reports whether this worker is the leader: no worker of a lower rank lives.
func (w *Worker) leads() bool { return w.mu.roster.last()[0] == w.Rank }

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
