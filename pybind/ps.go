package pybind

import (
	"encoding/json"
	"math"
	"strings"
	"sync"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/node"
	"fptps/gocore/ps"
	"fptps/gocore/wire"
)

// app is a customer that Python has opened, with the last event that PSNext returned.
type app struct {
	*ps.Customer
	mu        sync.Mutex
	lastKVs   ps.KVs
	lastEvent ps.Event // the event of lastKVs
}

// OpenPS is Open for a program that uses fptps.ps, which itself ends a server or the
// scheduler. customer is the number of the customer that starts the process's node.
func OpenPS(h int64, options string, customer int64) (zero int64, err error) {
	defer encodeError(&err)
	c, err := node.ParseOptions(options)
	if err != nil {
		return 0, err
	}
	if c.Alone() {
		return 0, fault.New(fault.Config, "fptps.ps needs a cluster: set DMLC_ROLE, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_NUM_WORKER and DMLC_NUM_SERVER, or start all with `fptps run`")
	}
	c.PS, c.Customer = true, int(customer)
	open(h, c)
	return 0, nil
}

// PSEnter joins another customer of the process to the cluster.
func PSEnter(h, ticket, customer int64) (zero int64, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	return found.number(found.node.Enter(int(customer)), ticket)
}

// PSBarrier is a barrier of a group of nodes.
func PSBarrier(h, ticket, customer, group int64) (zero int64, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	barrier, err := found.node.CustomerBarrier(int(customer), int(group))
	if err != nil {
		return 0, err
	}
	return found.number(barrier, ticket)
}

// PSPlace returns the ids of all nodes, as JSON.
func PSPlace(h int64) (place string, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return "", err
	}
	return marshal(found.node.Place())
}

// PSCustomer opens a customer of an app.
func PSCustomer(h, number, customer int64) (zero int64, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	opened, err := found.node.Office.Open(int32(number), int32(customer))
	if err != nil {
		return 0, err
	}
	handles.Lock()
	defer handles.Unlock()
	found.apps[[2]int64{number, customer}] = &app{Customer: opened}
	return 0, nil
}

// PSSum serves a customer's requests by ps-lite's default handle, in the core.
func PSSum(h, number, customer int64) (zero int64, err error) {
	defer encodeError(&err)
	a, err := findApp(h, number, customer)
	if err != nil {
		return 0, err
	}
	ps.Serve(a.Customer)
	return 0, nil
}

// PSClose closes a customer: later messages to it are dropped.
func PSClose(h, number, customer int64) (zero int64, err error) {
	defer encodeError(&err)
	a, err := findApp(h, number, customer)
	if err != nil {
		return 0, err
	}
	a.Close()
	handles.Lock()
	defer handles.Unlock()
	delete(handles.open[h].apps, [2]int64{number, customer})
	return 0, nil
}

func findApp(h, number, customer int64) (*app, error) {
	found, err := find(h)
	if err != nil {
		return nil, err
	}
	handles.Lock()
	defer handles.Unlock()
	if a := found.apps[[2]int64{number, customer}]; a != nil {
		return a, nil
	}
	return nil, fault.New(fault.Closed, "app %d is closed", number)
}

// event is the JSON that PSNext returns.
type event struct {
	Kind      string `json:"kind"` // request, response or result
	Peer      int    `json:"peer"`
	Customer  int32  `json:"customer"`
	Timestamp int32  `json:"timestamp"`
	Head      int32  `json:"head"`
	Simple    bool   `json:"simple"`
	Push      bool   `json:"push"`
	Pull      bool   `json:"pull"`
	Priority  int32  `json:"priority"`
	Life      int    `json:"life"` // see ps.Message
	Body      []byte `json:"body"` // base64
	Keys      int    `json:"keys"`
	Bytes     int    `json:"bytes"` // of the values
	DType     int    `json:"dtype"`
	Lens      int    `json:"lens"`
	Landed    bool   `json:"landed"` // of a result: the values are in the caller's array
	Error     string `json:"error"`  // of a result: as encode gives it
}

// PSNext waits at most ms milliseconds for a customer's next event, and returns it as JSON;
// "" after the timeout. PSTake copies its keys, values and lens.
func PSNext(h, number, customer, ms int64) (text string, err error) {
	defer encodeError(&err)
	a, err := findApp(h, number, customer)
	if err != nil {
		return "", err
	}
	e, ok := a.Next(time.Duration(ms) * time.Millisecond)
	if !ok {
		return "", nil
	}
	var out event
	var kept ps.KVs
	switch {
	case e.Request != nil:
		out, kept = eventOf("request", e.Request), e.Request.KVs
	case e.Response != nil:
		out = eventOf("response", e.Response)
	default:
		out, kept = resultOf(e.Result)
	}
	out.count(&kept)
	a.mu.Lock()
	a.lastKVs, a.lastEvent = kept, e
	a.mu.Unlock()
	return marshal(out)
}

// resultOf converts the end of a request, with its values.
func resultOf(r *ps.Result) (event, ps.KVs) {
	e, k := event{Kind: "result", Timestamp: r.Timestamp, Landed: r.InPlace}, r.KVs
	if r.Err != nil {
		e.Error = errorText(r.Err)
	}
	return e, k
}

func (e *event) count(k *ps.KVs) {
	e.Keys, e.Bytes, e.DType, e.Lens = len(k.Keys), len(k.Vals), int(k.DType), len(k.Lens)
}

func eventOf(kind string, m *ps.Message) event {
	return event{
		Kind: kind, Peer: m.Peer, Customer: m.Customer, Timestamp: m.Timestamp, Head: m.Head, Simple: m.Simple,
		Push: m.Push, Pull: m.Pull, Priority: m.Priority, Life: m.PeerDeaths, Body: m.Body,
	}
}

// PSTake copies keys, values and lens of the last event of PSNext to arrays of the sizes in
// that event; a pointer of 0 skips an array.
func PSTake(h, number, customer int64, keys, values, lens uintptr) (zero int64, err error) {
	defer encodeError(&err)
	a, err := findApp(h, number, customer)
	if err != nil {
		return 0, err
	}
	a.mu.Lock()
	k, e := a.lastKVs, a.lastEvent
	a.lastKVs, a.lastEvent = ps.KVs{}, ps.Event{}
	a.mu.Unlock()
	copy(memory[uint64](keys, int64(len(k.Keys))), k.Keys)
	copyOut(&k, values, lens)
	a.Done(e)
	return 0, nil
}

// copyOut copies values and lens to the caller's arrays.
func copyOut(k *ps.KVs, values, lens uintptr) {
	copy(memory[byte](values, int64(len(k.Vals))), k.Vals)
	copy(memory[int32](lens, int64(len(k.Lens))), k.Lens)
}

// PSWait waits at most ms milliseconds for the end of an awaited request. It returns 0 if the request has not ended, 1 if it
// has succeeded without data to read, and 2 if PSResult has its result.
func PSWait(h, number, customer, timestamp, ms int64) (state int64, err error) {
	defer encodeError(&err)
	a, err := findApp(h, number, customer)
	if err != nil {
		return 0, err
	}
	switch r, done := a.Wait(int32(timestamp), time.Duration(ms)*time.Millisecond); {
	case r != nil:
		return 2, nil
	case done:
		return 1, nil
	}
	return 0, nil
}

// PSResult returns the result of an awaited request, as JSON; "" after PSFill.
func PSResult(h, number, customer, timestamp int64) (text string, err error) {
	defer encodeError(&err)
	a, err := findApp(h, number, customer)
	if err != nil {
		return "", err
	}
	r, _ := a.Wait(int32(timestamp), 0)
	if r == nil {
		return "", nil
	}
	out, k := resultOf(r)
	out.count(&k)
	return marshal(out)
}

// PSFill copies the values and lens of an awaited request to arrays of the sizes in PSResult, and forgets the result; a
// pointer of 0 skips an array.
func PSFill(h, number, customer, timestamp int64, values, lens uintptr) (zero int64, err error) {
	defer encodeError(&err)
	a, err := findApp(h, number, customer)
	if err != nil {
		return 0, err
	}
	if r, _ := a.Wait(int32(timestamp), 0); r != nil {
		copyOut(&r.KVs, values, lens)
		a.Forget(r)
	}
	return 0, nil
}

// kvs makes KVs from the caller's arrays. It copies keys and lens, not the values.
func kvs(dtype int64, keys uintptr, count int64, values uintptr, bytes int64, lens uintptr, lengths int64) ps.KVs {
	k := ps.KVs{Keys: append([]uint64(nil), memory[uint64](keys, count)...), Vals: memory[byte](values, bytes), DType: dtypeOf(dtype)}
	if lens != 0 {
		k.Lens = append([]int32{}, memory[int32](lens, lengths)...)
	}
	return k
}

// check32Bits returns an error unless all numbers fit 32 bits.
func check32Bits(numbers ...int64) error {
	for _, n := range numbers {
		if n < math.MinInt32 || n > math.MaxInt32 {
			return fault.New(fault.Value, "%d: 32 bits are expected", n)
		}
	}
	return nil
}

// PSRequest sends a simple request to a node or a group, and returns its timestamp.
func PSRequest(h, number, customer, head int64, body uintptr, bytes, to int64) (timestamp int64, err error) {
	defer encodeError(&err)
	a, err := findApp(h, number, customer)
	if err != nil {
		return 0, err
	}
	if err := check32Bits(head, to); err != nil {
		return 0, err
	}
	ts, err := ps.SimpleApp{Customer: a.Customer}.Request(int32(head), append([]byte(nil), memory[byte](body, bytes)...), int(to))
	return int64(ts), err
}

// PSExchange pushes (flag 1), pulls (flag 2) or both, and returns the timestamp of the request. With flag 4 PSWait reports its
// end, else PSNext. The arrays are not used after the return, except out: if it is not 0, it may be written until the request
// has ended.
func PSExchange(h, number, customer, flags, command, priority, dtype int64, keys uintptr, count int64, values uintptr, bytes int64, lens uintptr, lengths int64, out uintptr, length int64) (timestamp int64, err error) {
	defer encodeError(&err)
	a, err := findApp(h, number, customer)
	if err != nil {
		return 0, err
	}
	if err := check32Bits(command, priority); err != nil {
		return 0, err
	}
	worker := ps.KVWorker{Customer: a.Customer}
	exchange := worker.PushPull
	switch flags & 3 {
	case 1:
		exchange = worker.Push
	case 2:
		exchange = worker.Pull
	}
	end := ps.Completion{Out: memory[byte](out, length), Awaited: flags&4 != 0}
	ts, err := exchange(kvs(dtype, keys, count, values, bytes, lens, lengths), end, int32(command), int32(priority))
	return int64(ts), err
}

// PSRespond answers a request, which to identifies by its event in JSON.
func PSRespond(h, number, customer int64, to string, body uintptr, length, dtype int64, keys uintptr, count int64, values uintptr, bytes int64, lens uintptr, lengths int64) (zero int64, err error) {
	defer encodeError(&err)
	a, request, err := requestOf(h, number, customer, to)
	if err != nil {
		return 0, err
	}
	if request.Simple {
		return 0, ps.SimpleApp{Customer: a.Customer}.Response(request, append([]byte(nil), memory[byte](body, length)...))
	}
	return 0, ps.KVServer{Customer: a.Customer}.Response(request, kvs(dtype, keys, count, values, bytes, lens, lengths))
}

// PSFail answers a request with an error.
func PSFail(h, number, customer int64, to, why string) (zero int64, err error) {
	defer encodeError(&err)
	a, request, err := requestOf(h, number, customer, to)
	if err != nil {
		return 0, err
	}
	return 0, a.Fail(request, why)
}

// requestOf decodes the request that an answer is for.
func requestOf(h, number, customer int64, to string) (*app, *ps.Message, error) {
	a, err := findApp(h, number, customer)
	if err != nil {
		return nil, nil, err
	}
	var e event
	if err := json.Unmarshal([]byte(to), &e); err != nil {
		return nil, nil, fault.New(fault.Value, "not a request: %v", err)
	}
	return a, &ps.Message{
		Peer: e.Peer, App: int32(number), Customer: e.Customer, Timestamp: e.Timestamp, Head: e.Head, Simple: e.Simple,
		Push: e.Push, Pull: e.Pull, Priority: e.Priority, PeerDeaths: e.Life,
	}, nil
}

// PSMissing names the nodes that have not answered a request, "server 0, server 1".
func PSMissing(h, number, customer, timestamp int64) (names string, err error) {
	defer encodeError(&err)
	a, err := findApp(h, number, customer)
	if err != nil {
		return "", err
	}
	return strings.Join(a.Missing(int32(timestamp)), ", "), nil
}

// PSBounds returns the first key of each server, and the end of the last range, as JSON.
func PSBounds(servers int64) (bounds string, err error) {
	defer encodeError(&err)
	if servers < 1 || servers > int64(wire.MaxWorkers) {
		return "", fault.New(fault.Value, "%d servers", servers)
	}
	return marshal(ps.Bounds(int(servers)))
}
