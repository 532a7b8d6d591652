package kv

import (
	"fmt"
	"testing"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

func TestWaitsOverlap(t *testing.T) {
	// Each line: when something happens, what, and the time waited until then.
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	var w waits
	for i, step := range []struct {
		second, threads, total int
	}{{1, +1, 0}, {3, +1, 2}, {4, -1, 3}, {6, -1, 5}, {9, +1, 5}, {10, -1, 6}} {
		if got := w.until(at(step.second)); got != time.Duration(step.total)*time.Second {
			t.Errorf("step %d: %v, want %d s", i, got, step.total)
		}
		if step.threads > 0 {
			w.begin(at(step.second))
		} else {
			w.end(at(step.second))
		}
	}
	if got := w.until(at(99)); got != 6*time.Second {
		t.Errorf("in the end %v", got)
	}
}

func TestWaitedCountsTicketsThatAreNotDone(t *testing.T) {
	tickets := NewTickets()
	over := tickets.New(nil)
	tickets.Finish(over, nil)
	tickets.Wait(over, time.Hour)
	if got := tickets.Waited(); got != 0 {
		t.Errorf("%v for a ticket that had ended", got)
	}
	if done, _ := tickets.Wait(tickets.New(nil), 0); done || tickets.Waited() != 0 {
		t.Errorf("a look counts as a wait of %v", tickets.Waited())
	}
	if done, _ := tickets.Wait(tickets.New(nil), time.Millisecond); done || tickets.Waited() < time.Millisecond {
		t.Errorf("a wait of 1 ms counts as %v", tickets.Waited())
	}
}

// TestStall: rounds that have just begun are none, and the one that has waited longest is named.
func TestStall(t *testing.T) {
	d := newDesk(t, 0)
	begun := time.Now()
	for i, age := range []time.Duration{5, 7, 6} {
		each := &tensor{key: uint64(i), name: fmt.Sprintf("key %d", i), begun: begun.Add(-age * time.Second)}
		each.round = uint64(10 * i)
		d.setMissing(each, []string{fmt.Sprintf("worker %d", i)})
	}
	if got := d.Delay(begun); got.What != "key 1 round 10" || fmt.Sprint(got.Missing) != "[worker 1]" || got.For != 7*time.Second {
		t.Errorf("%+v", got)
	}
	if got := d.Delay(begun.Add(delayAfter - 7*time.Second - 1)); got.What != "" {
		t.Errorf("a round of less than %v: %+v", delayAfter, got)
	}
}

// TestObserve: each push is observed when its sum has arrived; init, skip and what fails are not.
func TestObserve(t *testing.T) {
	d := newDesk(t, 0)
	var seen []string
	d.Observe = func(priority int32, took time.Duration) {
		seen = append(seen, fmt.Sprint(priority, took > 0 && took < time.Minute))
	}
	push := func(priority int32) *Ticket {
		return d.must(d.Push(1, wire.Uint8, make([]byte, size), wire.OpSum, priority))
	}
	d.ready(1)
	one := push(7)
	d.letGo()
	d.sums(1, 1, 0, 1)
	if len(seen) > 0 {
		t.Errorf("observed before the last sum: %v", seen)
	}
	d.sums(1, 1, 2)
	d.ended(one, "")
	skip := d.must(d.Skip(1))
	d.letGo()
	d.sums(1, 2)
	d.ended(skip, "")
	two := push(8)
	d.letGo()
	d.Fail(fault.New(fault.NodeLost, "a death"))
	d.ended(two, fault.NodeLost)
	if fmt.Sprint(seen) != "[7 true]" {
		t.Errorf("observed %v", seen)
	}
}
