package kv

import (
	"encoding/binary"
	"encoding/json"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/wire"
)

// A newcomer is a worker that comes when the others have begun. Its program declares its tensors as all do, and then waits to be admitted, from
// which moment on the others wait for its contributions (inventory.go). It then takes over the inventory of another worker (Fetch): the
// rounds and runs of all tensors, and the state of the program.

// standing is what a worker may do.
type standing uint8

const (
	member   standing = iota // take part in rounds
	newcomer                 // declare tensors
	admitted                 // the same; the others wait for it already
)

// admission is what a worker knows of the admission of newcomers, or of its own.
type admission struct {
	meeting    bool     // from Arrive to Settle or Depart: no round begins
	joined     bool     // a worker has joined, and is not settled
	admissions []uint16 // the epochs that have begun with one
	parcel     *parcel  // for newcomers; nil: nothing

	standing standing
	base     int    // of a newcomer: deaths before it was admitted
	state    []byte // of a newcomer: of the program, until DropState
}

// NewNewcomer makes a worker that comes when the others have begun. It takes part once it is admitted (Join, Settle) and has fetched the
// inventory (Fetch).
func NewNewcomer(c WorkerConfig) *Worker {
	w := NewWorker(c)
	w.mu.standing = newcomer
	return w
}

// CheckStanding returns an error if the worker takes part in no rounds yet.
func (w *Worker) CheckStanding() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checkStanding()
}

// checkStanding is CheckStanding with the lock held.
func (w *Worker) checkStanding() error {
	if w.mu.standing == member {
		return nil
	}
	return fault.New(fault.Value, "this worker came when the others had begun: first it has to call admit(), at the place of the program where the others call it")
}

// declaredEarly handles the id of a tensor that a newcomer has declared. The others have begun with it, unless they declare it after
// they have admitted this worker: then it waits for the inventory. The lock is held.
func (w *Worker) declaredEarly(o *operation, id uint32) (e effects) {
	t := o.tensor
	t.id, t.last = id, o
	w.mu.byID[id] = t
	w.mu.stats.Tensors++
	if w.mu.standing == newcomer {
		e.ended = w.endInit(o)
	}
	return e
}

// endInit ends the init of a tensor with which the others have begun: its values are not used. The lock is held.
func (w *Worker) endInit(o *operation) []*Ticket {
	o.tensor.queue, o.whole = nil, true
	return w.end(o)
}

// Fetch takes over the inventory of another worker. When the ticket has ended, ProgramState returns what that worker's program has given to Arrive.
func (w *Worker) Fetch(node uint32) (ticket *Ticket) {
	i := &inquiry{about: "the state of the training"}
	chunk := func(number int, into []byte) *ask {
		return &ask{node: node, into: into, header: wire.Header{Op: wire.AskInventory, Packet: uint32(number), Priority: urgent}}
	}
	var data []byte
	i.take = func(a *ask, payload []byte) error {
		if a.header.Packet > 0 {
			return nil
		}
		size, err := parcelSize(payload)
		if err == nil {
			data = make([]byte, size)
			copy(data, payload)
		}
		return err
	}
	i.more = func(a *ask) (rest []*ask) {
		for at := wire.PacketBytes; a.header.Packet == 0 && at < len(data); at += wire.PacketBytes {
			rest = append(rest, chunk(at/wire.PacketBytes, data[at:min(at+wire.PacketBytes, len(data))]))
		}
		return rest
	}
	i.then = func() (e effects) {
		if i.err == nil {
			e, i.err = w.adopt(data)
		}
		return e
	}
	w.step(func() (e effects) {
		if w.isDead(node) { // since the caller has chosen it: no answer would come, and no further news of its death
			w.open(i, nil)
			ticket, i.then, i.err = i.ticket, nil, lostNode(w.Name(node), node)
			return i.end()
		}
		e = w.inquire(i, []*ask{chunk(0, nil)})
		ticket = i.ticket
		return e
	})
	return ticket
}

// ProgramState returns the program's state, until DropState; see Fetch.
func (w *Worker) ProgramState() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.state
}

// DropState frees the program's state.
func (w *Worker) DropState() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.state = nil
}

// parcelHeader has the sizes of a parcel's parts, before these.
const parcelHeader = 16

// parcelSize returns the bytes of a parcel with this beginning.
func parcelSize(beginning []byte) (int, error) {
	const most = 1 << 40
	if len(beginning) >= parcelHeader {
		text, state := binary.LittleEndian.Uint64(beginning), binary.LittleEndian.Uint64(beginning[8:])
		if size := text + state + parcelHeader; text < most && state < most && size >= uint64(len(beginning)) {
			return int(size), nil
		}
	}
	return 0, fault.New(fault.Internal, "another worker has sent %d bytes that are no state of a training", len(beginning))
}

// adopt makes this worker a member, with the inventory of another one. The lock is held.
func (w *Worker) adopt(data []byte) (e effects, err error) {
	text, state := data[parcelHeader:], []byte(nil)
	if size := binary.LittleEndian.Uint64(data); size <= uint64(len(text)) {
		text, state = text[:size], text[size:]
	}
	var all inventory
	if err := json.Unmarshal(text, &all); err != nil {
		return e, fault.New(fault.Internal, "the inventory of another worker: %v", err)
	}
	since := w.mu.deaths[w.mu.base:] // those that the inventory does not know
	shares, err := plan.New(all.Shares)
	if err != nil {
		return e, err
	}
	w.mu.plan = numbered{all.Plan, shares, plan.ResumeTally(shares, all.Owed)}
	w.mu.deaths = nil
	for _, d := range all.Deaths {
		w.mu.deaths = append(w.mu.deaths, death{d.Node, wire.RankOfWorker(int(d.Node)), d.Heirs})
	}
	w.mu.deaths = append(w.mu.deaths, since...)
	w.mu.standing, w.mu.state, w.mu.nextID = member, state, uint32(len(all.Tensors))
	for id := range all.Tensors {
		e.ended = append(e.ended, w.adoptTensor(uint32(id), &all.Tensors[id], since)...)
	}
	for id := uint32(0); w.mu.byID[id] != nil; id++ {
		t := w.mu.byID[id]
		if int(id) >= len(all.Tensors) { // declared by all after this worker was admitted
			t.plan, t.runs, w.mu.nextID = uint16(w.mu.plan.number), w.cut(t), id+1
		}
		e.sends = append(e.sends, w.advance(t)...)
	}
	return e, nil
}

// adoptTensor takes over a tensor. since has the deaths after the inventory was made.
func (w *Worker) adoptTensor(id uint32, r *tensorRecord, since []death) (ended []*Ticket) {
	t := w.mu.byID[id]
	if t == nil { // this program has not declared it yet
		if r.Row > 0 {
			t = newTable(r.Size, r.Row)
		} else {
			t = newDense(r.Size)
		}
		t.key, t.name, t.label, t.shape, t.dtype, t.policy, t.id = r.Key, wire.KeyText(r.Key, r.Name), r.Name, r.Shape, r.DType, r.Policy, id
		w.mu.byKey[r.Key], w.mu.byID[id] = t, t
	}
	patched := func(runs []plan.Run) []plan.Run {
		for _, d := range since {
			runs = d.patch(t.key, runs)
		}
		return runs
	}
	t.round, t.next, t.since = r.Next-1, r.Next, r.Next
	t.plan, t.runs, t.lost, t.epoch, t.updated = r.Plan, patched(r.Runs), r.Lost, w.mu.epoch, r.Updated
	for _, c := range r.Changes {
		t.changes = append(t.changes, change{c.Number, c.First, patched(c.Runs)})
	}
	if len(t.queue) > 0 && t.queue[0].verb == verbInit {
		return w.endInit(t.queue[0])
	}
	return nil
}
