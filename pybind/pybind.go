// Package pybind is the API that Python calls through gopy. It consists of handles,
// integers, strings and pointers. An error's text begins with its code and what it is about
// (`fptps:busy{"key":7}: ...`): python/fptps/errors.py makes exceptions of them. Only calls with a timeout in milliseconds
// block. No panic leaves a function of this package.
package pybind

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/node"
)

// handle is a node that Python has opened.
type handle struct {
	node   *node.Node
	notify int // eventfd, -1 until asked for
	apps   map[[2]int64]*app
}

var handles struct {
	sync.Mutex
	open map[int64]*handle
}

// find returns the node of a handle.
func find(h int64) (*handle, error) {
	handles.Lock()
	defer handles.Unlock()
	if found := handles.open[h]; found != nil {
		return found, nil
	}
	return nil, fault.New(fault.Closed, "the worker is closed: open another one")
}

// encodeError puts the code in front of err, for Python. It converts a panic to an error.
func encodeError(err *error) {
	if r := recover(); r != nil {
		*err = fault.New(fault.Internal, "panic: %v\n%s", r, debug.Stack())
	}
	if *err != nil {
		*err = errors.New(errorText(*err))
	}
}

// errorText is an error for Python: its code, what it is about as JSON, and its text; "" for nil.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	about, _ := json.Marshal(fault.AboutOf(err))
	return fmt.Sprintf("fptps:%s%s: %s", fault.CodeOf(err), about, strings.ToValidUTF8(err.Error(), "?"))
}

// version is set by setup.py at link time.
var version = "unknown"

// Version is the version of the core, which must equal that of the Python package.
func Version() string { return version }

// Open starts a node with the handle h, which must be unused. options is a JSON object of
// strings, with the names of the environment variables. Open returns at once; Joined
// reports how the node proceeds.
func Open(h int64, options string) (zero int64, err error) {
	defer encodeError(&err)
	c, err := node.ParseOptions(options)
	if err != nil {
		return 0, err
	}
	open(h, c)
	return 0, nil
}

func open(h int64, c node.Config) {
	opened := &handle{node: node.Open(c), notify: -1, apps: map[[2]int64]*app{}}
	handles.Lock()
	defer handles.Unlock()
	if handles.open == nil {
		handles.open = map[int64]*handle{}
	}
	handles.open[h] = opened
}

// number assigns to a ticket the number that Python has chosen for it.
func (found *handle) number(ticket *kv.Ticket, number int64) (zero int64, err error) {
	return 0, found.node.Tickets.Number(ticket, number)
}

// Joined assigns the number ticket to the ticket of a worker's joining; for a server or the
// scheduler to that of its whole life.
func Joined(h, ticket int64) (zero int64, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	return found.number(found.node.Life(), ticket)
}

// The states of a ticket, as Wait returns them.
const (
	underWay = iota
	succeeded
	broken  // Failure has the error
	unknown // no ticket has the number, or its end was noted
)

// stateBits is the number of bits of Wait's result that hold the state. The higher bits hold the epoch of a ticket that has succeeded.
const stateBits = 8

// Wait waits at most ms milliseconds for a ticket, and returns its state.
func Wait(h, ticket, ms int64) (state int64, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	waited := found.node.Tickets.Find(ticket)
	if waited == nil {
		return unknown, nil
	}
	switch done, err := found.node.Wait(waited, time.Duration(ms)*time.Millisecond); {
	case err != nil:
		return broken, nil
	case done:
		return succeeded | int64(waited.Epoch())<<stateBits, nil
	}
	return underWay, nil
}

// Failure returns the error of a failed ticket, with its code in front; "" for any other ticket.
func Failure(h, ticket int64) (text string, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return "", err
	}
	if waited := found.node.Tickets.Find(ticket); waited != nil && waited.Done() {
		_, failure := waited.Wait(0)
		return errorText(failure), nil
	}
	return "", nil
}

// Ended marks the end of ticket noted (0: none) as noted, and returns another ended ticket that is not noted; 0 if there is
// none.
func Ended(h, noted int64) (ticket int64, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	return found.node.Tickets.Ended(noted), nil
}

// Explain returns the error of a wait for a ticket that ends now, as Failure does; "" if the ticket has ended.
func Explain(h, ticket int64) (text string, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return "", err
	}
	if waited := found.node.Tickets.Find(ticket); waited != nil {
		if waiting := waited.Explain(); waiting.Text != "" {
			return errorText(fault.New(fault.Timeout, "%s", waiting.Text).With(waiting.About)), nil
		}
	}
	return "", nil
}

// Barrier waits for all workers.
func Barrier(h, ticket int64) (zero int64, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	barrier, err := found.node.Barrier()
	if err != nil {
		return 0, err
	}
	return found.number(barrier, ticket)
}

// Withdraw leaves the barrier of a ticket after a timeout, so that the barrier can be entered
// again. The ticket ends with a Timeout error, or without error if all had entered first.
func Withdraw(h, ticket int64) (zero int64, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	if waited := found.node.Tickets.Find(ticket); waited != nil {
		found.node.Withdraw(waited)
	}
	return 0, nil
}

// Close leaves the cluster. With orderly 1 it waits for all other nodes; with 0 it does not, and sends them the reason why.
func Close(h, ticket, orderly int64, why string) (zero int64, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	if orderly != 0 {
		return found.number(found.node.Close(), ticket)
	}
	return found.number(found.node.Leave(why), ticket)
}

// Free forgets a handle whose node is closed. An unknown handle is ignored.
func Free(h int64) (zero int64, err error) {
	defer encodeError(&err)
	handles.Lock()
	defer handles.Unlock()
	found := handles.open[h]
	if found == nil {
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

// Info describes a node, as JSON.
func Info(h int64) (info string, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return "", err
	}
	return marshal(found.node.Info())
}

// Present returns the ranks of the workers in the epoch of a ticket, or, for -1, of those that are there now, as JSON.
func Present(h, epoch int64) (ranks string, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return "", err
	}
	return marshal(found.node.Present(int(epoch)))
}

// Stats returns the counters of a node, as JSON.
func Stats(h int64) (stats string, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return "", err
	}
	return marshal(found.node.Stats())
}

// Sockets lists the file descriptors of the data plane and of the metrics, "12,13", for a forked child to close.
func Sockets(h int64) (fds string, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return "", err
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(found.node.Sockets()), " ", ","), "[]"), nil
}

// NotifyFd returns a new descriptor of an eventfd that becomes readable whenever a ticket ends. The caller closes it. (If that was a
// copy that the caller makes, the worker might be closed before.)
func NotifyFd(h int64) (fd int64, err error) {
	defer encodeError(&err)
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
	copied, err := unix.FcntlInt(uintptr(found.notify), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, fault.New(fault.Internal, "no descriptor of the eventfd: %v", err)
	}
	return int64(copied), nil
}

// StackAsked waits at most ms milliseconds until another node asks where the threads of this program are, to be answered by Stack,
// and returns 1 then, else 0.
func StackAsked(h, ms int64) (asked int64, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	ok, err := found.node.StackAsked(time.Duration(ms) * time.Millisecond)
	if ok {
		asked = 1
	}
	return asked, err
}

// Stack answers StackAsked, in one line.
func Stack(h int64, text string) (zero int64, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	found.node.Stack(text)
	return 0, nil
}

// Configuration lists all settings, as JSON.
func Configuration() (settings string, err error) {
	defer encodeError(&err)
	return marshal(node.Settings)
}

func marshal(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}
