package ps

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"fptps/gocore/wire"
)

func pulled(ts int32, peer int, keys []uint64, vals ...byte) *Message {
	return &Message{Peer: peer, Timestamp: ts, Pull: true, KVs: KVs{Keys: keys, Vals: vals, DType: wire.Uint8}}
}

func TestPullOfTwoServers(t *testing.T) {
	var tracker Tracker
	ts := tracker.Start(true, map[int][]uint64{8: {1, 2}, 10: {7}})
	if got := tracker.Missing(ts); !slices.Equal(got, []int{8, 10}) {
		t.Errorf("missing %v", got)
	}
	if r, err := tracker.Answer(pulled(ts, 10, []uint64{7}, 70, 71)); r != nil || err != nil {
		t.Fatalf("ended by one of two: %v, %v", r, err)
	}
	r, err := tracker.Answer(pulled(ts, 8, []uint64{1, 2}, 10, 20))
	if err != nil || r == nil || r.Err != nil || r.Timestamp != ts {
		t.Fatalf("%+v, %v", r, err)
	}
	if !slices.Equal(r.KVs.Keys, []uint64{1, 2, 7}) || string(r.KVs.Vals) != string([]byte{10, 20, 70, 71}) || !slices.Equal(r.KVs.Lens, []int32{1, 1, 2}) {
		t.Errorf("joined to %+v", r.KVs)
	}
}

func TestUnrequestedAnswers(t *testing.T) {
	var tracker Tracker
	ts := tracker.Start(false, map[int][]uint64{8: nil, 10: nil})
	for name, m := range map[string]*Message{
		"a timestamp from nowhere":  {Peer: 8, Timestamp: 77, Push: true},
		"a negative timestamp":      {Peer: 8, Timestamp: -1, Push: true},
		"a node that was not asked": {Peer: 12, Timestamp: ts, Push: true},
	} {
		if r, err := tracker.Answer(m); r != nil || err == nil {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
	if r, err := tracker.Answer(&Message{Peer: 8, Timestamp: ts, Push: true}); r != nil || err != nil {
		t.Errorf("the first answer: %v, %v", r, err)
	}
	if r, err := tracker.Answer(&Message{Peer: 8, Timestamp: ts, Push: true}); r != nil || err == nil {
		t.Errorf("the same answer twice: %v, %v", r, err)
	}
	if r, err := tracker.Answer(&Message{Peer: 10, Timestamp: ts, Push: true}); r == nil || err != nil {
		t.Errorf("the last answer: %v, %v", r, err)
	}
	if r, err := tracker.Answer(&Message{Peer: 10, Timestamp: ts, Push: true}); r != nil || err == nil {
		t.Errorf("an answer after the end: %v, %v", r, err)
	}
}

func TestRequestsThatFail(t *testing.T) {
	lost := errors.New("server 1 was lost")
	for name, c := range map[string]struct {
		end  func(t *Tracker, ts int32) *Result
		says string
	}{
		"an error": {func(tr *Tracker, ts int32) *Result {
			r, _ := tr.Answer(&Message{Peer: 10, Timestamp: ts, Pull: true, Failure: "KeyError: 7"})
			return r
		}, "server 1 answered request 0 with an error: KeyError: 7"},
		"other keys": {func(tr *Tracker, ts int32) *Result {
			r, _ := tr.Answer(pulled(ts, 10, []uint64{6}, 1))
			return r
		}, "server 1"},
		"another dtype": {func(tr *Tracker, ts int32) *Result {
			m := pulled(ts, 10, []uint64{7}, 1)
			m.KVs.DType = wire.Int8
			r, _ := tr.Answer(m)
			return r
		}, "int8"},
		"a death": {func(tr *Tracker, ts int32) *Result {
			all := tr.FailPeer(10, lost)
			if len(all) != 1 {
				return nil
			}
			return all[0]
		}, "lost"},
	} {
		var tracker Tracker
		ts := tracker.Start(true, map[int][]uint64{8: {1}, 10: {7}})
		if _, err := tracker.Answer(pulled(ts, 8, []uint64{1}, 1)); err != nil {
			t.Fatal(err)
		}
		if r := c.end(&tracker, ts); r == nil || r.Err == nil || !strings.Contains(r.Err.Error(), c.says) {
			t.Errorf("%s: %+v", name, r)
		}
		if len(tracker.open) > 0 {
			t.Errorf("%s: the request is kept", name)
		}
	}
}

// Timestamps wrap around, and open requests have distinct ones.
func TestTimestampsWrapAround(t *testing.T) {
	var tracker Tracker
	asked := func() map[int][]uint64 { return map[int][]uint64{8: nil} }
	first := tracker.Start(false, asked())
	tracker.next = 1<<31 - 1
	if last := tracker.Start(false, asked()); last != 1<<31-1 {
		t.Errorf("the last is %d", last)
	}
	if next := tracker.Start(false, asked()); next != first+1 {
		t.Errorf("after the last came %d, while %d is under way", next, first)
	}
}
