// Package kv holds the worker's and the aggregator's side of keys: pushes become
// rounds, rounds become packets, sums become finished tickets. It knows neither
// sockets nor the scheduler's messages.
package kv

import (
	"container/list"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/reduce"
	"fptps/gocore/store"
	"fptps/gocore/trace"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// DataPlane carries packets. Send never blocks; to this node's own id it delivers
// to Handler.Local.
type DataPlane interface {
	Send(node uint32, m transport.Outgoing)
}

// WorkerConfig describes the cluster to a Worker.
type WorkerConfig struct {
	Rank    int
	Workers []int       // the ranks of those that take part, and the number of their epoch
	Epoch   int         // see aggregate.Members
	Plan    *plan.Plan  // until the first Commit
	Lanes   []DataPlane // at least one
	Tickets *Tickets
	Log     *slog.Logger
	// Deterministic makes the bits of sums independent of the order in which contributions arrive. Each tensor's declaration
	// has it, and the scheduler refuses workers that differ.
	Deterministic bool
	// Recovers: other nodes may die (Bury), and this worker goes on with those that are left.
	Recovers    bool
	Aggregators []uint32 // the nodes that can sum
	// Stateful is called before the aggregators hold what nobody else has, which no recovery brings back.
	Stateful func(what string)
	// Declare asks the scheduler for the ids of keys. The scheduler answers when all workers have declared a key.
	Declare func([]Declaration)
	// Stalled is called after a stall was logged for the first, second, fourth, eighth, ... time; nil: nobody wants to know. It must
	// not block.
	Stalled func(Stall)
	// Observe is called for each push when its sum has arrived, with the time that this took. It must not block; nil: nobody asks.
	Observe func(priority int32, d time.Duration)
	Trace   *trace.Tracer // of operations; nil: none are traced
	// Name returns a node's name in texts: "worker 1".
	Name func(node uint32) string
}

// Worker is the key-value store as a training process sees it. All methods may be
// called from any thread, and none blocks.
type Worker struct {
	WorkerConfig
	copies sync.WaitGroup // of sums to callers' arrays
	mu     struct {
		sync.Mutex
		byKey   map[uint64]*tensor
		byID    map[uint32]*tensor // declared ones
		plan    numbered           // of tensors that are declared now
		nextID  uint32             // the least id that the next tensor may have
		asks    asks
		flights flights
		closed  []closedWorker
		turnover
		admission
		failed  error               // why every operation is refused; nil while all is well
		freed   [][]byte            // tensors' memory that step frees
		waiting map[string][]string // see Waiting
		stats   WorkerStats
		now     time.Time // as of the last tick
		late    list.List // tensors whose round waits for other workers, in the order of the aggregators' first reports
		latest  *tensor   // whose round began last; nil: none has
		sums    uint64    // packets of sums that have arrived
		stalls  stalls
		perStep uint64 // pushes in a step of the training loop, 0 until set
	}
}

// WorkerStats are counts since the start.
type WorkerStats struct {
	Tensors     int    `json:"tensors"`
	Rounds      uint64 `json:"rounds"`
	Steps       uint64 `json:"steps"`        // rounds after init / tensor count, 0 until that is set
	BytesPushed uint64 `json:"bytes_pushed"` // of the caller's arrays
	BytesPulled uint64 `json:"bytes_pulled"` // of sums, each counted once however many pulls it serves, and of tables' rows

	Plan   uint32             `json:"plan"`   // number of the plan; that of the start is 0
	Shares map[string]float64 `json:"shares"` // of the summing, by name of the node; without those that sum nothing
}

// NewWorker makes a worker without any keys.
func NewWorker(c WorkerConfig) *Worker {
	w := &Worker{WorkerConfig: c}
	w.mu.roster, w.mu.epoch = newRoster(c.Epoch, c.Workers), uint16(c.Epoch)
	w.mu.byKey = map[uint64]*tensor{}
	w.mu.byID = map[uint32]*tensor{}
	w.mu.plan = newNumbered(0, c.Plan)
	w.mu.asks.open = map[uint64]*ask{}
	w.mu.waiting = map[string][]string{}
	w.mu.flights.name, w.mu.flights.about = w.name, w.about
	w.mu.now = time.Now()
	return w
}

// Push contributes memory to key's next round. The ticket ends when the sum has
// arrived; it is kept for pulls until the next push.
func (w *Worker) Push(key uint64, dtype wire.DType, memory []byte, op wire.Op, priority int32) (*Ticket, error) {
	return w.enter(&operation{worker: w, verb: verbPush, source: memory, op: op, priority: priority}, key, dtype, nil)
}

// Exchange describes one PushPull: Memory is contributed, and the sum is read straight into Out, which may be Memory itself.
type Exchange struct {
	Key         uint64
	DType       wire.DType
	Memory, Out []byte
	Op          wire.Op
	Priority    int32
}

// PushPullAll contributes arrays and receives their sums, for all exchanges or, after an error, for none. The sums are not kept
// for pulls.
func (w *Worker) PushPullAll(list []Exchange) (tickets []*Ticket, err error) {
	kept := w.memoryFor(list)
	w.step(func() (e effects) {
		begun := make([]*operation, 0, len(list))
		for i := range list {
			x := &list[i]
			o := &operation{worker: w, verb: verbPushPull, source: x.Memory, op: x.Op, priority: x.Priority}
			var t *tensor
			if t, err = w.check(o, x.Key, x.DType, x.Out); err == nil {
				err = w.checkClosed(t, t.newest()+1)
			}
			if err == nil {
				err = w.borrow(o, x.Key, x.Out)
			}
			if err != nil {
				break
			}
			o.tensor = t
			begun = append(begun, o)
		}
		if err != nil {
			for _, o := range begun {
				w.mu.flights.leave(o.source, o)
				w.mu.flights.leave(o.pulls[0].memory, nil)
			}
			begun = nil
		}
		for _, o := range begun {
			if t := o.tensor; !t.last.keepsSum() {
				o.kept = kept[t.key]
				delete(kept, t.key)
			}
			tickets = append(tickets, w.launch(o, &e))
		}
		for _, memory := range kept { // an error, or another push has brought some meanwhile
			w.mu.freed = append(w.mu.freed, memory)
		}
		return e
	})
	return tickets, err
}

// memoryFor allocates, without the lock, the memory in which a worker that recovers keeps sums, for the keys that have none.
func (w *Worker) memoryFor(list []Exchange) map[uint64][]byte {
	if !w.Recovers {
		return nil
	}
	kept := map[uint64][]byte{}
	for key, n := range w.lacking(list) {
		kept[key] = allocate(n)
	}
	return kept
}

// lacking returns the sizes of the tensors that have no memory for sums, and will get none from a push before. While the worker
// recovers, a tensor keeps such memory.
func (w *Worker) lacking(list []Exchange) map[uint64]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	sizes := map[uint64]uint64{}
	for i := range list {
		if t := w.mu.byKey[list[i].Key]; t != nil && t.last != nil && t.table == nil && !t.last.keepsSum() {
			sizes[t.key] = t.size
		}
	}
	return sizes
}

// PushPull is PushPullAll of one exchange.
func (w *Worker) PushPull(key uint64, dtype wire.DType, memory, out []byte, op wire.Op, priority int32) (*Ticket, error) {
	return w.enter(&operation{worker: w, verb: verbPushPull, source: memory, op: op, priority: priority}, key, dtype, out)
}

// Skip contributes zeros to key's next round, without sending them.
func (w *Worker) Skip(key uint64) (*Ticket, error) {
	return w.enter(&operation{worker: w, verb: verbSkip}, key, 0, nil)
}

// enter checks an operation and queues it, or starts it at once. Memory for its sum is allocated without the lock, after
// which all is checked anew.
func (w *Worker) enter(o *operation, key uint64, dtype wire.DType, out []byte) (ticket *Ticket, err error) {
	for entered := false; !entered; {
		lacks := uint64(0)
		w.step(func() effects {
			var t *tensor
			entered = true
			if t, err = w.check(o, key, dtype, out); err == nil {
				err = w.checkClosed(t, t.newest()+1)
			}
			if err != nil {
				w.mu.freed = append(w.mu.freed, o.kept)
				return effects{}
			}
			switch {
			case !o.keepsSum() || t.last.keepsSum(): // none is needed, or the last push, perhaps a new one, has brought it
				w.mu.freed, o.kept = append(w.mu.freed, o.kept), nil
			case o.kept == nil:
				entered, lacks = false, t.size
				return effects{}
			}
			if err = w.borrow(o, key, out); err != nil {
				w.mu.freed = append(w.mu.freed, o.kept)
				return effects{}
			}
			o.tensor = t
			var e effects
			ticket = w.launch(o, &e)
			return e
		})
		if lacks > 0 {
			o.kept = allocate(lacks)
		}
	}
	return ticket, err
}

// launch queues a checked operation, or starts it at once.
func (w *Worker) launch(o *operation, e *effects) *Ticket {
	t := o.tensor
	ticket := w.Tickets.New(func() Waiting { return w.explain(o) })
	o.ticket = ticket // nil again once the operation has ended
	if w.Observe != nil {
		o.called = time.Now()
	}
	w.mu.stats.BytesPushed += uint64(len(o.source))
	t.last = o
	t.queue = append(t.queue, o)
	w.traceCalled(o)
	e.sends = append(e.sends, w.advance(t)...)
	return ticket
}

// check returns the tensor of key if o is possible on it.
func (w *Worker) check(o *operation, key uint64, dtype wire.DType, out []byte) (*tensor, error) {
	t, err := w.find(key)
	if err != nil || o.verb == verbSkip {
		return t, err
	}
	if err := t.fits(dtype, o.source); err != nil {
		return nil, err
	}
	if o.verb == verbPushPull {
		if err := t.fits(dtype, out); err != nil {
			return nil, err
		}
	}
	if o.op == wire.OpMean && !reduce.CanDivide(dtype) {
		return nil, fault.New(fault.Type, "%s: a mean of %v would lose its fractions: use op=\"sum\", or float32 arrays", t.name, dtype)
	}
	return t, nil
}

// borrow records that o uses the caller's memory: source and out, or neither after an error.
func (w *Worker) borrow(o *operation, key uint64, out []byte) error {
	if o.verb == verbSkip {
		return nil
	}
	if err := w.mu.flights.take(key, o.source, o, nil); err != nil {
		return err
	}
	o.borrowed = true
	if o.verb == verbPush {
		return nil
	}
	if err := w.mu.flights.take(key, out, nil, o); err != nil {
		w.mu.flights.leave(o.source, o)
		return err
	}
	o.pulls = append(o.pulls, pull{memory: out, caller: true})
	return nil
}

// find returns the tensor of a key, if it is initialised and the worker takes part in rounds.
func (w *Worker) find(key uint64) (*tensor, error) {
	t, err := w.initialised(key)
	if err == nil {
		err = w.checkStanding()
	}
	return t, err
}

// initialised returns the tensor of a key.
func (w *Worker) initialised(key uint64) (*tensor, error) {
	if w.mu.failed != nil {
		return nil, w.mu.failed
	}
	t := w.mu.byKey[key]
	if t == nil || t.last == nil {
		return nil, fault.New(fault.Key, "%s was never initialised: call init() on every worker first", wire.KeyText(key, ""))
	}
	return t, nil
}

// nameOf returns a key's name in texts.
func (w *Worker) nameOf(key uint64) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.name(key)
}

// name is nameOf with the lock held.
func (w *Worker) name(key uint64) string {
	if t := w.mu.byKey[key]; t != nil {
		return t.name
	}
	return wire.KeyText(key, "")
}

// about returns the key for errors; the lock is held.
func (w *Worker) about(key uint64) fault.About {
	if t := w.mu.byKey[key]; t != nil {
		return t.about()
	}
	return wire.AboutKey(key, "")
}

func (t *tensor) about() fault.About { return wire.AboutKey(t.key, t.label) }

// fits returns an error if an array cannot be pushed to, or pulled from, the tensor.
func (t *tensor) fits(dtype wire.DType, memory []byte) error {
	switch {
	case t.table != nil:
		return fault.New(fault.Value, "%s is a table: use push_rows() and pull_rows()", t.name)
	case dtype != t.dtype:
		return fault.New(fault.Type, "%s holds %v, the array is %v", t.name, t.dtype, dtype)
	case uint64(len(memory)) != t.size:
		return fault.New(fault.Value, "%s has %d bytes, the array has %d", t.name, t.size, len(memory))
	}
	return nil
}

// TensorInfo describes a tensor on this worker.
type TensorInfo struct {
	Bytes       uint64      `json:"bytes"`
	Row         int         `json:"row"`    // bytes of a row of a table; 0: not a table
	Packet      int         `json:"packet"` // bytes of the tensor in each packet but the last
	DType       string      `json:"dtype"`
	Consistency string      `json:"consistency"`
	Optimizer   *store.Rule `json:"optimizer"` // on the leader alone
	Rate        *float64    `json:"rate"`      // the learning rate that its next pushes carry, nil: none
}

// TensorInfo describes an initialised key.
func (w *Worker) TensorInfo(key uint64) (TensorInfo, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t, err := w.initialised(key)
	if err != nil {
		return TensorInfo{}, err
	}
	info := TensorInfo{t.size, 0, t.content(0), t.dtype.String(), t.policy.Applied().String(), t.rule, nil}
	if t.table != nil {
		info.Bytes, info.Row = t.declaration().Bytes, t.table.row
	}
	if t.rule == nil && t.updated && w.leads() {
		return info, fault.New(fault.Busy, "%s: the worker that had set its optimiser has died, and this one is about to learn which it is: try again", t.name).With(t.about())
	}
	if t.rated {
		rate := float64(t.rate)
		info.Rate = &rate
	}
	return info, nil
}

// SetTensorCount sets the number of pushes in a step of the training loop. It is called
// once, before the first push.
func (w *Worker) SetTensorCount(n int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case n < 1 || n > wire.MaxTensors:
		return fault.New(fault.Value, "a tensor count of %d: 1 to %d are expected", n, wire.MaxTensors)
	case w.mu.perStep != 0 && w.mu.perStep != uint64(n):
		return fault.New(fault.Value, "the tensor count is %d already: it cannot become %d", w.mu.perStep, n)
	}
	w.mu.perStep = uint64(n)
	return nil
}

// Stats returns the counts so far.
func (w *Worker) Stats() WorkerStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.mu.stats
	s.Plan, s.Shares = w.mu.plan.number, map[string]float64{}
	for node, share := range w.shares() {
		s.Shares[w.Name(node)] = share
	}
	if w.mu.perStep > 0 {
		s.Steps = (s.Rounds - min(s.Rounds, uint64(s.Tensors))) / w.mu.perStep
	}
	return s
}

// Waiting records the nodes that a barrier or a declaration waits for, by the scheduler's last report.
func (w *Worker) Waiting(what string, missing []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.waiting[what] = missing
}

// WaitingFor returns the nodes that Waiting recorded last for a barrier or a declaration.
func (w *Worker) WaitingFor(what string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.waiting[what]
}

// explain describes why an operation has not ended.
func (w *Worker) explain(o *operation) Waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waitsFor(o)
}

// waitsFor is explain with the lock held.
func (w *Worker) waitsFor(o *operation) Waiting {
	t := o.tensor
	waiting := Waiting{About: t.about()}
	switch {
	case t.last == nil:
		waiting.Text = fmt.Sprintf("%s waits until every worker has declared it", t.name)
		waiting.Missing = w.mu.waiting[t.name]
		if len(waiting.Missing) > 0 {
			waiting.Text += "; missing: " + strings.Join(waiting.Missing, ", ")
		}
		return waiting
	case o.whole:
		waiting.Text = fmt.Sprintf("%s: the sum is here, the last bytes are being sent", t.name)
		return waiting
	case len(w.mu.frozen) > 0 && (o.verb != verbFetch || t.active != o):
		waiting.Text = fmt.Sprintf("%s: after the death of a worker, until all nodes have heard of it, no round ends", t.name)
		waiting.Missing = w.mu.waiting[wire.Deaths]
		if len(waiting.Missing) > 0 {
			waiting.Text += "; missing: " + strings.Join(waiting.Missing, ", ")
		}
		return waiting
	case w.mu.meeting:
		waiting.Text = fmt.Sprintf("%s: round %d waits until new workers are admitted", t.name, t.next)
		return waiting
	case t.active == nil && len(t.queue) > 0 && w.waits(t):
		waiting.Text = fmt.Sprintf("%s: round %d waits for the scheduler to decide on a new plan", t.name, t.next)
		return waiting
	case t.active == nil:
		waiting.Text = fmt.Sprintf("%s: its last sum is being copied, then the next round starts", t.name)
		return waiting
	}
	if t.handing != nil {
		waiting.Text = fmt.Sprintf("%s round %d: the weights of %d packets move to other aggregators first, as the plan has changed", t.name, t.round, t.handing.moving())
		return waiting
	}
	text := fmt.Sprintf("%s round %d: the sums of %d of %d packets are here", t.name, t.round, t.active.count, t.packets)
	if t.active.verb == verbFetch {
		text = fmt.Sprintf("%s: its initial value: %d of %d packets are here", t.name, t.active.count, t.packets)
	}
	if o != t.active {
		text = "waits for the operation before it: " + text
	}
	if t.missing != nil {
		text += "; missing: " + strings.Join(t.missing, ", ")
	}
	waiting.Text, waiting.Missing = text, t.missing
	return waiting
}
