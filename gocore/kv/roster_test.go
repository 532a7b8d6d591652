package kv

import (
	"slices"
	"testing"
)

// A newcomer knows the epochs from its first one on.
func TestRoster(t *testing.T) {
	r := newRoster(4, []int{2, 0})
	r.join(7)
	r.bury(0)
	r.bury(7)
	r.join(9)
	for epoch, want := range map[int][]int{0: {0, 2}, 4: {0, 2}, 5: {0, 2, 7}, 6: {2, 7}, 7: {2}, 8: {2, 9}, 20: {2, 9}} {
		if got := r.at(epoch); !slices.Equal(got, want) {
			t.Errorf("epoch %d: %v, expected %v", epoch, got, want)
		}
	}
	if r.epoch() != 8 || r.highest() != 9 || !slices.Equal(r.last(), []int{2, 9}) {
		t.Errorf("epoch %d, highest rank %d, the last %v", r.epoch(), r.highest(), r.last())
	}
	r.bury(9)
	if r.highest() != 9 {
		t.Errorf("highest rank %d, after the death of 9", r.highest())
	}
}
