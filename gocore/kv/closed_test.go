package kv

import (
	"strings"
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/wire"
)

// A round that needs a closed worker is an error at once: the round under way, and later ones.
func TestRoundsOfAClosedWorker(t *testing.T) {
	last := func(rounds ...uint64) (all wire.Rounds) {
		for _, r := range rounds {
			all.Add(r)
		}
		return all
	}
	for name, c := range map[string]struct {
		policy wire.Policy
		round  uint64 // the newest here
		closed wire.Rounds
		says   string
	}{
		"as far as it":         {wire.Sync, 20, last(7, 20), ""},
		"a round further":      {wire.Sync, 21, last(7, 20), "key 5: worker 1 closed after round 20, and round 21 waits for it"},
		"within the delay":     {wire.Bounded(3), 23, last(7, 20), ""},
		"beyond the delay":     {wire.Bounded(3), 24, last(7, 20), "worker 1 closed after round 20, and round 24"},
		"nobody waits":         {wire.Async, 99, last(7, 20), ""},
		"it says nothing of 1": {wire.Sync, 21, last(7), ""},
		"it makes no sense":    {wire.Sync, 21, wire.Rounds{Counts: []uint32{9}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := NewWorker(WorkerConfig{Workers: []int{0}, Plan: &plan.Plan{}, Tickets: NewTickets()})
			other := &tensor{key: 4, id: 0, next: 8}
			here := &tensor{key: 5, name: "key 5", id: 1, policy: c.policy, next: c.round, queue: []*operation{{}}}
			w.mu.byID = map[uint32]*tensor{0: other, 1: here}
			if got := w.Rounds(); got.Last[0] != 7 || got.Last[1] != c.round {
				t.Errorf("its own rounds are %v", got)
			}
			for _, err := range []error{w.Closed(wire.WorkerID(1), c.closed), w.checkClosed(here, c.round)} {
				if c.says == "" && err != nil || c.says != "" && (fault.CodeOf(err) != fault.Mismatch || !strings.Contains(err.Error(), c.says)) {
					t.Errorf("got %v, want %q", err, c.says)
				}
			}
			here.queue = nil
			here.next++
			if err := w.Closed(wire.WorkerID(2), c.closed); err != nil {
				t.Errorf("nothing is under way: %v", err)
			}
		})
	}
}
