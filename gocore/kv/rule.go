package kv

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"fptps/gocore/fault"
	"fptps/gocore/store"
	"fptps/gocore/wire"
)

// SetRule sets the rule by which the aggregators update the weights of keys (nil: of all that can have a rule), from this
// worker's next push on. Only the leader's call has an effect (see leads); on other ranks it only checks the keys. The ticket ends when every
// aggregator has the rule.
func (w *Worker) SetRule(keys []uint64, rule store.Rule) (ticket *Ticket, err error) {
	w.step(func() effects {
		var tensors []*tensor
		if tensors, err = w.pick(keys, (*tensor).mayBeRuled); err != nil {
			return effects{}
		}
		i := &inquiry{about: "the optimiser of " + keysText(tensors)}
		if !w.leads() {
			ticket = w.Tickets.New(nil)
			return effects{ended: []*Ticket{ticket}}
		}
		w.stateful(i.about)
		var asks []*ask
		for _, t := range tensors {
			asks = append(asks, t.everywhere(wire.AskRule, rule.Text())...)
		}
		before := make([]*store.Rule, len(tensors))
		for n, t := range tensors { // from the next push on, which does not have to wait for the answers
			before[n], t.rule, t.rated = t.rule, &rule, false
		}
		i.then = func() (e effects) {
			for n, t := range tensors {
				if i.err != nil && t.rule == &rule {
					t.rule = before[n]
				}
			}
			return e
		}
		e := w.inquire(i, asks)
		ticket = i.ticket
		return e
	})
	return ticket, err
}

// learnRules has this worker, if it has become the leader, ask the aggregators for the rules that another worker has set. An aggregator to which weights
// are moving refuses: then the next tick asks again. The lock is held.
func (w *Worker) learnRules() (sends []sending) {
	if w.mu.failed != nil || len(w.mu.deaths) == 0 || len(w.mu.frozen) > 0 || !w.leads() {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(w.mu.byID)) {
		t := w.mu.byID[id]
		if !t.updated || t.rule != nil || t.learning {
			continue
		}
		i := &inquiry{about: fmt.Sprintf("the optimiser of %s", t.name)}
		i.take = func(_ *ask, payload []byte) error {
			is, err := store.ParseArrival(payload)
			if err == nil && t.rule == nil {
				t.rule = is.Rule
			}
			return err
		}
		i.then = func() effects {
			t.learning = false
			return effects{}
		}
		t.learning = true
		a := t.beside(wire.AskDepart, t.run(0), 0, nil)
		a.mayLack = true
		sends = append(sends, w.inquire(i, []*ask{a}).sends...)
	}
	return sends
}

// MayRule returns the error that SetRule would return now.
func (w *Worker) MayRule(keys []uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.pick(keys, (*tensor).mayBeRuled)
	return err
}

// SetLearningRate sets the learning rate of keys (nil: of all that have a rule) for the leader's later pushes, whose headers
// carry it to the aggregators. Other ranks keep it, as they may become the leader.
func (w *Worker) SetLearningRate(keys []uint64, rate float64) error {
	if !wire.GoodLearningRate(rate) {
		return fault.New(fault.Value, "a learning rate of %v: a float32 number, 0 or more, is expected", rate)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	tensors, err := w.pick(keys, (*tensor).isRuled)
	for _, t := range tensors {
		t.rate, t.rated = float32(rate), true
	}
	return err
}

// pick returns the tensors of keys. On the leader every key must be good; with nil keys it returns the good ones of all keys. It
// returns an error if there are none.
func (w *Worker) pick(keys []uint64, good func(t *tensor) error) (tensors []*tensor, err error) {
	all := keys == nil
	var last error = fault.New(fault.Value, "no key is named")
	if all {
		keys = slices.Sorted(maps.Keys(w.mu.byKey))
		last = fault.New(fault.Value, "no key is initialised: call init(key, array) on every worker first")
	}
	for _, key := range keys {
		t, err := w.initialised(key) // a newcomer, too, runs the program of the others
		if err == nil && w.leads() {
			err = good(t)
		}
		switch code := fault.CodeOf(err); {
		case err == nil:
			tensors = append(tensors, t)
		case all && (code == fault.Value || code == fault.Key): // "all keys" leaves it out
			last = err
		default:
			return nil, err
		}
	}
	if tensors == nil {
		return nil, last
	}
	return tensors, nil
}

// mayBeRuled returns an error if the tensor can get no rule now.
func (t *tensor) mayBeRuled() error {
	switch {
	case t.next > 1 && !t.ruled(): // first, since "all keys" means those that were not pushed, of whatever dtype
		return fault.New(fault.Value, "%s was pushed without an optimiser: set the optimiser before the first push", t.name)
	case !store.Updatable(t.dtype):
		return fault.New(fault.Type, "%s holds %v: optimisers work on float16, bfloat16, float32 and float64", t.name, t.dtype)
	}
	return t.idle()
}

func (t *tensor) isRuled() error {
	if !t.ruled() {
		return fault.New(fault.Value, "%s has no optimiser: call set_optimizer() first", t.name)
	}
	return nil
}

// keysText names tensors by their keys: "key 3", "keys 3, 5 and 7 more".
func keysText(tensors []*tensor) string {
	const most = 4
	var names []string
	for _, t := range tensors[:min(len(tensors), most)] {
		names = append(names, strings.TrimPrefix(t.name, "key "))
	}
	switch text := strings.Join(names, ", "); {
	case len(tensors) == 1:
		return "key " + text
	case len(tensors) > most:
		return fmt.Sprintf("keys %s and %d more", text, len(tensors)-most)
	default:
		return "keys " + text
	}
}
