// Package pybind is what Python calls, through gopy: handles, integers, texts and
// pointers, nothing else. Errors carry their code in front ("fptps:busy: ..."),
// which python/fptps/errors.py maps to a class. No call blocks but Wait, and Wait
// no longer than it is told. No panic leaves a function of this package.
package pybind

import (
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/node"
	"fptps/gocore/wire"
)

// handle is a node that Python has opened.
type handle struct {
	node   *node.Node
	notify int // eventfd, -1 until asked for
	apps   map[[2]int64]*app
}

var handles struct {
	sync.Mutex
	last int64
	open map[int64]*handle
}

// find gives the node of a handle.
func find(h int64) (*handle, error) {
	handles.Lock()
	defer handles.Unlock()
	if found := handles.open[h]; found != nil {
		return found, nil
	}
	return nil, fault.New(fault.Closed, "the worker is closed: open another one")
}

// failed gives err the form that Python understands; a panic becomes an error.
func failed(err *error) {
	if r := recover(); r != nil {
		*err = fault.New(fault.Internal, "panic: %v\n%s", r, debug.Stack())
	}
	if *err != nil {
		*err = fmt.Errorf("fptps:%s: %w", fault.CodeOf(*err), *err)
	}
}

// version is set by setup.py as it links.
var version = "unknown"

// Version is the version of the core, which has to be that of the Python package.
func Version() string { return version }

// Open starts a node with settings in a JSON object of texts, named as in the
// environment. It returns at once with a handle; Life tells how it goes on.
func Open(options string) (h int64, err error) {
	defer failed(&err)
	c, err := node.ParseOptions(options)
	if err != nil {
		return 0, err
	}
	return open(c), nil
}

func open(c node.Config) int64 {
	opened := &handle{node: node.Open(c), notify: -1, apps: map[[2]int64]*app{}}
	handles.Lock()
	defer handles.Unlock()
	if handles.open == nil {
		handles.open = map[int64]*handle{}
	}
	handles.last++
	handles.open[handles.last] = opened
	return handles.last
}

// Joined is the ticket of a worker's joining; for a server or the scheduler, of
// its whole life.
func Joined(h int64) (ticket int64, err error) {
	defer failed(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	return found.node.Life().ID, nil
}

// Wait waits at most ms milliseconds for a ticket: 1 when it has ended well, 0 when
// it has not ended, an error when it failed. A ticket that has ended is forgotten.
func Wait(h, ticket, ms int64) (done int64, err error) {
	defer failed(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	ended, err := found.node.Tickets.Wait(ticket, time.Duration(ms)*time.Millisecond)
	if ended {
		done = 1
	}
	return done, err
}

// Reap gives a ticket that has ended and that nobody has waited for, each once; 0
// when there is none. How it ended Wait will tell.
func Reap(h int64) (ticket int64, err error) {
	defer failed(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	return found.node.Tickets.Reap(), nil
}

// Explain says in one line what a ticket waits for, "" if it has ended.
func Explain(h, ticket int64) (text string, err error) {
	defer failed(&err)
	found, err := find(h)
	if err != nil {
		return "", err
	}
	return found.node.Tickets.Explain(ticket), nil
}

// workerOf gives the store of a handle's worker.
func workerOf(h int64) (*kv.Worker, error) {
	found, err := find(h)
	if err != nil {
		return nil, err
	}
	return found.node.Worker()
}

// operate runs an operation of a worker's store and gives its ticket.
func operate(h, key int64, f func(*kv.Worker) (*kv.Ticket, error)) (int64, error) {
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	if key < 0 {
		return 0, fault.New(fault.Value, "key %d: a key is 0 or more", key)
	}
	worker, err := found.node.Worker()
	if err != nil {
		return 0, err
	}
	ticket, err := f(worker)
	if err != nil {
		return 0, err
	}
	return ticket.ID, nil
}

// memory is the caller's array of count elements. Python keeps it alive until the
// call, or its ticket, has ended.
func memory[T any](pointer uintptr, count int64) []T {
	if pointer == 0 || count <= 0 {
		return nil
	}
	// The address comes from numpy, not from Go's heap, so that no collector moves it.
	return unsafe.Slice((*T)(*(*unsafe.Pointer)(unsafe.Pointer(&pointer))), count)
}

// dtypeOf checks an element type as it comes from Python; what it does not fit in
// becomes one that nothing accepts.
func dtypeOf(dtype int64) wire.DType {
	if dtype != int64(uint8(dtype)) {
		return 0
	}
	return wire.DType(dtype)
}

// policyOf checks a consistency as it comes from Python; what it does not fit in becomes one that nothing accepts.
func policyOf(policy int64) wire.Policy {
	if policy != int64(uint16(policy)) {
		return wire.Async - 1
	}
	return wire.Policy(policy)
}

// asked checks an operation and a priority as they come from Python.
func asked(op, priority int64) (wire.Op, int32, error) {
	if op != int64(wire.OpSum) && op != int64(wire.OpMean) {
		return 0, 0, fault.New(fault.Value, "operation %d: 0 (sum) or 1 (mean) is expected", op)
	}
	if priority != int64(int32(priority)) {
		return 0, 0, fault.New(fault.Value, "priority %d: 32 bits are expected, -2147483648 to 2147483647", priority)
	}
	return wire.Op(op), int32(priority), nil
}

// Init declares a key and gives every worker rank 0's values. policy is the number of its consistency.
func Init(h, key, dtype, policy int64, pointer uintptr, bytes int64) (ticket int64, err error) {
	defer failed(&err)
	return operate(h, key, func(w *kv.Worker) (*kv.Ticket, error) {
		return w.Init(uint64(key), dtypeOf(dtype), policyOf(policy), memory[byte](pointer, bytes))
	})
}

// Push contributes an array to the next round of key.
func Push(h, key, dtype int64, pointer uintptr, bytes, op, priority int64) (ticket int64, err error) {
	defer failed(&err)
	o, p, err := asked(op, priority)
	if err != nil {
		return 0, err
	}
	return operate(h, key, func(w *kv.Worker) (*kv.Ticket, error) {
		return w.Push(uint64(key), dtypeOf(dtype), memory[byte](pointer, bytes), o, p)
	})
}

// Pull brings the sum of the last push of key to an array.
func Pull(h, key, dtype int64, pointer uintptr, bytes int64) (ticket int64, err error) {
	defer failed(&err)
	return operate(h, key, func(w *kv.Worker) (*kv.Ticket, error) {
		return w.Pull(uint64(key), dtypeOf(dtype), memory[byte](pointer, bytes))
	})
}

// PushPull contributes an array and brings the sum to out, which may be the same.
func PushPull(h, key, dtype int64, pointer uintptr, bytes int64, out uintptr, op, priority int64) (ticket int64, err error) {
	defer failed(&err)
	o, p, err := asked(op, priority)
	if err != nil {
		return 0, err
	}
	return operate(h, key, func(w *kv.Worker) (*kv.Ticket, error) {
		return w.PushPull(uint64(key), dtypeOf(dtype), memory[byte](pointer, bytes), memory[byte](out, bytes), o, p)
	})
}

// Skip contributes zeros to the next round of key.
func Skip(h, key int64) (ticket int64, err error) {
	defer failed(&err)
	return operate(h, key, func(w *kv.Worker) (*kv.Ticket, error) { return w.Skip(uint64(key)) })
}

// Barrier waits for all workers.
func Barrier(h int64) (ticket int64, err error) {
	defer failed(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	barrier, err := found.node.Barrier()
	if err != nil {
		return 0, err
	}
	return barrier.ID, nil
}

// TensorInfo tells what a key is, as JSON: kv.TensorInfo.
func TensorInfo(h, key int64) (info string, err error) {
	defer failed(&err)
	worker, err := workerOf(h)
	if err != nil {
		return "", err
	}
	tensor, err := worker.TensorInfo(uint64(key))
	if err != nil {
		return "", err
	}
	return marshal(tensor)
}

// SetTensorCount says how many pushes make a step of the training loop.
func SetTensorCount(h, n int64) (zero int64, err error) {
	defer failed(&err)
	worker, err := workerOf(h)
	if err != nil {
		return 0, err
	}
	return 0, worker.SetTensorCount(n)
}

// Close leaves the cluster: orderly 1 waits for all others, 0 does not.
func Close(h, orderly int64) (ticket int64, err error) {
	defer failed(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	return found.node.Close(orderly != 0).ID, nil
}

// Free forgets a handle whose node is closed.
func Free(h int64) (zero int64, err error) {
	defer failed(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	handles.Lock()
	defer handles.Unlock()
	if handles.open[h] == nil {
		return 0, nil
	}
	delete(handles.open, h)
	for _, a := range found.apps {
		a.Close()
	}
	found.node.Tickets.Notify(nil)
	if found.notify >= 0 {
		unix.Close(found.notify)
	}
	return 0, nil
}

// Info tells who a node is, as JSON.
func Info(h int64) (info string, err error) {
	defer failed(&err)
	found, err := find(h)
	if err != nil {
		return "", err
	}
	return marshal(found.node.Info())
}

// Stats tells what a node has done, as JSON.
func Stats(h int64) (stats string, err error) {
	defer failed(&err)
	found, err := find(h)
	if err != nil {
		return "", err
	}
	return marshal(found.node.Stats())
}

// Sockets lists the data plane's file descriptors, "12,13", for a forked child to close.
func Sockets(h int64) (fds string, err error) {
	defer failed(&err)
	found, err := find(h)
	if err != nil {
		return "", err
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(found.node.Sockets()), " ", ","), "[]"), nil
}

// NotifyFd gives an eventfd that becomes readable whenever a ticket ends.
func NotifyFd(h int64) (fd int64, err error) {
	defer failed(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	handles.Lock()
	defer handles.Unlock()
	if handles.open[h] == nil {
		return 0, fault.New(fault.Closed, "the worker is closed: open another one")
	}
	if found.notify < 0 {
		event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			return 0, fault.New(fault.Internal, "no eventfd: %v", err)
		}
		found.notify = event
		found.node.Tickets.Notify(func() { unix.Write(event, []byte{1, 0, 0, 0, 0, 0, 0, 0}) })
	}
	return int64(found.notify), nil
}

// Configuration is the table of settings, as JSON.
func Configuration() (table string, err error) {
	defer failed(&err)
	return marshal(node.Settings)
}

// Inject makes the core panic, for the tests that the interpreter outlives it:
// "panic-caller" in this call, "panic-loop" in the data plane's loop.
func Inject(h int64, what string) (zero int64, err error) {
	defer failed(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	switch what {
	case "panic-caller":
		panic("injected")
	case "panic-loop":
		found.node.Break()
		return 0, nil
	}
	return 0, fault.New(fault.Value, "inject %q: panic-caller or panic-loop is expected", what)
}

func marshal(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}
