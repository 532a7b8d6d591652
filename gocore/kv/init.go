package kv

import (
	"fptps/gocore/fault"
	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// Declaration states a worker's tensor. Done gets the tensor's id, or the error why there is none.
type Declaration struct {
	Key    uint64
	Tensor wire.Tensor
	Done   func(id uint32, err error)
}

// Init describes a tensor to InitAll.
type Init struct {
	Key    uint64
	Name   string // see wire.Tensor
	Shape  string // see wire.Tensor
	DType  wire.DType
	Policy wire.Policy // when later rounds are applied
	Row    int         // bytes of a row of a table; 0: the tensor is not a table
	Memory []byte      // rank 0's values, or those of the lowest rank that lives; on others only its size counts
	Zeros  bool        // these values are zeros: only the size of Memory counts there, too, and no values travel
}

// InitAll declares tensors, all of them or none, in one request to the scheduler, and brings rank 0's values to the
// aggregators (round 0, to which all other workers contribute EMPTY). A ticket ends when the aggregators have the tensor's
// values; until then Memory is read, on rank 0 and wherever the worker recovers.
func (w *Worker) InitAll(list []Init) ([]*Ticket, error) {
	inits := make([]*operation, len(list))
	for i := range list {
		o, err := w.newTensor(&list[i])
		if err != nil {
			return nil, err
		}
		inits[i] = o
	}
	if err := w.admit(inits); err != nil {
		return nil, err
	}
	tickets := make([]*Ticket, len(list))
	var declarations []Declaration
	for i, o := range inits {
		tickets[i] = o.ticket // nil again once the operation has ended
		if o.tensor.adopted() {
			w.step(func() effects { return effects{ended: w.endInit(o)} })
			continue
		}
		declarations = append(declarations, Declaration{o.tensor.key, o.tensor.declaration(), func(id uint32, err error) {
			w.step(func() effects { return w.declared(o, id, err) })
		}})
	}
	w.Declare(declarations)
	return tickets, nil
}

// newTensor makes a tensor and the operation of its Init.
func (w *Worker) newTensor(d *Init) (o *operation, err error) {
	if err := checkArray(d); err != nil {
		return nil, err
	}
	policy, err := w.policy(d)
	if err != nil {
		return nil, err
	}
	if d.Row != 0 {
		o, err = w.initTable(d)
	} else {
		o = &operation{worker: w, tensor: newDense(uint64(len(d.Memory))), verb: verbInit}
		if (w.Rank == 0 || w.Recovers) && !d.Zeros {
			o.source = d.Memory
		}
	}
	if err != nil {
		return nil, err
	}
	t := o.tensor
	t.key, t.name, t.label, t.shape = d.Key, wire.KeyText(d.Key, d.Name), d.Name, d.Shape
	t.dtype, t.policy, t.queue = d.DType, policy, []*operation{o}
	return o, nil
}

// policy returns a tensor's policy: Ordered in the place of Sync if the worker is deterministic.
func (w *Worker) policy(d *Init) (wire.Policy, error) {
	switch {
	case !w.Deterministic:
		return d.Policy, nil
	case d.Policy.Applied() == wire.Sync:
		return wire.Ordered, nil
	}
	return 0, fault.New(fault.Value, "%s: consistency %v applies pushes in the order of their arrival: with deterministic=True or FPTPS_DETERMINISTIC=1 every tensor is sync",
		wire.KeyText(d.Key, d.Name), d.Policy)
}

// newDense makes a tensor that is not a table.
func newDense(size uint64) *tensor {
	packets := wire.Packets(size)
	return &tensor{size: size, packets: packets, got: make([]uint64, (packets+63)/64)}
}

// declaration returns the tensor's description, which has to be the same on all workers.
func (t *tensor) declaration() wire.Tensor {
	what := wire.Tensor{Bytes: t.size, DType: t.dtype, Policy: t.policy, Name: t.label, Shape: t.shape}
	if t.table != nil {
		what.Bytes, what.Row = uint64(t.table.rows)*uint64(t.table.row), uint32(t.table.row)
	}
	return what
}

// admit adds new keys, all or none.
func (w *Worker) admit(inits []*operation) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.failed != nil {
		return w.mu.failed
	}
	for i, o := range inits {
		if err := w.admitOne(o); err != nil {
			for _, o := range inits[:i] {
				w.revoke(o)
			}
			return err
		}
	}
	for _, o := range inits {
		o.ticket = w.Tickets.New(func() Waiting { return w.explain(o) })
	}
	return nil
}

func (w *Worker) admitOne(o *operation) error {
	t := o.tensor
	switch known := w.mu.byKey[t.key]; {
	case known == nil:
	case !known.adopted() || known.last != nil:
		return fault.New(fault.Value, "%s is initialised already: init each key once", t.name)
	case known.declaration() != t.declaration():
		return fault.New(fault.Mismatch, "%s: this worker passes %v, the others have %v: every worker has to pass the same", t.name, t.declaration(), known.declaration()).With(t.about())
	default:
		o.tensor, known.last = known, o
		return nil
	}
	if o.borrowed {
		if err := w.mu.flights.take(t.key, o.source, o, nil); err != nil {
			return err
		}
	}
	w.mu.byKey[t.key] = t
	return nil
}

// revoke undoes admitOne.
func (w *Worker) revoke(o *operation) {
	if o.tensor.adopted() {
		o.tensor.last = nil
		return
	}
	delete(w.mu.byKey, o.tensor.key)
	if o.borrowed {
		w.mu.flights.leave(o.source, o)
	}
}

// declared handles the scheduler's answer to an Init's declaration: it starts round 0, or ends the Init with err.
func (w *Worker) declared(o *operation, id uint32, err error) effects {
	t := o.tensor
	if w.mu.failed != nil { // Fail has ended the ticket
		return effects{}
	}
	if err == nil && w.mu.standing == member && id < w.mu.nextID { // the workers' cuts would differ
		err = fault.New(fault.Internal, "%s: the scheduler's id %d comes after %d", t.name, id, w.mu.nextID-1)
	}
	if err != nil {
		w.revoke(o)
		return effects{ended: []*Ticket{o.ticket}, err: err}
	}
	if w.mu.standing != member {
		return w.declaredEarly(o, id)
	}
	t.id, w.mu.nextID = id, id+1
	t.plan, t.runs = uint16(w.mu.plan.number), w.cut(t)
	t.last = o
	w.mu.byID[id] = t
	w.mu.stats.Tensors++
	return effects{sends: w.advance(t)}
}

func checkArray(d *Init) error {
	name, bytes := wire.KeyText(d.Key, d.Name), len(d.Memory)
	switch {
	case !d.DType.Valid():
		return fault.New(fault.Type, "%s: unknown element type %d", name, d.DType)
	case !reduce.Supported(d.DType):
		return fault.New(fault.Type, "%s: %v cannot be summed on this processor: use float64", name, d.DType)
	case bytes == 0 || bytes%d.DType.Size() != 0:
		return fault.New(fault.Value, "%s: %d bytes are no array of %v", name, bytes, d.DType)
	case bytes > wire.MaxTensorBytes:
		return fault.New(fault.Value, "%s: %d bytes, a tensor has at most %d", name, bytes, int64(wire.MaxTensorBytes))
	case !d.Policy.Valid():
		return fault.New(fault.Value, "%s: unknown consistency %d: bounded takes 0 to %d rounds", name, d.Policy, wire.MaxDelay)
	}
	return nil
}
