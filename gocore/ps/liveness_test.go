package ps

import (
	"errors"
	"testing"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// Requests to a dead node fail, those to others do not. Answers to its own requests are dropped and do not reach its
// successor.
func TestNodeIsReplaced(t *testing.T) {
	overBothPlanes(t, func(t *testing.T, link bool) {
		h := newHub(t, link, 1, 2)
		c := h.open(worker0, 0, 0)
		servers := []*Customer{h.open(server0, 0, 0), h.open(server1, 0, 0)}
		push := func(keys ...uint64) int32 {
			k := KVs{Keys: keys, Vals: make([]byte, len(keys)), DType: wire.Uint8}
			ts, err := KVWorker{c}.Push(k, Completion{}, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			return ts
		}
		second := Bounds(2)[1]
		here, there, both := push(1), push(second), push(1, second)
		h.deliver()
		why := fault.New(fault.NodeLost, "server 1 was lost")
		h.offices[worker0].MarkDead(server1, why)
		h.offices[worker0].FailRequestsTo(server1, why)
		if r := h.result(c, there); fault.CodeOf(r.Err) != fault.NodeLost {
			t.Errorf("the request to it: %v", r.Err)
		}
		if r := h.result(c, push(second)); fault.CodeOf(r.Err) != fault.NodeLost {
			t.Errorf("a new request to it: %v", r.Err)
		}
		respond := func(s *Customer) {
			for e, ok := s.poll(); ok; e, ok = s.poll() {
				if err := (KVServer{s}).Response(e.Request, KVs{}); err != nil {
					t.Error(err)
				}
			}
			h.deliver()
		}
		respond(servers[0])
		if r := h.result(c, here); r.Err != nil {
			t.Errorf("the request to the other: %v", r.Err)
		}
		if r := h.result(c, both); fault.CodeOf(r.Err) != fault.NodeLost {
			t.Errorf("the request to both: %v", r.Err)
		}
		if link {
			h.offices[worker0].Link(hubPlane{h, worker0}, server1)
		}
		h.offices[worker0].MarkReplaced(server1)

		// The worker is replaced as well; the timestamp of its successor's first request was used by the dead worker.
		h.offices[server1].MarkDead(worker0, errors.New("worker 0 was lost"))
		if link {
			h.offices[server1].Link(hubPlane{h, server1}, worker0)
		}
		h.offices[server1].MarkReplaced(worker0)
		respond(servers[1]) // to the dead worker's request
		if _, ok := c.poll(); ok || h.offices[worker0].Rejected() > 0 {
			t.Error("an answer to the dead worker reached its successor")
		}
		again := push(second)
		h.deliver()
		respond(servers[1])
		if r := h.result(c, again); r.Err != nil {
			t.Errorf("the new worker's request: %v", r.Err)
		}
	})
}

// The end of an awaited request is reported by Wait, and not by Next.
func TestAwaitedRequests(t *testing.T) {
	h := newHub(t, true, 1, 1)
	s := Serve(h.open(server0, 0, 0))
	defer s.server.Close()
	c := h.open(worker0, 0, 0)
	exchange := func(push bool, dtype wire.DType, out []byte) int32 {
		k := KVs{Keys: []uint64{1}, DType: dtype}
		if push {
			k.Vals = []byte{1, 2, 3, 4}
		}
		ts, err := KVWorker{c}.exchange(push, !push, k, Completion{Out: out, Awaited: true}, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return ts
	}
	out := make([]byte, 4)
	first := exchange(true, wire.Uint8, nil)
	if _, done := c.Wait(first, time.Millisecond); done {
		t.Error("done before it was served")
	}
	ended := make(chan *Result)
	go func() { r, _ := c.Wait(first, time.Minute); ended <- r }()
	h.deliver() // and served at once
	if r := <-ended; r != nil {
		t.Errorf("a push ended with %+v", r)
	}
	landed, kept, wrong := exchange(false, wire.Uint8, out), exchange(false, wire.Uint8, nil), exchange(true, wire.Int8, nil)
	h.deliver()
	if r, done := c.Wait(landed, 0); !done || r != nil || out[3] != 4 {
		t.Errorf("a pull into an array: %v, %+v, %d", done, r, out)
	}
	for range 2 { // until Forget
		if r, done := c.Wait(kept, 0); !done || r == nil || r.KVs.Vals[3] != 4 {
			t.Errorf("a pull without an array: %v, %+v", done, r)
		}
	}
	r, _ := c.Wait(kept, 0)
	c.Forget(r)
	if r, done := c.Wait(kept, 0); !done || r != nil {
		t.Error("it was not forgotten")
	}
	if r, done := c.Wait(wrong, 0); !done || fault.CodeOf(r.Err) != fault.Remote {
		t.Errorf("a refused push: %v, %+v", done, r)
	}
	late := exchange(false, wire.Uint8, nil)
	h.offices[worker0].Fail(errors.New("over"))
	if r, done := c.Wait(late, 0); !done || r == nil || r.Err == nil {
		t.Errorf("after the failure: %v, %+v", done, r)
	}
	if e, ok := c.poll(); ok {
		t.Errorf("Next tells %+v", e)
	}
}

// Long requests, and requests that arrive while another is served, are queued and served in order.
func TestQueuedRequestsAreServedInOrder(t *testing.T) {
	h := newHub(t, true, 1, 1)
	s := Serve(h.open(server0, 0, 0))
	defer s.server.Close()
	c := h.open(worker0, 0, 0)
	one := make([]byte, inlineBytes+1)
	one[0] = 1
	const pushes = 20
	var all []int32
	for range pushes {
		ts, err := KVWorker{c}.Push(KVs{Keys: []uint64{1}, Vals: one, DType: wire.Uint8}, Completion{Awaited: true}, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		h.deliver()
		pull, err := KVWorker{c}.Pull(KVs{Keys: []uint64{1}, DType: wire.Uint8}, Completion{Awaited: true}, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ts, pull)
	}
	end := time.Now().Add(30 * time.Second)
	for n, ts := range all {
		for r, done := c.Wait(ts, 0); ; r, done = c.Wait(ts, 0) {
			if done && n%2 == 1 && int(r.KVs.Vals[0]) != (n+1)/2 {
				t.Fatalf("pull %d got %d", n/2, r.KVs.Vals[0])
			}
			if done {
				break
			}
			if time.Now().After(end) {
				t.Fatal("a request has no end")
			}
			h.deliver()
		}
	}
}
