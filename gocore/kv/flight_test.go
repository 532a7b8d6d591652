package kv

import (
	"math/rand/v2"
	"slices"
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// use is one use of a range in the simple list: from, to and the user.
type use struct {
	from, to int
	push     *operation // it is pushed by
	pulls    *operation // it is filled with the sum of
}

// memory is no goroutine's, whose stack, and the arrays on it, may move.
var memory [64]byte

// allowed is the rule, written down plainly: a new use may overlap nothing, but
// for a pull that exactly covers the push it waits for and finds no other pull there.
func allowed(uses []use, u use) bool {
	overlapping := slices.DeleteFunc(slices.Clone(uses), func(o use) bool { return o.to <= u.from || o.from >= u.to })
	if len(overlapping) == 0 {
		return true
	}
	o := overlapping[0]
	return len(overlapping) == 1 && u.pulls != nil && o.push == u.pulls && o.from == u.from && o.to == u.to
}

func TestFlightsAgainstASimpleList(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 5))
		f := newFlights()
		var uses []use
		pushes := []*operation{{}, {}, {}}
		took, refused := 0, 0
		for range 300 {
			if len(uses) > 0 && rng.IntN(5) < 2 { // the pull of a push may outlive it, or not
				i := rng.IntN(len(uses))
				f.leave(memory[uses[i].from:uses[i].to], uses[i].push)
				uses = slices.Delete(uses, i, i+1)
				continue
			}
			u := use{from: rng.IntN(60)}
			u.to = u.from + 1 + rng.IntN(min(8, 64-u.from))
			if len(uses) > 0 && rng.IntN(2) == 0 { // the very same range
				o := uses[rng.IntN(len(uses))]
				u.from, u.to = o.from, o.to
			}
			if rng.IntN(2) == 0 {
				u.push = pushes[rng.IntN(3)]
			} else {
				u.pulls = pushes[rng.IntN(3)]
			}
			before := slices.Clone(f.list)
			err := f.take(7, memory[u.from:u.to], u.push, u.pulls)
			if ok := allowed(uses, u); ok != (err == nil) || err != nil && fault.CodeOf(err) != fault.Busy {
				t.Fatalf("seed %d: %+v beside %+v: %v", seed, u, uses, err)
			}
			if err == nil {
				uses = append(uses, u)
				took++
				continue
			}
			refused++
			if !slices.Equal(before, f.list) {
				t.Fatalf("seed %d: a refusal has changed the list", seed)
			}
		}
		if took < 30 || refused < 30 {
			t.Errorf("seed %d: %d taken, %d refused: not much of a test", seed, took, refused)
		}
		for _, u := range uses {
			f.leave(memory[u.from:u.to], u.push)
		}
		if len(f.list) != 0 {
			t.Errorf("seed %d: left at the end: %v", seed, f.list)
		}
	}
}

// TestPullOutlivesPush: the push of an array has ended while a pull still copies
// into it; no other use may join.
func TestPullOutlivesPush(t *testing.T) {
	f := newFlights()
	array, push := memory[:8], &operation{}
	if f.take(1, array, push, nil) != nil || f.take(1, array, nil, push) != nil {
		t.Fatal("a push and its pull are refused")
	}
	f.leave(array, push)
	if f.take(1, array, nil, push) == nil || f.take(1, array, &operation{}, nil) == nil {
		t.Error("the array is given away while a pull copies into it")
	}
	f.leave(array, nil)
	if err := f.take(2, array, push, nil); err != nil {
		t.Error(err)
	}
}

// newFlights has keys without names.
func newFlights() flights {
	return flights{
		name:  func(key uint64) string { return wire.KeyText(key, "") },
		about: func(key uint64) fault.About { return wire.AboutKey(key, "") },
	}
}
