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

// app is a customer that Python has opened, and the values of the event that it was
// told of last.
type app struct {
	*ps.Customer
	mu   sync.Mutex
	kept ps.KVs
	told ps.Event // that kept is of
}

// OpenPS is Open for a program of ps-lite's classes: it is the program that ends a
// server or the scheduler, too. customer is the one that starts the process's node.
func OpenPS(options string, customer int64) (h int64, err error) {
	defer failed(&err)
	c, err := node.ParseOptions(options)
	if err != nil {
		return 0, err
	}
	if c.Alone() {
		return 0, fault.New(fault.Config, "fptps.ps needs a cluster: set DMLC_ROLE, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_NUM_WORKER and DMLC_NUM_SERVER, or start all with `fptps run`")
	}
	c.PS, c.Customer = true, int(customer)
	return open(c), nil
}

// PSEnter has another customer of the process ask for a place in the cluster.
func PSEnter(h, customer int64) (ticket int64, err error) {
	defer failed(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	return found.node.Enter(int(customer)).ID, nil
}

// PSBarrier waits for a group of nodes.
func PSBarrier(h, customer, group int64) (ticket int64, err error) {
	defer failed(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	barrier, err := found.node.Meet(int(customer), int(group))
	if err != nil {
		return 0, err
	}
	return barrier.ID, nil
}

// PSPlace tells the ids of all nodes, as JSON.
func PSPlace(h int64) (place string, err error) {
	defer failed(&err)
	found, err := find(h)
	if err != nil {
		return "", err
	}
	return marshal(found.node.Place())
}

// PSCustomer opens a customer of an app.
func PSCustomer(h, number, customer int64) (zero int64, err error) {
	defer failed(&err)
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

// PSSum has a customer's requests answered by ps-lite's default handle, in the core.
func PSSum(h, number, customer int64) (zero int64, err error) {
	defer failed(&err)
	a, err := findApp(h, number, customer)
	if err != nil {
		return 0, err
	}
	ps.Serve(a.Customer)
	return 0, nil
}

// PSClose ends a customer: messages for it are dropped.
func PSClose(h, number, customer int64) (zero int64, err error) {
	defer failed(&err)
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

// event is what PSNext tells.
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
	Error     string `json:"error"`  // of a result: code and text
}

// PSNext waits at most ms milliseconds for a customer's next event, and tells it as
// JSON; "" when there is none. Its keys, values and lens PSTake copies.
func PSNext(h, number, customer, ms int64) (told string, err error) {
	defer failed(&err)
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
	a.kept, a.told = kept, e
	a.mu.Unlock()
	return marshal(out)
}

// resultOf is the end of a request, and its values, but for those that are the caller's already.
func resultOf(r *ps.Result) (event, ps.KVs) {
	e, k := event{Kind: "result", Timestamp: r.Timestamp, Landed: r.Landed}, r.KVs
	if r.Err != nil {
		e.Error = string(fault.CodeOf(r.Err)) + ": " + strings.ToValidUTF8(r.Err.Error(), "?")
	}
	return e, k
}

func (e *event) count(k *ps.KVs) {
	e.Keys, e.Bytes, e.DType, e.Lens = len(k.Keys), len(k.Vals), int(k.DType), len(k.Lens)
}

func eventOf(kind string, m *ps.Message) event {
	return event{
		Kind: kind, Peer: m.Peer, Customer: m.Customer, Timestamp: m.Timestamp, Head: m.Head, Simple: m.Simple,
		Push: m.Push, Pull: m.Pull, Priority: m.Priority, Life: m.Life, Body: m.Body,
	}
}

// PSTake copies keys, values and lens of the event that PSNext told last to arrays of
// the sizes that it told; a pointer of 0 leaves them out.
func PSTake(h, number, customer int64, keys, values, lens uintptr) (zero int64, err error) {
	defer failed(&err)
	a, err := findApp(h, number, customer)
	if err != nil {
		return 0, err
	}
	a.mu.Lock()
	k, e := a.kept, a.told
	a.kept, a.told = ps.KVs{}, ps.Event{}
	a.mu.Unlock()
	copy(memory[uint64](keys, int64(len(k.Keys))), k.Keys)
	give(&k, values, lens)
	a.Done(e)
	return 0, nil
}

// give copies values and lens to arrays of the caller's.
func give(k *ps.KVs, values, lens uintptr) {
	copy(memory[byte](values, int64(len(k.Vals))), k.Vals)
	copy(memory[int32](lens, int64(len(k.Lens))), k.Lens)
}

// PSWait waits at most ms milliseconds for the end of an awaited request: 0, it has not ended; 1, it has, and there is
// nothing to tell; 2, PSResult tells.
func PSWait(h, number, customer, timestamp, ms int64) (state int64, err error) {
	defer failed(&err)
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

// PSResult tells, as JSON, how an awaited request has ended; "" once PSFill has been called.
func PSResult(h, number, customer, timestamp int64) (told string, err error) {
	defer failed(&err)
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

// PSFill copies the values and lens of an awaited request that has ended to arrays of the sizes that PSResult told,
// and forgets it; a pointer of 0 leaves them out.
func PSFill(h, number, customer, timestamp int64, values, lens uintptr) (zero int64, err error) {
	defer failed(&err)
	a, err := findApp(h, number, customer)
	if err != nil {
		return 0, err
	}
	if r, _ := a.Wait(int32(timestamp), 0); r != nil {
		give(&r.KVs, values, lens)
		a.Forget(r)
	}
	return 0, nil
}

// kvs are the caller's arrays; the values stay its memory.
func kvs(dtype int64, keys uintptr, count int64, values uintptr, bytes int64, lens uintptr, lengths int64) ps.KVs {
	k := ps.KVs{Keys: append([]uint64(nil), memory[uint64](keys, count)...), Vals: memory[byte](values, bytes), DType: dtypeOf(dtype)}
	if lens != 0 {
		k.Lens = append([]int32{}, memory[int32](lens, lengths)...)
	}
	return k
}

// fits tells whether numbers from Python are 32 bits.
func fits(numbers ...int64) error {
	for _, n := range numbers {
		if n < math.MinInt32 || n > math.MaxInt32 {
			return fault.New(fault.Value, "%d: 32 bits are expected", n)
		}
	}
	return nil
}

// PSRequest sends a simple request to a node or a group, and names it.
func PSRequest(h, number, customer, head int64, body uintptr, bytes, to int64) (timestamp int64, err error) {
	defer failed(&err)
	a, err := findApp(h, number, customer)
	if err != nil {
		return 0, err
	}
	if err := fits(head, to); err != nil {
		return 0, err
	}
	ts, err := ps.SimpleApp{Customer: a.Customer}.Request(int32(head), append([]byte(nil), memory[byte](body, bytes)...), int(to))
	return int64(ts), err
}

// PSExchange pushes (flag 1), pulls (flag 2) or both, and names the request; with flag 4 its end is awaited by PSWait,
// else PSNext tells it. The arrays are not used after the return, but out, unless that is 0: it may be filled until the
// request has ended.
func PSExchange(h, number, customer, flags, command, priority, dtype int64, keys uintptr, count int64, values uintptr, bytes int64, lens uintptr, lengths int64, out uintptr, length int64) (timestamp int64, err error) {
	defer failed(&err)
	a, err := findApp(h, number, customer)
	if err != nil {
		return 0, err
	}
	if err := fits(command, priority); err != nil {
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
	end := ps.Ending{Out: memory[byte](out, length), Awaited: flags&4 != 0}
	ts, err := exchange(kvs(dtype, keys, count, values, bytes, lens, lengths), end, int32(command), int32(priority))
	return int64(ts), err
}

// PSRespond answers a request, which its event in JSON names.
func PSRespond(h, number, customer int64, to string, body uintptr, length, dtype int64, keys uintptr, count int64, values uintptr, bytes int64, lens uintptr, lengths int64) (zero int64, err error) {
	defer failed(&err)
	a, request, err := asker(h, number, customer, to)
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
	defer failed(&err)
	a, request, err := asker(h, number, customer, to)
	if err != nil {
		return 0, err
	}
	return 0, a.Fail(request, why)
}

// asker finds the request that an answer is for.
func asker(h, number, customer int64, to string) (*app, *ps.Message, error) {
	a, err := findApp(h, number, customer)
	if err != nil {
		return nil, nil, err
	}
	var e event
	if err := json.Unmarshal([]byte(to), &e); err != nil {
		return nil, nil, fault.New(fault.Value, "no request: %v", err)
	}
	return a, &ps.Message{
		Peer: e.Peer, App: int32(number), Customer: e.Customer, Timestamp: e.Timestamp, Head: e.Head, Simple: e.Simple,
		Push: e.Push, Pull: e.Pull, Priority: e.Priority, Life: e.Life,
	}, nil
}

// PSMissing names who has not answered a request, "server 0, server 1".
func PSMissing(h, number, customer, timestamp int64) (names string, err error) {
	defer failed(&err)
	a, err := findApp(h, number, customer)
	if err != nil {
		return "", err
	}
	return strings.Join(a.Missing(int32(timestamp)), ", "), nil
}

// PSBounds gives the first key of each server and the end of the last, as JSON.
func PSBounds(servers int64) (bounds string, err error) {
	defer failed(&err)
	if servers < 1 || servers > int64(wire.MaxWorkers) {
		return "", fault.New(fault.Value, "%d servers", servers)
	}
	return marshal(ps.Bounds(int(servers)))
}
