// Package node puts a scheduler, a server or a worker together from the rooms
// above, and reads their settings. It decides nothing itself.
package node

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/ps"
	"fptps/gocore/transport"
	"fptps/gocore/transport/mem"
)

// goodbyeTime bounds how long a node that leaves waits for its last bytes to go.
const goodbyeTime = 5 * time.Second

// Node is one member of a cluster: a worker, a server or the scheduler.
type Node struct {
	Tickets *kv.Tickets
	Office  *ps.Office

	config    Config
	log       *slog.Logger
	ctx       context.Context // ends when the node closes
	cancel    context.CancelFunc
	life      *kv.Ticket    // see Life
	over      chan struct{} // closed at the end of life
	connected chan struct{} // closed when the node has its first data connections, on the scheduler when it awaits them
	lived     error         // how life ended, once over is closed
	others    chan int      // customers of the process that start while it joins
	ending    sync.Mutex    // held throughout end

	mu struct {
		sync.Mutex
		state     state
		failure   error // why no operation is taken any more, nil while the node is well
		worker    *kv.Worker
		post      *cluster.Postoffice
		scheduler *cluster.Runner
		transport *transport.Transport
		alone     *mem.Network
		view      cluster.View
		hasJoined bool
		lifeEnded bool
		dead      []int        // by the scheduler's verdict
		turns     map[int]turn // what news of nodes lead to, by id
	}
}

type state uint8

const (
	joining state = iota
	joined
	closed
)

// spareProcs lets Go run as many threads beyond the cores, so that a loop that
// becomes ready need not wait until a goroutine that computes gives way.
const spareProcs = 2

var setProcs = sync.OnceFunc(func() { runtime.GOMAXPROCS(runtime.NumCPU() + spareProcs) })

// Open starts a node. It returns at once; Life tells how it goes on.
func Open(c Config) *Node {
	setProcs()
	n := &Node{config: c, Tickets: kv.NewTickets(), over: make(chan struct{}), connected: make(chan struct{}), others: make(chan int, maxCustomers)}
	n.log = newLog(c)
	n.Office = ps.NewOffice(c.Role, n.log)
	n.mu.turns = map[int]turn{}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.life = n.Tickets.New(n.explainLife)
	go n.guard(n.run)
	return n
}

func newLog(c Config) *slog.Logger {
	levels := []slog.Level{slog.LevelWarn, slog.LevelInfo, slog.LevelDebug}
	options := &slog.HandlerOptions{Level: levels[c.Verbose]}
	return slog.New(slog.NewTextHandler(os.Stderr, options)).With("fptps", c.Role.String())
}

// Life is the ticket of a worker's joining; for a server and the scheduler, of
// their whole life: it ends when the cluster has ended in good order.
func (n *Node) Life() *kv.Ticket { return n.life }

// guard runs f and turns a panic into the node's failure.
func (n *Node) guard(f func() error) {
	defer func() {
		if r := recover(); r != nil {
			n.fail(fault.New(fault.Internal, "panic: %v\n%s", r, debug.Stack()))
		}
	}()
	if err := f(); err != nil {
		n.fail(err)
	}
}

// run brings the node up, according to its role.
func (n *Node) run() error {
	switch {
	case n.config.Alone():
		return n.runAlone()
	case n.config.Role == cluster.RoleScheduler:
		return n.runScheduler()
	default:
		return n.runMember()
	}
}

// endLife ends the life ticket, once.
func (n *Node) endLife(err error) {
	n.mu.Lock()
	first := !n.mu.lifeEnded
	n.mu.lifeEnded = true
	n.mu.Unlock()
	if first {
		n.lived = err
		close(n.over)
		n.Tickets.Finish(n.life, err)
	}
}

// fail ends everything that waits, with err; the first error wins. The data plane
// goes first, so that nothing touches a caller's array any more when its ticket ends.
func (n *Node) fail(err error) {
	n.mu.Lock()
	if n.mu.failure != nil || n.mu.state == closed {
		n.mu.Unlock()
		return
	}
	n.mu.failure = err
	n.mu.Unlock()
	n.end(err)
}

// end takes the node apart at once: operations that wait end with err, and last,
// when nothing of the node is left, its life.
func (n *Node) end(err error) {
	n.ending.Lock() // who comes second returns when all is done, too
	defer n.ending.Unlock()
	n.mu.Lock()
	tr, alone, post, scheduler := n.mu.transport, n.mu.alone, n.mu.post, n.mu.scheduler
	worker := n.mu.worker
	n.mu.Unlock()
	n.cancel()
	if scheduler != nil { // first: a verdict is to reach the others before the end of our connections does
		scheduler.Close()
	}
	if tr != nil {
		tr.Close()
	}
	if alone != nil {
		alone.Close()
	}
	if worker != nil {
		worker.Fail(err)
	}
	n.Office.Fail(err)
	if post != nil {
		post.Close()
	}
	n.mu.Lock()
	last := n.mu.failure
	if last == nil && !n.mu.hasJoined {
		last = err
	}
	n.mu.Unlock()
	n.endLife(last)
}

// cause is the failure behind err, where there is one: what the control plane's
// end makes of a wait says less.
func (n *Node) cause(err error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil && n.mu.failure != nil {
		return n.mu.failure
	}
	return err
}

// well gives the failure, or ClosedError, or nil.
func (n *Node) well() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.wellLocked()
}

func (n *Node) wellLocked() error {
	switch {
	case n.mu.failure != nil:
		return n.mu.failure
	case n.mu.state == closed:
		return fault.New(fault.Closed, "the worker is closed: open another one")
	}
	return nil
}

// Worker gives the key-value store of a worker that has joined.
func (n *Node) Worker() (*kv.Worker, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.wellLocked(); err != nil {
		return nil, err
	}
	if n.mu.state == joined && n.mu.view.PSLite() {
		return nil, fault.New(fault.Config, "programs of dmlc ps-lite are in this cluster: use fptps.ps.KVWorker, which speaks to them")
	}
	if n.mu.worker == nil || n.mu.state != joined {
		return nil, fault.New(fault.Closed, "the worker has not joined its cluster yet")
	}
	return n.mu.worker, nil
}

// Barrier waits for all workers. Servers and the scheduler take no part.
func (n *Node) Barrier() (*kv.Ticket, error) {
	worker, err := n.Worker()
	if err != nil {
		return nil, err
	}
	ticket := n.Tickets.New(func() string {
		text := "a barrier of the workers"
		if missing := worker.WaitingFor("barrier"); missing != "" {
			text += "; missing: " + missing
		}
		return text
	})
	if n.config.Alone() {
		n.Tickets.Finish(ticket, nil)
		return ticket, nil
	}
	n.post().Barrier(0, cluster.WorkerGroup, func(err error) { n.Tickets.Finish(ticket, n.cause(err)) })
	return ticket, nil
}

func (n *Node) post() *cluster.Postoffice {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.post
}

// Close leaves the cluster. orderly waits until every node is here too; else the
// others learn at once that this one is gone. The ticket ends when all is closed
// and nothing refers to a caller's array; after an orderly Close, with what kept
// the cluster from ending well.
func (n *Node) Close(orderly bool) *kv.Ticket {
	ticket := n.Tickets.New(func() string { return "the other nodes have not come to their end" })
	n.mu.Lock()
	state, failure, post, scheduler := n.mu.state, n.mu.failure, n.mu.post, n.mu.scheduler
	n.mu.Unlock()
	leave := func(err error, all bool) {
		go n.guard(func() error {
			err := n.cause(err)
			if err != nil {
				n.fail(err)
			} else if all {
				n.goodbye()
			}
			n.shut()
			n.Tickets.Finish(ticket, err)
			return nil
		})
	}
	switch {
	case orderly && failure != nil:
		leave(failure, false)
	case orderly && state == joined && post != nil:
		post.Barrier(0, cluster.AllGroup, func(err error) { leave(err, true) })
	case orderly && scheduler != nil:
		scheduler.Barrier(cluster.AllGroup, func(err error) { leave(err, true) })
	default:
		leave(nil, false)
	}
	return ticket
}

// goodbye ends the data plane's connections in good order.
func (n *Node) goodbye() {
	n.mu.Lock()
	tr := n.mu.transport
	n.mu.Unlock()
	if tr == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTime)
	defer cancel()
	tr.Goodbye(ctx)
}

// shut closes the node for good. On return nothing of it is left.
func (n *Node) shut() {
	n.mu.Lock()
	n.mu.state = closed
	n.mu.Unlock()
	n.end(fault.New(fault.Closed, "closed before this operation was complete"))
}

// explainLife says what a node that joins waits for.
func (n *Node) explainLife() string {
	if n.config.Alone() {
		return ""
	}
	return fmt.Sprintf("%v joining the cluster of the scheduler at %s:%d", n.config.Role, n.config.SchedulerHost, n.config.SchedulerPort)
}

// Sockets lists the data plane's file descriptors, for a forked child to close.
func (n *Node) Sockets() []int {
	n.mu.Lock()
	tr := n.mu.transport
	n.mu.Unlock()
	if tr == nil {
		return nil
	}
	return tr.Sockets()
}

// incarnation is a number that no earlier process of this node had.
func incarnation() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}
