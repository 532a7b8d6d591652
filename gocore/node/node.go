// Package node assembles a scheduler, a server or a worker from the other packages, and
// reads its settings. It contains no protocol logic.
package node

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/metrics"
	"fptps/gocore/ps"
	"fptps/gocore/trace"
	"fptps/gocore/transport"
	"fptps/gocore/transport/mem"
)

// Node is one member of a cluster: a worker, a server or the scheduler.
type Node struct {
	Tickets *kv.Tickets
	Office  *ps.Office

	config       Config
	log          *slog.Logger
	logRank      *atomic.Pointer[int] // for the log; nil until it is known
	stalls       *stallReports
	ctx          context.Context // ends when the node closes
	cancel       context.CancelFunc
	life         *kv.Ticket    // see Life
	lifeOver     chan struct{} // closed when life has ended
	connected    chan struct{} // closed when the node has its data connections; on the scheduler, when it accepts them
	lifeErr      error         // result of life, set before lifeOver is closed
	warnings     warnings
	latency      metrics.Latency // of the pushes, if metrics are served
	newCustomers chan int        // customers of the process that start before it has joined
	tearingDown  sync.Mutex      // held during tearDown
	tracer       *trace.Tracer

	mu struct {
		sync.Mutex
		state         state
		failure       error // why operations are refused; nil while they are not
		worker        *kv.Worker
		handlers      []*kv.Handler // of the lanes
		post          *cluster.Postoffice
		scheduler     *cluster.Runner
		transport     *transport.Transport
		alone         *mem.Network
		view          cluster.View
		hasJoined     bool
		asked         []Asked // to join the scheduler, in order
		lifeEnded     bool
		dead          []int                      // ids of dead nodes, by the scheduler's verdict
		backup        int                        // in a cluster with replicas; 0: none yet
		backedUp      map[int]backedUp           // by lane
		epoch         int                        // the last one that has begun here
		incarnations  map[int]uint64             // incarnation of the latest data connection with each node
		barriers      map[*kv.Ticket]func(error) // open barriers, by ticket: functions that withdraw from them
		recoverySteps map[int]recoveryStep       // latest step for each node
		lastChange    chan struct{}              // closed when the last death or admission so far is handled; nil: there was none
		recording     *recording                 // nil: this node is not traced
		newcomer      bool                       // this node is a worker that takes part in no rounds yet
		points        points
		metrics       *metrics.Server // nil: none are served
		began         time.Time       // when this node had joined
		waited        time.Duration   // Tickets.Waited by then
	}
}

type state uint8

const (
	joining state = iota
	joined
	closed
)

// spareProcs is the number of threads that Go may run beyond the cores, so that a loop that
// becomes ready need not wait for a computing goroutine to yield.
const spareProcs = 2

// setProcs raises Go's default, which respects the CPU affinity and the cgroup quota. The environment variable GOMAXPROCS
// overrides it.
var setProcs = sync.OnceFunc(func() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + spareProcs)
	}
})

// Open starts a node and returns at once; Life reports how it proceeds.
func Open(c Config) *Node {
	setProcs()
	n := &Node{config: c, Tickets: kv.NewTickets(), lifeOver: make(chan struct{}), connected: make(chan struct{}), newCustomers: make(chan int, maxCustomers)}
	log, rank := newLog(c, os.Stderr)
	n.log, n.logRank = slog.New(n.warnings.over(log.Handler())), rank
	n.stalls = newStallReports()
	n.tracer = newTracer()
	n.Office = ps.NewOffice(c.Role, n.log, n.onOfficeFailed)
	n.mu.recoverySteps, n.mu.incarnations, n.mu.barriers = map[int]recoveryStep{}, map[int]uint64{}, map[*kv.Ticket]func(error){}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.life = n.Tickets.New(n.explainLife)
	if c.Trace > 0 {
		n.StartTrace(c.Trace)
	}
	go n.guard(n.run)
	return n
}

// worker returns the node's worker. It is nil on a server, and until the node has connected.
func (n *Node) worker() *kv.Worker {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.worker
}

// Life is the ticket of joining for a worker. For a server and the scheduler it is the
// ticket of their whole life, which ends when the cluster has ended in order.
func (n *Node) Life() *kv.Ticket { return n.life }

// guard runs f and turns a panic into the node's failure.
func (n *Node) guard(f func() error) {
	if err := fault.Catch(f); err != nil {
		n.fail(err)
	}
}

// run starts the node in its role.
func (n *Node) run() error {
	if err := n.serveMetrics(); err != nil {
		return err
	}
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
		n.lifeErr = err
		close(n.lifeOver)
		n.Tickets.Finish(n.life, err)
	}
}

// fail fails all tickets with err; only the first error counts. tearDown closes the data
// plane first, so that nothing accesses a caller's array when its ticket ends.
func (n *Node) fail(err error) {
	n.mu.Lock()
	if n.mu.failure != nil || n.mu.state == closed {
		n.mu.Unlock()
		return
	}
	n.mu.failure = err
	n.mu.Unlock()
	if fault.CodeOf(err) != fault.NodeLost { // the other nodes know of a lost node
		n.announceLeave("it failed: " + err.Error())
	}
	n.tearDown(err)
}

// tearDown closes all parts of the node at once. Open operations fail with err; the life
// ticket ends last.
func (n *Node) tearDown(err error) {
	n.tearingDown.Lock() // a second caller returns when everything is closed, too
	defer n.tearingDown.Unlock()
	n.mu.Lock()
	tr, alone, post, scheduler := n.mu.transport, n.mu.alone, n.mu.post, n.mu.scheduler
	worker, server := n.mu.worker, n.mu.metrics
	n.mu.Unlock()
	n.cancel()
	if server != nil {
		server.Close()
	}
	n.endSampling()
	if scheduler != nil { // first, so that a verdict reaches the other nodes before this node's connections end
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
	n.endTrace()
	n.mu.Lock()
	last, waiting := n.mu.failure, n.mu.points.end()
	if last == nil && !n.mu.hasJoined {
		last = err
	}
	n.mu.Unlock()
	for _, ticket := range waiting {
		n.Tickets.Finish(ticket, err)
	}
	n.endLife(last)
}

// cause returns the node's failure instead of err, if there is one: it is more specific
// than the error of a control plane that was closed.
func (n *Node) cause(err error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil && n.mu.failure != nil {
		return n.mu.failure
	}
	return err
}

// checkOpen returns the failure, a Closed error after Close, or nil.
func (n *Node) checkOpen() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.checkOpenLocked()
}

func (n *Node) checkOpenLocked() error {
	switch {
	case n.mu.failure != nil:
		return n.mu.failure
	case n.mu.state == closed:
		return fault.New(fault.Closed, "the worker is closed: open another one")
	}
	return nil
}

// Worker returns the key-value store of a worker that has joined.
func (n *Node) Worker() (*kv.Worker, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.checkOpenLocked(); err != nil {
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

// Barrier is a barrier of all workers; servers and the scheduler are not in it.
func (n *Node) Barrier() (*kv.Ticket, error) {
	worker, err := n.Worker()
	if err == nil {
		err = worker.CheckStanding()
	}
	if err != nil {
		return nil, err
	}
	ticket := n.Tickets.New(func() kv.Waiting {
		text, missing := "a barrier of the workers", worker.WaitingFor("barrier")
		if len(missing) > 0 {
			text += "; missing: " + strings.Join(missing, ", ")
		}
		return kv.Waiting{Text: text, About: fault.About{Missing: missing}}
	})
	if n.config.Alone() {
		n.Tickets.Finish(ticket, nil)
		return ticket, nil
	}
	n.enterBarrier(ticket, n.post(), 0, cluster.WorkerGroup)
	return ticket, nil
}

// dataPlane is nil until there is one.
func (n *Node) dataPlane() *transport.Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.transport
}

func (n *Node) post() *cluster.Postoffice {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.post
}

// explainLife describes what a joining node waits for.
func (n *Node) explainLife() kv.Waiting {
	if n.config.Alone() {
		return kv.Waiting{}
	}
	return kv.Waiting{Text: fmt.Sprintf("%v joining the cluster of the scheduler at %s:%d", n.config.Role, n.config.SchedulerHost, n.config.SchedulerPort)}
}

// Sockets lists the file descriptors of the data plane and of the metrics, for a forked child to close.
func (n *Node) Sockets() (fds []int) {
	n.mu.Lock()
	tr, server := n.mu.transport, n.mu.metrics
	n.mu.Unlock()
	if tr != nil {
		fds = tr.Sockets()
	}
	if server != nil {
		if fd, err := server.Socket(); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds
}

// incarnation draws a random number, which differs from those of earlier processes.
func incarnation() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}
