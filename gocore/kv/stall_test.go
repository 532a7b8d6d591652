package kv

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"fptps/gocore/wire"
)

// A stall is logged every 5 s, and reported after the first, second, fourth, ... time.
func TestStallsAreReportedEverMoreRarely(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	var reported []Stall
	d.Stalled = func(s Stall) { reported = append(reported, s) }
	d.push(1, make([]byte, size))
	d.arrive(wire.Header{Kind: wire.Missing, Tensor: 1, Round: 1, RawLen: 4}, []byte{11, 0, 0, 0})
	now := time.Now()
	for times, want := range []int{0, 1, 2, 2, 3, 3, 3, 3, 4} {
		d.handler.Tick(now.Add(time.Duration(times) * LogAfter))
		if logged := strings.Count(d.log.String(), "no progress"); logged != times || len(reported) != want {
			t.Fatalf("after %d times: logged %d times, reported %v", times, logged, reported)
		}
	}
	if want := (Stall{Tensor: 1, Round: 1, Missing: []string{"worker 1"}}); !reflect.DeepEqual(reported[0], want) {
		t.Errorf("%v, want %v", reported[0], want)
	}
}

// An aggregator that stands still does not say who is missing: it is missing itself. A tensor does not stall while sums of others
// arrive.
func TestSilentAggregators(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	d.push(1, make([]byte, size))
	now := time.Now()
	d.handler.Tick(now)
	d.sums(1, 1, 1)
	for _, c := range []struct {
		after  time.Duration
		logged int
	}{{LogAfter - time.Second, 0}, {LogAfter, 0}, {2*LogAfter - time.Second, 1}, {2 * LogAfter, 1}, {3 * LogAfter, 2}} {
		d.handler.Tick(now.Add(c.after))
		if logged := strings.Count(d.log.String(), `key=1 round=1 missing="server 0" other_keys=0`); logged != c.logged {
			t.Errorf("after %v: logged %d times, want %d: %s", c.after, logged, c.logged, d.log.String())
		}
	}
}

func TestDoing(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	if text := d.DoingAtAll(); !strings.Contains(text, `its latest push is key 1 round 0, 0s ago`) {
		t.Error(text)
	}
	d.push(1, make([]byte, size))
	d.push(1, make([]byte, size)) // waits for the one before
	d.handler.Tick(d.mu.now.Add(7 * time.Second))
	for _, c := range []struct {
		tensor uint32
		round  uint64
		want   string
	}{
		{1, 0, "it has the sum of key 1 round 0, its latest push is key 1 round 1, 7s ago, and waits: key 1 round 1: the sums of 0 of 3 packets are here"},
		{1, 1, "it has pushed key 1 round 1, 7s ago, and waits for the sum: key 1 round 1: the sums of 0 of 3 packets are here"},
		{1, 2, "it has called push, but not begun key 1 round 2: waits for the operation before it: key 1 round 1: the sums of 0 of 3 packets are here"},
		{9, 2, "its latest push is key 1 round 1, 7s ago, and waits: key 1 round 1: the sums of 0 of 3 packets are here"},
	} {
		if got := d.Doing(c.tensor, c.round); got != c.want {
			t.Errorf("tensor %d round %d: %q", c.tensor, c.round, got)
		}
	}
	idle := newDesk(t, 0).ready(1)
	if got := idle.Doing(1, 1); got != "it has not pushed key 1 round 1, its latest push is key 1 round 0, 0s ago" {
		t.Error(got)
	}
	if got := newDesk(t, 0).DoingAtAll(); got != "it has pushed nothing yet" {
		t.Error(got)
	}
}
