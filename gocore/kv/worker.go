// Package kv is what a worker and an aggregator do with keys: pushes become
// rounds, rounds become packets, sums become finished tickets. It knows neither
// sockets nor the scheduler's messages.
package kv

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/reduce"
	"fptps/gocore/store"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// DataPlane carries packets. Send never blocks; to this node's own id it delivers
// to Handler.Local.
type DataPlane interface {
	Send(node uint32, m transport.Outgoing)
}

// WorkerConfig is what a Worker needs to know of its cluster.
type WorkerConfig struct {
	Rank    int
	Plan    *plan.Plan
	Lanes   []DataPlane // at least one
	Tickets *Tickets
	Log     *slog.Logger
	// Declare asks the scheduler for the id of a key once all workers agree on it.
	Declare func(key uint64, t wire.Tensor, done func(id uint32, err error))
	// Name is how people call a node.
	Name func(node uint32) string
}

// Worker is the key-value store as a training process sees it. All methods may be
// called from any thread, and none blocks.
type Worker struct {
	WorkerConfig
	mu struct {
		sync.Mutex
		byKey   map[uint64]*tensor
		byID    map[uint32]*tensor // declared ones
		asks    asks
		flights flights
		failed  error // why no operation is taken any more
		waiting map[string]string
		stats   WorkerStats
		now     time.Time // as of the last tick
		told    time.Time // when the log last spoke of a stall
		perStep uint64    // pushes in a step of the training loop, 0 until told
	}
}

// WorkerStats are counts since the start.
type WorkerStats struct {
	Tensors     int    `json:"tensors"`
	Rounds      uint64 `json:"rounds"`
	Steps       uint64 `json:"steps"`        // rounds after init / tensor count, 0 until it was told
	BytesPushed uint64 `json:"bytes_pushed"` // of the caller's arrays
	BytesPulled uint64 `json:"bytes_pulled"` // of sums, each counted once however many pulls it serves, and of tables' rows
}

// NewWorker makes a worker without any keys.
func NewWorker(c WorkerConfig) *Worker {
	w := &Worker{WorkerConfig: c}
	w.mu.byKey = map[uint64]*tensor{}
	w.mu.byID = map[uint32]*tensor{}
	w.mu.asks.open = map[uint64]*ask{}
	w.mu.waiting = map[string]string{}
	w.mu.now = time.Now()
	return w
}

// Init declares key and gives every worker rank 0's values (round 0, to which all
// others contribute EMPTY). It copies memory, so the caller's array is free again.
// The ticket ends when the values are here. policy says when later rounds are applied.
func (w *Worker) Init(key uint64, dtype wire.DType, policy wire.Policy, memory []byte) (*Ticket, error) {
	if err := checkArray(key, dtype, memory); err != nil {
		return nil, err
	}
	if !policy.Valid() {
		return nil, fault.New(fault.Value, "key %d: unknown consistency %d: bounded takes 0 to %d rounds", key, policy, wire.MaxDelay)
	}
	t := &tensor{
		key: key, dtype: dtype, policy: policy, size: uint64(len(memory)), packets: wire.Packets(uint64(len(memory))),
		kept: make([]byte, len(memory)),
	}
	o := &operation{worker: w, tensor: t, verb: verbInit}
	t.queue = []*operation{o}
	if w.Rank == 0 {
		copy(t.kept, memory)
		o.source = t.kept
	}
	if err := w.admit(o); err != nil {
		return nil, err
	}
	return w.declare(o, t.declaration()), nil
}

// declare asks whether all workers agree on a tensor that was taken in, and gives the ticket of its Init.
func (w *Worker) declare(o *operation, what wire.Tensor) *Ticket {
	ticket := o.ticket // which is nil again once it has ended
	w.Declare(o.tensor.key, what, func(id uint32, err error) {
		w.step(func() effects { return w.declared(o, id, err) })
	})
	return ticket
}

// declaration is what all workers have to agree on.
func (t *tensor) declaration() wire.Tensor {
	what := wire.Tensor{Bytes: t.size, DType: t.dtype, Policy: t.policy}
	if t.table != nil {
		what.Bytes, what.Row = uint64(t.table.rows)*uint64(t.table.row), uint32(t.table.row)
	}
	return what
}

// admit takes a new key in.
func (w *Worker) admit(o *operation) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := o.tensor
	switch {
	case w.mu.failed != nil:
		return w.mu.failed
	case w.mu.byKey[t.key] != nil:
		return fault.New(fault.Value, "key %d is initialised already: init each key once", t.key)
	}
	if o.borrowed {
		if err := w.mu.flights.take(t.key, o.source, o, nil); err != nil {
			return err
		}
	}
	w.mu.byKey[t.key] = t
	o.ticket = w.Tickets.New(func() string { return w.explain(o) })
	return nil
}

// declared ends the first half of an Init: all workers agree, or do not.
func (w *Worker) declared(o *operation, id uint32, err error) effects {
	t := o.tensor
	if w.mu.failed != nil { // Fail has ended the ticket
		return effects{}
	}
	if err != nil {
		delete(w.mu.byKey, t.key)
		if o.borrowed {
			w.mu.flights.leave(o.source, o)
		}
		return effects{ended: []*Ticket{o.ticket}, err: err}
	}
	t.id = id
	t.runs = plan.Split(t.key, w.Plan.Cut(t.key, t.size, nil), len(w.Lanes))
	t.last = o
	w.mu.byID[id] = t
	w.mu.stats.Tensors++
	return effects{sends: w.advance(t)}
}

func checkArray(key uint64, dtype wire.DType, memory []byte) error {
	switch {
	case !dtype.Valid():
		return fault.New(fault.Type, "key %d: unknown element type %d", key, dtype)
	case !reduce.Supported(dtype):
		return fault.New(fault.Type, "key %d: %v cannot be summed on this processor: use float64", key, dtype)
	case len(memory) == 0 || len(memory)%dtype.Size() != 0:
		return fault.New(fault.Value, "key %d: %d bytes are no array of %v", key, len(memory), dtype)
	case len(memory) > wire.MaxTensorBytes:
		return fault.New(fault.Value, "key %d: %d bytes, a tensor has at most %d", key, len(memory), int64(wire.MaxTensorBytes))
	}
	return nil
}

// Push contributes memory to key's next round. The ticket ends when the sum is
// here, kept for pulls until the next push.
func (w *Worker) Push(key uint64, dtype wire.DType, memory []byte, op wire.Op, priority int32) (*Ticket, error) {
	return w.enter(&operation{verb: verbPush, source: memory, op: op, priority: priority}, key, dtype, nil)
}

// PushPull contributes memory and has the sum read straight into out, which may
// be memory itself. The sum is not kept.
func (w *Worker) PushPull(key uint64, dtype wire.DType, memory, out []byte, op wire.Op, priority int32) (*Ticket, error) {
	return w.enter(&operation{verb: verbPushPull, source: memory, op: op, priority: priority}, key, dtype, out)
}

// Skip contributes zeros to key's next round, without sending them.
func (w *Worker) Skip(key uint64) (*Ticket, error) {
	return w.enter(&operation{verb: verbSkip}, key, 0, nil)
}

// enter checks an operation and queues it, or starts it at once.
func (w *Worker) enter(o *operation, key uint64, dtype wire.DType, out []byte) (ticket *Ticket, err error) {
	w.step(func() effects {
		var t *tensor
		if t, err = w.check(o, key, dtype, out); err != nil {
			return effects{}
		}
		if err = w.board(o, key, out); err != nil {
			return effects{}
		}
		o.worker, o.tensor = w, t
		ticket = w.Tickets.New(func() string { return w.explain(o) })
		o.ticket = ticket // which is nil again once it has ended
		w.mu.stats.BytesPushed += uint64(len(o.source))
		t.last = o
		t.queue = append(t.queue, o)
		return effects{sends: w.advance(t)}
	})
	return ticket, err
}

// check gives the tensor on which o is possible.
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
		return nil, fault.New(fault.Type, "key %d: a mean of %v would lose its fractions: use op=\"sum\", or float32 arrays", key, dtype)
	}
	return t, nil
}

// board takes the caller's memory into flight, all of it or nothing.
func (w *Worker) board(o *operation, key uint64, out []byte) error {
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

// Pull brings the sum of this worker's last push of key (after Init: rank 0's
// values) to memory. It is local: nothing is asked of any other node.
func (w *Worker) Pull(key uint64, dtype wire.DType, memory []byte) (*Ticket, error) {
	o, kept, ticket, err := w.beginPull(key, dtype, memory)
	if err != nil || o == nil {
		return ticket, err
	}
	t := o.tensor
	copy(memory, kept)
	w.step(func() effects {
		t.readers--
		w.mu.flights.leave(memory, nil)
		return effects{sends: w.advance(t), ended: []*Ticket{ticket}, err: o.err}
	})
	return ticket, nil
}

// beginPull joins the last push, or, where its sum is whole, gives that push and the sum: then
// no round overwrites the sum before it is copied.
func (w *Worker) beginPull(key uint64, dtype wire.DType, memory []byte) (whole *operation, kept []byte, ticket *Ticket, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t, err := w.find(key)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := t.fits(dtype, memory); err != nil {
		return nil, nil, nil, err
	}
	o := t.last
	if !o.keeps() {
		return nil, nil, nil, fault.New(fault.Value, "key %d: the sum of its last push went to push_pull's own array and is not kept: push first", key)
	}
	if err := w.mu.flights.take(key, memory, nil, o); err != nil {
		return nil, nil, nil, err
	}
	ticket = w.Tickets.New(func() string { return w.explain(o) })
	if !o.whole {
		t.join(o, pull{memory: memory, ticket: ticket, caller: true})
		return nil, nil, ticket, nil
	}
	t.readers++
	return o, t.kept, ticket, nil
}

// find gives the tensor of a key on which operations are possible.
func (w *Worker) find(key uint64) (*tensor, error) {
	if w.mu.failed != nil {
		return nil, w.mu.failed
	}
	t := w.mu.byKey[key]
	if t == nil || t.last == nil {
		return nil, fault.New(fault.Key, "key %d was never initialised: call init(%d, array) on every worker first", key, key)
	}
	return t, nil
}

// fits tells whether an array can be pushed to, or pulled from, the tensor.
func (t *tensor) fits(dtype wire.DType, memory []byte) error {
	switch {
	case t.table != nil:
		return fault.New(fault.Value, "key %d is a table: push_rows() and pull_rows() are for it", t.key)
	case dtype != t.dtype:
		return fault.New(fault.Type, "key %d holds %v, the array is %v", t.key, t.dtype, dtype)
	case uint64(len(memory)) != t.size:
		return fault.New(fault.Value, "key %d has %d bytes, the array has %d", t.key, t.size, len(memory))
	}
	return nil
}

// TensorInfo is what this worker knows of a tensor.
type TensorInfo struct {
	Bytes       uint64      `json:"bytes"`
	Row         int         `json:"row"`    // bytes of a row, of a table; else 0
	Packet      int         `json:"packet"` // bytes of it that are in each packet, but for the last
	DType       string      `json:"dtype"`
	Consistency string      `json:"consistency"`
	Optimizer   *store.Rule `json:"optimizer"` // that this worker has set, rank 0's alone
	Rate        *float64    `json:"rate"`      // the learning rate that it tells from its next push on, nil: none
}

// TensorInfo tells what an initialised key is.
func (w *Worker) TensorInfo(key uint64) (TensorInfo, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t, err := w.find(key)
	if err != nil {
		return TensorInfo{}, err
	}
	info := TensorInfo{t.size, 0, t.content(0), t.dtype.String(), t.policy.String(), t.rule, nil}
	if t.table != nil {
		info.Bytes, info.Row = t.declaration().Bytes, t.table.row
	}
	if t.rated {
		rate := float64(t.rate)
		info.Rate = &rate
	}
	return info, nil
}

// SetTensorCount says how many pushes make a step of the training loop. It is told
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

// Stats gives the counts so far.
func (w *Worker) Stats() WorkerStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.mu.stats
	if w.mu.perStep > 0 {
		s.Steps = (s.Rounds - min(s.Rounds, uint64(s.Tensors))) / w.mu.perStep
	}
	return s
}

// Waiting notes whom a barrier or a declaration waits for, as the scheduler says.
func (w *Worker) Waiting(what string, missing []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.waiting[what] = strings.Join(missing, ", ")
}

// WaitingFor is what Waiting noted last for what, "" if nothing.
func (w *Worker) WaitingFor(what string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.waiting[what]
}

// explain says in one line what an operation waits for.
func (w *Worker) explain(o *operation) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waitsFor(o)
}

// waitsFor is explain with the lock held.
func (w *Worker) waitsFor(o *operation) string {
	t := o.tensor
	switch {
	case t.last == nil:
		text := fmt.Sprintf("key %d waits until every worker has declared it", t.key)
		if missing := w.mu.waiting[fmt.Sprintf("key %d", t.key)]; missing != "" {
			text += "; missing: " + missing
		}
		return text
	case o.whole:
		return fmt.Sprintf("key %d: the sum is here, the last bytes are being sent", t.key)
	case t.active == nil:
		return fmt.Sprintf("key %d: its last sum is being copied, then the next round starts", t.key)
	}
	text := fmt.Sprintf("key %d round %d: the sums of %d of %d packets are here", t.key, t.round, t.active.count, t.packets)
	if o != t.active {
		text = "waits for the round before it: " + text
	}
	if t.missing != nil {
		text += "; missing: " + strings.Join(t.missing, ", ")
	}
	return text
}
