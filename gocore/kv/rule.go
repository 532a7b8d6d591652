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

// SetRule has the aggregators update keys' weights by rule from this worker's next pushes on; nil keys are all that can have
// one. It is for rank 0: on the others nothing but the keys is looked at. The ticket ends when every aggregator has the rule.
func (w *Worker) SetRule(keys []uint64, rule store.Rule) (ticket *Ticket, err error) {
	w.step(func() effects {
		var tensors []*tensor
		if tensors, err = w.pick(keys, (*tensor).mayBeRuled); err != nil {
			return effects{}
		}
		i := &inquiry{about: "the optimiser of " + keysText(tensors)}
		if w.Rank != 0 {
			ticket = w.Tickets.New(nil)
			return effects{ended: []*Ticket{ticket}}
		}
		var asks []*ask
		for _, t := range tensors {
			asks = append(asks, t.everywhere(wire.AskRule, rule.Text())...)
		}
		i.ended = func() []sending {
			for _, t := range tensors {
				if i.err == nil {
					t.rule, t.rated = &rule, false
				}
			}
			return nil
		}
		e := w.inquire(i, asks)
		ticket = i.ticket
		return e
	})
	return ticket, err
}

// MayRule tells why SetRule is not possible now, nil if it is.
func (w *Worker) MayRule(keys []uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.pick(keys, (*tensor).mayBeRuled)
	return err
}

// SetLearningRate has rank 0's pushes from the next on tell the aggregators of keys another learning rate; nil keys are all
// that rank 0 has given a rule. On other ranks nothing but the arguments is looked at.
func (w *Worker) SetLearningRate(keys []uint64, rate float64) error {
	if !wire.GoodLearningRate(rate) {
		return fault.New(fault.Value, "a learning rate of %v: a float32 number, 0 or more, is expected", rate)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	tensors, err := w.pick(keys, (*tensor).isRuled)
	if w.Rank != 0 {
		return err
	}
	for _, t := range tensors {
		t.rate, t.rated = float32(rate), true
	}
	return err
}

// pick gives the tensors of keys, each of which has to be good on rank 0; of nil, those that are. None is an error there.
func (w *Worker) pick(keys []uint64, good func(t *tensor) error) (tensors []*tensor, err error) {
	all := keys == nil
	var last error = fault.New(fault.Value, "no key is named")
	if all {
		keys = slices.Sorted(maps.Keys(w.mu.byKey))
		last = fault.New(fault.Value, "no key is initialised: call init(key, array) on every worker first")
	}
	for _, key := range keys {
		t, err := w.find(key)
		if err == nil && w.Rank == 0 {
			err = good(t)
		}
		switch code := fault.CodeOf(err); {
		case err == nil:
			tensors = append(tensors, t)
		case all && (code == fault.Value || code == fault.Key): // not one of those that are meant
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

// mayBeRuled tells why no rule can be given to a tensor now.
func (t *tensor) mayBeRuled() error {
	switch {
	case !store.Updatable(t.dtype):
		return fault.New(fault.Type, "key %d holds %v: optimisers work on float16, bfloat16, float32 and float64", t.key, t.dtype)
	case t.next > 1 && t.rule == nil:
		return fault.New(fault.Value, "key %d was pushed without an optimiser: set the optimiser before the first push", t.key)
	}
	return t.idle()
}

func (t *tensor) isRuled() error {
	if t.rule == nil {
		return fault.New(fault.Value, "key %d has no optimiser: call set_optimizer() first", t.key)
	}
	return nil
}

// keysText names tensors by their keys: "key 3", "keys 3, 5 and 7 more".
func keysText(tensors []*tensor) string {
	const most = 4
	var names []string
	for _, t := range tensors[:min(len(tensors), most)] {
		names = append(names, fmt.Sprint(t.key))
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
