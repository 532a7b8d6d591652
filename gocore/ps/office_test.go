package ps

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

const (
	server0, server1 = 8, 10
	worker0, worker1 = 9, 11
)

func TestRequestToAGroup(t *testing.T) { overBothPlanes(t, testRequestToAGroup) }

func testRequestToAGroup(t *testing.T, link bool) {
	h := newHub(t, link, 2, 1)
	asker := h.open(wire.SchedulerID, 3, 3)
	var others []*Customer
	for _, id := range []int{server0, worker0, worker1} {
		others = append(others, h.open(id, 3, 3)) // on workers a request names the customer; here it has the id of the app
	}
	ts, err := SimpleApp{asker}.Request(7, []byte("hello"), wire.AllGroup)
	if err != nil {
		t.Fatal(err)
	}
	h.deliver()
	for i, c := range append(others, asker) { // itself, too
		e := h.event(c)
		if e.Request == nil || e.Request.Head != 7 || string(e.Request.Body) != "hello" || e.Request.Peer != wire.SchedulerID {
			t.Fatalf("node %d got %+v", i, e)
		}
		if err := (SimpleApp{c}).Response(e.Request, []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	h.deliver()
	var bodies []byte
	for range 4 {
		e := h.event(asker)
		if e.Response == nil {
			t.Fatalf("got %+v, want a response", e)
		}
		bodies = append(bodies, e.Response.Body...)
	}
	slices.Sort(bodies)
	if r := h.result(asker, ts); r.Err != nil || !slices.Equal(bodies, []byte{0, 1, 2, 3}) {
		t.Errorf("%v, %v", r.Err, bodies)
	}
	if _, err := (SimpleApp{asker}).Request(7, nil, 99); fault.CodeOf(err) != fault.Value {
		t.Errorf("a request to nobody: %v", err)
	}
}

// Each customer of a worker has its own requests, with the same timestamps.
func TestCustomersAreSeparate(t *testing.T) { overBothPlanes(t, testCustomersAreSeparate) }

func testCustomersAreSeparate(t *testing.T, link bool) {
	h := newHub(t, link, 1, 1)
	server := &Sum{server: KVServer{h.open(server0, 0, 0)}, store: map[uint64]*entry{}}
	a, b := h.open(worker0, 0, 0), h.open(worker0, 0, 1)
	if _, err := h.offices[worker0].Open(0, 1); fault.CodeOf(err) != fault.Value {
		t.Errorf("a customer twice: %v", err)
	}
	push := func(c *Customer, value byte) int32 {
		ts, err := KVWorker{c}.PushPull(KVs{Keys: []uint64{5}, Vals: []byte{value}, DType: wire.Uint8}, Completion{}, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return ts
	}
	first, second := push(a, 1), push(b, 10)
	h.serveAll(server)
	if r := h.result(a, first); r.Err != nil || r.KVs.Vals[0] != 1 {
		t.Errorf("customer 0: %+v", r)
	}
	if r := h.result(b, second); r.Err != nil || r.KVs.Vals[0] != 11 {
		t.Errorf("customer 1: %+v", r)
	}
}

func TestRequestWithoutKeysEndsAtOnce(t *testing.T) {
	overBothPlanes(t, testRequestWithoutKeysEndsAtOnce)
}

func testRequestWithoutKeysEndsAtOnce(t *testing.T, link bool) {
	h := newHub(t, link, 1, 2)
	c := h.open(worker0, 0, 0)
	ts, err := KVWorker{c}.Push(KVs{DType: wire.Float32}, Completion{}, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if r := h.result(c, ts); r.Err != nil || len(h.sent)+len(h.packets) > 0 {
		t.Errorf("%+v, and something was sent", r)
	}
}

// A request waits 5 s for its app to be opened, then it is answered with an error.
func TestUnknownApp(t *testing.T) { overBothPlanes(t, testUnknownApp) }

func testUnknownApp(t *testing.T, link bool) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link, 1, 1)
		c := h.open(worker0, 4, 0)
		ask := func() int32 {
			ts, err := SimpleApp{c}.Request(1, nil, server0)
			if err != nil {
				t.Fatal(err)
			}
			h.deliver()
			return ts
		}
		early, late := ask(), ask()
		time.Sleep(appTime / 2)
		server := h.open(server0, 4, 4)
		for range 2 { // both were kept, in order
			if e := h.event(server); e.Request == nil || e.Request.Timestamp != early && e.Request.Timestamp != late {
				t.Fatalf("got %+v", e)
			}
		}
		server.Close()
		third := ask()
		ask()
		time.Sleep(appTime + time.Second)
		synctest.Wait()
		h.deliver()
		if r := h.result(c, third); fault.CodeOf(r.Err) != fault.Remote || !strings.Contains(r.Err.Error(), "no app 4") {
			t.Errorf("got %v", r.Err)
		}
		h.wantRejected(server0, 2, "worker 0")
		if len(h.offices[server0].mu.early) > 0 || h.offices[server0].mu.bytes != 0 {
			t.Error("messages are kept")
		}
	})
}

func TestEarlyMessagesAreBounded(t *testing.T) { overBothPlanes(t, testEarlyMessagesAreBounded) }

func testEarlyMessagesAreBounded(t *testing.T, link bool) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link, 1, 1)
		c := h.open(worker0, 4, 0)
		for range maxEarly + 1 {
			if _, err := (SimpleApp{c}).Request(1, nil, server0); err != nil {
				t.Fatal(err)
			}
		}
		h.deliver()
		h.wantRejected(server0, 1, "worker 0")
		if r := h.result(c, maxEarly); r.Err == nil {
			t.Error("the message beyond the limit was not refused")
		}
	})
}

// Every malformed message is counted, logged once for its sender, and answered if it is
// a request; a malformed answer fails its request.
func TestMalformedMessages(t *testing.T) { overBothPlanes(t, testMalformedMessages) }

func testMalformedMessages(t *testing.T, link bool) {
	h := newHub(t, link, 2, 1)
	server := h.open(server0, 0, 0)
	c := h.open(worker0, 0, 0)
	ts, err := KVWorker{c}.Pull(KVs{Keys: []uint64{1}, DType: wire.Float32}, Completion{}, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	request := func(m Message) *pspb.Meta {
		m.Request, m.Timestamp = true, ts
		meta, _ := m.Encode()
		return meta
	}
	h.sent, h.packets = nil, nil
	h.deliverMessage(worker0, server0, request(Message{Push: true}), make([]byte, 8))
	h.deliverMessage(worker0, server0, request(Message{Pull: true}))
	if len(h.sent)+len(h.packets) == 0 {
		t.Fatal("no answers")
	}
	h.deliverMessage(worker1, server0, &pspb.Meta{Request: proto.Bool(true)})                        // without an app it cannot be answered
	h.deliverMessage(worker1, server0, &pspb.Meta{AppId: proto.Int32(0), Timestamp: proto.Int32(3)}) // an answer without a request
	h.wantRejected(server0, 4, "worker 0")
	h.wantRejected(server0, 4, "worker 1")
	if _, ok := server.poll(); ok {
		t.Error("a malformed message was delivered")
	}
	h.deliver()
	if r := h.result(c, ts); fault.CodeOf(r.Err) != fault.Remote || !strings.Contains(r.Err.Error(), "no frame of values") {
		t.Errorf("the request ended with %v", r.Err)
	}
	h.wantRejected(worker0, 1, "server 0") // the second answer

	ts, err = KVWorker{c}.Pull(KVs{Keys: []uint64{1}, DType: wire.Float32}, Completion{}, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	answer, _ := (&Message{Pull: true, Timestamp: ts}).Encode()
	h.deliverMessage(server0, worker0, answer)
	if r := h.result(c, ts); fault.CodeOf(r.Err) != fault.Remote || !strings.Contains(r.Err.Error(), "malformed") {
		t.Errorf("a pull's answer without values: %v", r.Err)
	}
}

func TestFailure(t *testing.T) { overBothPlanes(t, testFailure) }

func testFailure(t *testing.T, link bool) {
	h := newHub(t, link, 1, 2)
	c := h.open(worker0, 0, 0)
	servers := []*Customer{h.open(server0, 0, 0), h.open(server1, 0, 0)}
	ts, err := SimpleApp{c}.Request(1, nil, wire.ServerGroup)
	if err != nil {
		t.Fatal(err)
	}
	h.deliver()
	if got := c.Missing(ts); !slices.Equal(got, []string{"server 0", "server 1"}) {
		t.Errorf("missing %q", got)
	}
	if err := servers[1].Fail(h.event(servers[1]).Request, "ValueError: no"); err != nil {
		t.Fatal(err)
	}
	h.deliver()
	why := errors.New("server 0 was lost")
	h.offices[worker0].Fail(why)
	if r := h.result(c, ts); !strings.Contains(r.Err.Error(), "server 1 answered request 0 with an error: ValueError: no") {
		t.Errorf("ended with %v", r.Err)
	}
	if _, err := (SimpleApp{c}).Request(1, nil, server0); !errors.Is(err, why) {
		t.Errorf("a request after the failure: %v", err)
	}
	if link {
		return // the data plane drops messages over a closed connection; FailRequestsTo fails the request
	}
	delete(h.offices, server0)
	other := newHub(t, link, 1, 1)
	d := other.open(worker0, 0, 0)
	delete(other.offices, server0)
	ts, err = SimpleApp{d}.Request(1, nil, server0)
	if err != nil {
		t.Fatal(err)
	}
	if r := other.result(d, ts); fault.CodeOf(r.Err) != fault.Connect {
		t.Errorf("a request that cannot be sent: %v", r.Err)
	}
}

func TestNextWaits(t *testing.T) { overBothPlanes(t, testNextWaits) }

func testNextWaits(t *testing.T, link bool) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link, 1, 1)
		c, server := h.open(worker0, 0, 0), h.open(server0, 0, 0)
		if _, ok := server.Next(time.Second); ok {
			t.Error("Next returned an event that nobody sent")
		}
		came := make(chan bool)
		go func() { _, ok := server.Next(time.Hour); came <- ok }()
		synctest.Wait()
		if _, err := (SimpleApp{c}).Request(1, nil, server0); err != nil {
			t.Fatal(err)
		}
		h.deliver()
		if !<-came {
			t.Error("the request did not wake Next")
		}
		go func() { _, ok := server.Next(time.Hour); came <- ok }()
		synctest.Wait()
		server.Close()
		if <-came {
			t.Error("an event after Close")
		}
	})
}
