package cluster

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/fault"
	"fptps/gocore/van"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// verdictTime is how long a node that suspects another waits for the scheduler's
// verdict before it judges itself; lastWordTime is the same where the scheduler
// itself is suspected: its last word may be a verdict that is still on its way.
const (
	verdictTime  = 2 * time.Second
	lastWordTime = time.Second
)

// Postoffice is a worker's or server's end of the control plane.
type Postoffice struct {
	c      Config
	events Events
	log    *slog.Logger
	loop   *loop
	view   View // as this node joined it
	mail   *mail

	customers []int // those of this process that have asked to be let in

	// What follows belongs to the loop's goroutine.
	failure  error                          // why nothing is taken any more; nil while all is well
	barriers map[meeting][]waiter           // the first of each has been asked for
	declares map[uint64]func(uint32, error) // by key; all have been sent
	stuck    map[string]bool                // what Waiting has been told of, and has not gone on
	suspects []suspicion
	beat     time.Time // of the next heartbeat
	heard    time.Time // last word of the scheduler
	ticked   time.Time
	strays   uint64
	noted    map[int]bool // senders of strays that the log has named
}

func newPostoffice(c Config, e Events, l *loop, view View) *Postoffice {
	now := time.Now()
	return &Postoffice{
		c: c, events: e, log: c.log(), loop: l, view: view, mail: newMail(l.van, view, wire.SchedulerID),
		barriers: map[meeting][]waiter{}, noted: map[int]bool{}, declares: map[uint64]func(uint32, error){}, stuck: map[string]bool{},
		beat: now, heard: now, ticked: now,
	}
}

// Customers lists those of this process that have asked to be let in; at least one.
func (p *Postoffice) Customers() []int { return p.customers }

// View is the cluster as it is now.
func (p *Postoffice) View() View { return *p.mail.view.Load() }

// Send takes an application's message to a node, itself included. It does not wait,
// and has no use of data any more when it returns.
func (p *Postoffice) Send(id int, m *pspb.Meta, data ...[]byte) error {
	if id != p.view.Self {
		return p.mail.send(id, m, data...)
	}
	e := toSelf(id, m, data)
	if !p.loop.do(func() { p.events.message(p.view.Me(), e) }) {
		return van.ErrClosed
	}
	return nil
}

// waiter is a customer that waits in a barrier.
type waiter struct {
	group int
	done  func(error)
}

// meeting names a queue of barriers that are passed one after the other.
type meeting struct{ group, customer int }

// meeting is the queue of a customer's barriers of a group. The answers of a ps-lite
// scheduler name no group, so that only one can be under way.
func (p *Postoffice) meeting(group, customer int) meeting {
	if p.pslite() {
		group = 0
	}
	return meeting{group, customer}
}

// pslite tells whether the scheduler is a program of ps-lite.
func (p *Postoffice) pslite() bool { return p.view.Member(wire.SchedulerID).PSLite() }

// Barrier calls done when all nodes of the group have come here: WorkerGroup, or
// AllGroup, which means the start the first time and the end the second. Barriers of
// one group are passed one after the other by each customer. done is called on the
// postoffice's goroutine and must not block; after a failure or Close, with its error.
func (p *Postoffice) Barrier(customer, group int, done func(error)) {
	if !p.loop.do(func() { p.barrier(customer, group, done) }) {
		done(p.failure)
	}
}

func (p *Postoffice) barrier(customer, group int, done func(error)) {
	switch {
	case p.failure != nil:
		done(p.failure)
	case group < 1 || group > AllGroup || !inGroup(p.c.Role, group):
		done(fault.New(fault.Value, "a %v is not in group %d: it cannot wait for its barrier", p.c.Role, group))
	default:
		where := p.meeting(group, customer)
		p.barriers[where] = append(p.barriers[where], waiter{group, done})
		if len(p.barriers[where]) == 1 {
			p.send(barrierMessage(int32(group), 0, int32(customer), true))
		}
	}
}

// Declare says what this worker's tensor is. When all workers have
// said the same, done gets the tensor's id: they count from 0. done as for Barrier.
func (p *Postoffice) Declare(key uint64, t wire.Tensor, done func(id uint32, err error)) {
	if !p.loop.do(func() { p.declare(key, t, done) }) {
		done(0, p.failure)
	}
}

func (p *Postoffice) declare(key uint64, t wire.Tensor, done func(uint32, error)) {
	reason := t.Refusal()
	switch {
	case p.failure != nil:
		done(0, p.failure)
	case p.c.Role != RoleWorker:
		done(0, fault.New(fault.Value, "key %d: a %v declares no tensors", key, p.c.Role))
	case reason != "":
		done(0, fault.New(fault.Value, "key %d: no tensor can be like this: %s", key, reason))
	case p.declares[key] != nil:
		done(0, fault.New(fault.Busy, "key %d is being declared already: wait for that first", key))
	default:
		p.declares[key] = done
		p.send(&pspb.Meta{Own: &pspb.Meta_Declare{Declare: &pspb.Declare{
			Key: proto.Uint64(key), Bytes: proto.Uint64(t.Bytes), Dtype: proto.Uint32(uint32(t.DType)), Policy: proto.Uint32(uint32(t.Policy)),
			Row: proto.Uint32(t.Row),
		}}})
	}
}

// Suspect says that the data connection to a node broke. The scheduler decides what
// that means. Without its verdict in 2 s the node is lost by own judgement; when it
// is the scheduler itself, after 1 s.
func (p *Postoffice) Suspect(id int, why string) {
	p.loop.do(func() {
		if p.failure != nil || p.View().Member(id).Vacant {
			return
		}
		p.suspects = append(p.suspects, suspicion{id: id, by: p.view.Self, why: why, at: time.Now()})
		if id != wire.SchedulerID {
			p.send(&pspb.Meta{Own: &pspb.Meta_Suspect{Suspect: &pspb.Suspect{Id: proto.Int32(int32(id)), Why: proto.String(clip(why))}}})
		}
	})
}

// Close leaves without waiting for anyone. What still waits ends with ClosedError.
// What was sent leaves first, within a bound. Idempotent; not to be called from an
// event or a done.
func (p *Postoffice) Close() { p.loop.close() }

// send takes a message to the scheduler.
func (p *Postoffice) send(m *pspb.Meta) {
	m.Token = p.view.Token[:]
	if err := p.loop.van.Send(wire.SchedulerID, m); err != nil {
		p.lose(wire.SchedulerID, fmt.Sprintf("it reads no messages: %v", err))
	}
}

func (p *Postoffice) message(now time.Time, e *van.Envelope) {
	if p.failure != nil {
		return
	}
	from, known := p.mail.known(e)
	if !known || from.ID != wire.SchedulerID && !IsMail(e.Meta) {
		p.stray(e.From)
		return
	}
	if from.ID == wire.SchedulerID {
		p.heard = now
	}
	if IsMail(e.Meta) {
		p.events.message(from, e)
		return
	}
	switch own := e.Meta.GetOwn().(type) {
	case *pspb.Meta_Declared:
		p.declared(own.Declared.GetKey(), own.Declared.GetId(), nil)
	case *pspb.Meta_Disagreement:
		p.declared(own.Disagreement.GetKey(), 0, disagreementError(own.Disagreement))
	case *pspb.Meta_Refused:
		p.declared(own.Refused.GetKey(), 0, fault.New(fault.Value, "key %d: the scheduler refused the tensor: %s", own.Refused.GetKey(), clip(own.Refused.GetReason())))
	case *pspb.Meta_Waiting:
		p.waiting(own.Waiting)
	case *pspb.Meta_Lost:
		if id, why := int(own.Lost.GetId()), clip(own.Lost.GetWhy()); own.Lost.GetVacant() && id != p.view.Self {
			p.vacated(id, why)
		} else {
			p.lose(id, why)
		}
	default:
		switch c := e.Meta.GetControl(); {
		case c.GetCmd() == pspb.Barrier && !e.Meta.GetRequest():
			p.passed(int(c.GetBarrierGroup()), int(e.Meta.GetCustomerId()))
		case c.GetCmd() == pspb.AddNode:
			for _, n := range c.GetNode() {
				p.recovered(n)
			}
		}
	}
}

// vacated takes the news that a node is dead, and that the cluster goes on.
func (p *Postoffice) vacated(id int, why string) {
	m := p.View().Member(id)
	if m.ID == 0 || m.Vacant || id == wire.SchedulerID {
		return
	}
	p.suspects = slices.DeleteFunc(p.suspects, func(o suspicion) bool { return o.id == id })
	m.Vacant = true
	p.mail.change(p.View().with(m), id)
	p.events.vacated(id, why)
}

// recovered takes the news that a node has the place of one that has died. A scheduler of ps-lite's tells of no death.
func (p *Postoffice) recovered(n *pspb.Node) {
	m, err := memberOf(n)
	m.ID, m.Customers = int(n.GetId()), 1
	old := p.View().Member(m.ID)
	if err != nil || !m.Recovered || old.ID == 0 || old.Role != m.Role || m.ID == p.view.Self || m.Role == RoleScheduler || sameAddress(old, m) && !old.Vacant {
		return
	}
	p.vacated(m.ID, "another node has taken its place")
	m.Vacant = false
	p.mail.change(p.View().with(m), m.ID)
	p.events.recovered(m)
}

// stray counts a message that nobody sends who belongs here.
func (p *Postoffice) stray(from int) {
	p.strays++
	if !p.noted[from] && len(p.noted) < maxStrays {
		p.noted[from] = true
		p.log.Warn("dropped a message that no node of this cluster sends; more of them are counted only", "from", from)
	}
}

// passed ends the barrier of a group. Where a process has several customers, all of
// them have met in it.
func (p *Postoffice) passed(group, customer int) {
	for where := range p.barriers {
		if p.pslite() || where.group == group && (where.customer == customer || group == AllGroup || p.view.Me().Customers > 1) {
			p.pass(where)
		}
	}
}

// pass ends a queue's first barrier and asks for the next.
func (p *Postoffice) pass(where meeting) {
	waiting := p.barriers[where]
	if len(waiting) == 0 {
		return
	}
	p.barriers[where] = waiting[1:]
	if len(waiting) > 1 {
		p.send(barrierMessage(int32(waiting[1].group), 0, int32(where.customer), true))
	}
	p.goesOn("barrier")
	waiting[0].done(nil)
}

// declared ends a declaration.
func (p *Postoffice) declared(key uint64, id uint32, err error) {
	done := p.declares[key]
	if done == nil {
		return
	}
	delete(p.declares, key)
	p.goesOn(keyText(key))
	done(id, err)
}

func (p *Postoffice) waiting(m *pspb.Waiting) {
	what, missing := clip(m.GetWhat()), m.GetMissing()
	p.stuck[what] = true
	p.log.Warn("waiting", "for", what, "missing", missing)
	p.events.waiting(what, missing)
}

func (p *Postoffice) goesOn(what string) {
	if p.stuck[what] {
		delete(p.stuck, what)
		p.events.waiting(what, nil)
	}
}

// lose takes the verdict that a node is dead; the first one counts.
func (p *Postoffice) lose(id int, why string) {
	if p.failure != nil {
		return
	}
	if id == wire.SchedulerID {
		p.loop.van.Disconnect(id, true) // so that Close does not wait for it
	}
	p.fail(lostError(id, why))
	p.loop.van.Disconnect(wire.SchedulerID, true) // there is nothing left to say, and maybe nobody to hear it
	p.events.lost(id, why)
}

// fail ends everything that waits with err, and all that is asked from now on. A
// done that panics keeps none of the others from its end.
func (p *Postoffice) fail(err error) {
	if p.failure == nil {
		p.failure = err
	}
	var ends []func()
	for where, waiting := range p.barriers {
		for _, w := range waiting {
			ends = append(ends, func() { w.done(p.failure) })
		}
		delete(p.barriers, where)
	}
	for key, done := range p.declares {
		ends = append(ends, func() { done(0, p.failure) })
		delete(p.declares, key)
	}
	for _, end := range ends {
		if err := p.loop.guard(end); err != nil {
			p.log.Error("the control plane failed", "reason", err)
		}
	}
}

func (p *Postoffice) tick(now time.Time) {
	if gap := now.Sub(p.ticked); gap > stallTime { // this process stood still: that is not the scheduler's silence
		p.heard = p.heard.Add(gap)
	}
	p.ticked = now
	if p.failure != nil {
		return
	}
	if p.c.HeartbeatInterval > 0 && !now.Before(p.beat) {
		p.beat = now.Add(p.c.HeartbeatInterval)
		p.send(heartbeat(p.view.Me()))
	}
	if silence := now.Sub(p.heard); p.c.beats() && silence > p.c.HeartbeatTimeout {
		p.lose(wire.SchedulerID, fmt.Sprintf("it was silent for %v", silence.Round(time.Second)))
	}
	i := slices.IndexFunc(p.suspects, func(o suspicion) bool { return !now.Before(o.judged()) })
	if i >= 0 {
		p.lose(p.suspects[i].id, p.suspects[i].why)
	}
}

func (p *Postoffice) due() time.Time {
	if p.failure != nil {
		return time.Time{}
	}
	var due time.Time
	if p.c.HeartbeatInterval > 0 {
		due = p.beat
	}
	for _, o := range p.suspects {
		if at := o.judged(); due.IsZero() || at.Before(due) {
			due = at
		}
	}
	return due
}

func (p *Postoffice) ended(err error) {
	if dropped := p.loop.van.Stats().Rejected + p.strays; dropped > 0 {
		p.log.Warn("the control plane has dropped messages of strangers", "messages", dropped)
	}
	if err == nil {
		p.fail(fault.New(fault.Closed, "%s has left its cluster", Name(p.view.Self)))
		return
	}
	p.log.Error("the control plane broke", "reason", err)
	p.fail(err)
	p.events.failed(err)
}
