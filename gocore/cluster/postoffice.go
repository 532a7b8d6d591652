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
// verdict before it decides alone. lastWordTime is the same for the suspected scheduler
// itself, whose last message may be a verdict that is still on its way.
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

	customers []int // of this process, that have asked to join

	// The fields below belong to the loop's goroutine.
	failure  error                  // why every request is refused; nil while all is well
	barriers map[meeting][]*waiter  // the request for the first waiter of each has been sent
	declares map[uint64]Declaration // by key; all have been sent
	acks     *acks
	stuck    map[string]bool // barriers and declarations of which Waiting has reported a stall that still lasts
	suspects []suspicion
	closed   map[int]bool  // nodes that wait in the last barrier: they enter no other one, and declare nothing
	left     chan struct{} // closed at the verdict that follows Leave, or at the end; nil: this node has not left
	beat     time.Time     // when the next heartbeat is due
	report   time.Time     // when the next report of this node's progress is
	asked    int64         // what this node's clock showed in the last heartbeat; 0: it is answered
	heard    time.Time     // when the last message of the scheduler came
	ticked   time.Time
	history  *history // of the scheduler's decisions; nil: the cluster ends with its scheduler
	begun    bool     // all nodes have met in the first barrier, and this one knows all that they know
	orphan   *orphan  // nil: there is a scheduler
	pending  pending
	strays   uint64
	noted    map[int]bool // senders of strays that the log has named
}

// newPostoffice makes that of a node that has joined. known is what the scheduler has said of the decisions before.
func newPostoffice(c Config, e Events, l *loop, view View, known *pspb.Known) *Postoffice {
	now := time.Now()
	p := &Postoffice{
		c: c, events: e, log: c.log(), loop: l, acks: newAcks(c.Resend, view.Self), view: view, mail: newMail(l.van, view, wire.SchedulerID),
		barriers: map[meeting][]*waiter{}, noted: map[int]bool{}, declares: map[uint64]Declaration{}, stuck: map[string]bool{}, closed: map[int]bool{},
		beat: now, heard: now, ticked: now, pending: pending{linked: map[int]uint64{}},
	}
	if view.SchedulerTimeout > 0 && known != nil {
		p.history = historyOf(known)
		p.pending.survived = &pspb.Survived{Epoch: proto.Uint32(uint32(view.Epoch))} // of a newcomer: it knows this epoch
	}
	return p
}

// Customers lists the customers of this process that have asked to join; at least one.
func (p *Postoffice) Customers() []int { return p.customers }

// Joined returns the cluster as this node has joined it. The events tell of all that happens later, also of what the node has heard
// before it asks.
func (p *Postoffice) Joined() View { return p.view }

// View returns the cluster as it is now.
func (p *Postoffice) View() View { return *p.mail.view.Load() }

// Rejected counts the messages of strangers that were dropped.
func (p *Postoffice) Rejected() uint64 { return p.loop.van.Stats().Rejected }

// Send sends an application's message to a node, which may be this one. It does not
// wait, and does not refer to data after it returns.
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

// Declaration states a worker's tensor. When all workers have declared the key alike, Done gets the tensor's id; ids count
// from 0. Done is called as for Barrier.
type Declaration struct {
	Key    uint64
	Tensor wire.Tensor
	Done   func(id uint32, err error)
}

// name is the tensor's name in texts.
func (d *Declaration) name() string { return wire.KeyText(d.Key, d.Tensor.Name) }

// Declare sends this worker's declarations to the scheduler, in as few messages as possible.
func (p *Postoffice) Declare(list []Declaration) {
	if !p.loop.do(func() { p.declare(list) }) {
		for _, d := range list {
			d.Done(0, p.failure)
		}
	}
}

func (p *Postoffice) declare(list []Declaration) {
	var messages []*pspb.Meta
	for _, d := range list {
		if err := p.refusal(&d); err != nil {
			d.Done(0, err)
			continue
		}
		p.declares[d.Key] = d
		messages = append(messages, &pspb.Meta{Own: &pspb.Meta_Declare{Declare: declareMessage(d.Key, d.Tensor)}})
	}
	for part := range slices.Chunk(messages, maxBatch) {
		p.send(batch(part))
	}
}

// refusal returns the reason why a tensor cannot be declared, nil if it can.
func (p *Postoffice) refusal(d *Declaration) error {
	reason := d.Tensor.Refusal()
	switch {
	case p.failure != nil:
		return p.failure
	case p.c.Role != RoleWorker:
		return fault.New(fault.Value, "%s: a %v declares no tensors", d.name(), p.c.Role)
	case reason != "":
		return fault.New(fault.Value, "%s: no tensor can be like this: %s", d.name(), reason)
	case p.closedOf(WorkerGroup) != 0:
		return p.closedError(d.name(), wire.AboutKey(d.Key, d.Tensor.Name), p.closedOf(WorkerGroup))
	case p.declares[d.Key].Done != nil:
		return fault.New(fault.Busy, "%s is being declared already: wait for that first", d.name()).With(wire.AboutKey(d.Key, d.Tensor.Name))
	}
	return nil
}

// Suspect reports to the scheduler that the data connection to a process broke. If no
// verdict comes until the deadline, this node decides alone that the process is lost.
// Suspect ignores a process whose successor has already joined.
func (p *Postoffice) Suspect(id int, incarnation uint64, why string) {
	p.loop.do(func() {
		if m := p.View().Member(id); p.failure != nil || m.Vacant || m.Incarnation != incarnation {
			return
		}
		p.suspects = append(p.suspects, suspicion{id: id, by: p.view.Self, why: why, at: time.Now()})
		if id != wire.SchedulerID {
			p.send(suspectMessage(p.suspects[len(p.suspects)-1], incarnation))
		}
	})
}

func suspectMessage(o suspicion, incarnation uint64) *pspb.Meta {
	return &pspb.Meta{Own: &pspb.Meta_Suspect{Suspect: &pspb.Suspect{
		Id: proto.Int32(int32(o.id)), Why: proto.String(clip(o.why)), Incarnation: proto.Uint64(incarnation),
	}}}
}

// Close leaves the cluster without waiting for the others. Waits under way end with
// ClosedError. Queued messages are sent first, within a bound. Close is idempotent;
// it must not be called from an event or a done.
func (p *Postoffice) Close() { p.loop.close() }

// send sends a message to the scheduler, if there is one. What another one has to know, too, is in pending, barriers, declares or suspects.
func (p *Postoffice) send(m *pspb.Meta) {
	if p.failure != nil || p.orphan != nil {
		return
	}
	if p.history != nil {
		m.Term, m.Decision = proto.Uint32(p.history.term()), proto.Uint64(p.history.number)
	}
	m.Token, m.Incarnation = p.view.Token[:], proto.Uint64(p.view.Me().Incarnation)
	p.acks.stamped(p.view.Member(wire.SchedulerID), m)
	if err := p.loop.van.Send(wire.SchedulerID, m); err != nil {
		p.lose(wire.SchedulerID, fmt.Sprintf("it reads no messages: %v", err))
	}
}

func (p *Postoffice) message(now time.Time, e *van.Envelope) {
	if p.failure != nil || e.From == 0 && e.Meta.GetWaiting() != nil { // sent to this node before it had joined
		return
	}
	if p.isResumed(e.From, e.Meta) {
		p.resumed(now, e.Meta, e.Meta.GetResumed())
		return
	}
	if refused := e.Meta.GetRefused(); refused != nil && p.orphan != nil && refused.GetIncarnation() == p.view.Me().Incarnation {
		p.lose(wire.SchedulerID, p.orphan.why+". Another one at its address has refused this node: "+clip(refused.GetReason()))
		return
	}
	from, known := p.mail.known(e)
	if !known || from.ID != wire.SchedulerID && !IsMail(e.Meta) && e.Meta.GetControl().GetCmd() != pspb.Ack {
		p.stray(e.From)
		return
	}
	if from.ID == wire.SchedulerID {
		defer p.goOn()
		if !p.obey(e.Meta) {
			return
		}
		p.heard = now
		p.readClock(e.Meta)
	}
	answer, done := p.acks.take(from, e.Meta)
	if answer != nil {
		if err := p.mail.send(from.ID, answer); err != nil {
			p.log.Warn("a message was not acknowledged", "to", Name(from.ID), "reason", err)
		}
	}
	if done {
		return
	}
	if IsMail(e.Meta) {
		p.events.message(from, e)
		return
	}
	switch own := e.Meta.GetOwn().(type) {
	case *pspb.Meta_Declared, *pspb.Meta_Disagreement, *pspb.Meta_Refused:
		p.answered(e.Meta)
	case *pspb.Meta_Batch:
		for _, m := range own.Batch.GetMessage() {
			p.answered(m)
		}
	case *pspb.Meta_Ledger:
		if p.history != nil {
			for _, m := range own.Ledger.GetTensor() {
				p.history.learn(m, m.GetDecision())
			}
		}
	case *pspb.Meta_Waiting:
		p.waiting(own.Waiting)
	case *pspb.Meta_Lost:
		p.verdict(own.Lost)
	case *pspb.Meta_Settled:
		p.settled(own.Settled)
	case *pspb.Meta_Closed:
		p.nodeClosed(own.Closed)
	case *pspb.Meta_Prepare:
		p.prepare(own.Prepare)
	case *pspb.Meta_Commit:
		p.commit(own.Commit)
	case *pspb.Meta_Abort:
		p.events.abort()
	case *pspb.Meta_Gather:
		p.send(&pspb.Meta{Own: &pspb.Meta_Passed{Passed: &pspb.Passed{Points: proto.Uint64(p.events.gather())}}})
	case *pspb.Meta_Meet:
		p.events.meet(own.Meet.GetPoints())
	case *pspb.Meta_Admitted:
		p.admitted(own.Admitted)
	case *pspb.Meta_Doing:
		p.doing(own.Doing)
	case *pspb.Meta_Withdraw:
		p.withdrawn(int(e.Meta.GetControl().GetBarrierGroup()), int(e.Meta.GetCustomerId()))
	default:
		switch c := e.Meta.GetControl(); {
		case c.GetCmd() == pspb.Barrier && !e.Meta.GetRequest():
			p.passed(int(c.GetBarrierGroup()), int(e.Meta.GetCustomerId()))
		case c.GetCmd() == pspb.AddNode:
			for _, n := range c.GetNode() {
				if n.GetNewcomer() {
					p.came(n)
				} else {
					p.recovered(n)
				}
			}
		}
	}
}

// verdict handles the scheduler's verdict that a process is dead. If this node already
// knows the process's successor, it ignores the verdict.
func (p *Postoffice) verdict(lost *pspb.Lost) {
	id, why := int(lost.GetId()), clip(lost.GetWhy())
	switch {
	case p.View().Member(id).Incarnation != lost.GetIncarnation():
	case id == p.view.Self && p.left != nil:
		p.finishLeave()
	case lost.GetVacant() && id != p.view.Self:
		p.vacated(id, why)
	case lost.GetBuried() && id != p.view.Self:
		p.buried(Burial{id, why, int(lost.GetEpoch()), int(lost.GetHeir())})
	default:
		p.lose(id, why)
	}
}

// vacated handles the verdict that a node is dead while the cluster goes on.
func (p *Postoffice) vacated(id int, why string) {
	m := p.View().Member(id)
	if m.ID == 0 || m.Vacant || id == wire.SchedulerID {
		return
	}
	p.suspects = slices.DeleteFunc(p.suspects, func(o suspicion) bool { return o.id == id })
	p.acks.forget(id)
	m.Vacant = true
	p.mail.change(p.View().With(m), id)
	p.events.vacated(id, why)
}

// recovered handles the announcement of a successor. A ps-lite scheduler announces no
// deaths, so the predecessor's is handled here.
func (p *Postoffice) recovered(n *pspb.Node) {
	m, err := memberOf(n)
	m.ID, m.Customers = int(n.GetId()), 1
	old := p.View().Member(m.ID)
	if err != nil || !m.Recovered || old.ID == 0 || old.Role != m.Role || m.ID == p.view.Self || m.Role == RoleScheduler || sameAddress(old, m) && !old.Vacant {
		return
	}
	p.vacated(m.ID, "another node has taken its place")
	m.Vacant = false
	delete(p.closed, m.ID)
	p.mail.change(p.View().With(m), m.ID)
	p.events.recovered(m)
}

// stray counts a message that no node of this cluster sends.
func (p *Postoffice) stray(from int) {
	p.strays++
	if !p.noted[from] && len(p.noted) < maxStrays {
		p.noted[from] = true
		p.log.Warn("dropped a message that no node of this cluster sends; more of them are counted only", "from", from)
	}
}

// answered handles the scheduler's answer to a declaration.
func (p *Postoffice) answered(m *pspb.Meta) {
	switch own := m.GetOwn().(type) {
	case *pspb.Meta_Declared:
		if own.Declared.Tensor != nil && tensorIn(own.Declared.Tensor) != p.declares[own.Declared.GetKey()].Tensor {
			return // a newcomer that disagrees gets an answer of its own
		}
		p.declared(own.Declared.GetKey(), own.Declared.GetId(), nil)
	case *pspb.Meta_Disagreement:
		p.declared(own.Disagreement.GetKey(), 0, disagreementError(own.Disagreement))
	case *pspb.Meta_Refused:
		d := p.declares[own.Refused.GetKey()]
		p.declared(own.Refused.GetKey(), 0, fault.New(fault.Value, "%s: the scheduler refused the tensor: %s", d.name(), clip(own.Refused.GetReason())))
	}
}

// declared ends a declaration.
func (p *Postoffice) declared(key uint64, id uint32, err error) {
	d := p.declares[key]
	if d.Done == nil {
		return
	}
	delete(p.declares, key)
	p.endStall(d.name())
	d.Done(id, err)
}

func (p *Postoffice) waiting(m *pspb.Waiting) {
	event, missing := clip(m.GetWhat()), m.GetMissing()
	p.stuck[event] = true
	p.log.Warn("waiting", "for", event, "missing", missing)
	p.events.waiting(event, missing)
}

// endStall records that a barrier or a declaration no longer waits.
func (p *Postoffice) endStall(event string) {
	if p.stuck[event] {
		delete(p.stuck, event)
		p.events.waiting(event, nil)
	}
}

// lose ends this node's part in the cluster because a node is dead; only the first call counts.
func (p *Postoffice) lose(id int, why string) {
	if p.failure != nil {
		return
	}
	if id == wire.SchedulerID {
		p.loop.van.Disconnect(id, true) // so that Close does not wait for it
	}
	p.fail(lostError(id, why))
	p.loop.van.Disconnect(wire.SchedulerID, true) // no message is left to send, and the scheduler may be dead
	p.events.lost(id, why)
}

// fail ends all waits with err, and every later request too. A done that panics does
// not prevent the others' calls.
func (p *Postoffice) fail(err error) {
	if p.failure == nil {
		p.failure = err
	}
	p.finishLeave()
	var ends []func()
	for where, waiting := range p.barriers {
		for _, w := range waiting {
			ends = append(ends, func() { w.end(p.failure) })
		}
		delete(p.barriers, where)
	}
	for key, d := range p.declares {
		ends = append(ends, func() { d.Done(0, p.failure) })
		delete(p.declares, key)
	}
	for _, end := range ends {
		if err := p.loop.guard(end); err != nil {
			p.log.Error("the control plane failed", "reason", err)
		}
	}
}

func (p *Postoffice) tick(now time.Time) {
	if gap := now.Sub(p.ticked); gap > stallTime { // this process stood still, so the scheduler's silence is no evidence
		p.heard = p.heard.Add(gap)
		for i := range p.suspects {
			p.suspects[i].at = p.suspects[i].at.Add(gap)
		}
	}
	p.ticked = now
	if p.failure != nil {
		return
	}
	if p.orphan != nil {
		p.heard = now
		p.tickOrphan(now)
		return
	}
	if p.c.HeartbeatInterval > 0 && !now.Before(p.beat) {
		p.sendHeartbeat(now)
	}
	p.tickProgress(now)
	if silence := now.Sub(p.heard); p.c.beats() && silence > p.c.HeartbeatTimeout {
		p.loseScheduler(now, fmt.Sprintf("it was silent for %v", silence.Round(time.Second)))
	}
	i := slices.IndexFunc(p.suspects, func(o suspicion) bool { return !now.Before(p.deadline(o)) })
	switch {
	case i < 0 || p.failure != nil || p.orphan != nil:
	case p.suspects[i].id == wire.SchedulerID:
		p.loseScheduler(now, p.suspects[i].why)
	case p.outlives():
		p.loseScheduler(now, fmt.Sprintf("it has said nothing of %s, whose connection with this node broke", Name(p.suspects[i].id)))
	default:
		p.lose(p.suspects[i].id, p.suspects[i].why)
	}
}

func (p *Postoffice) due() time.Time {
	if p.failure != nil {
		return time.Time{}
	}
	if p.orphan != nil {
		return p.ticked.Add(lookTime)
	}
	var due time.Time
	if p.c.HeartbeatInterval > 0 {
		due = p.beat
	}
	for _, o := range p.suspects {
		if at := p.deadline(o); due.IsZero() || at.Before(due) {
			due = at
		}
	}
	return due
}

// deadline is when this node, if it has received no verdict about a suspect, decides alone. A cluster that recovers outlives a network that
// is silent for some seconds, in which a node may hear of a death but not of the verdict: if that takes too long, the scheduler is
// lost. A node that outlives its scheduler can still hear the scheduler's last words while it looks for another one.
func (p *Postoffice) deadline(o suspicion) time.Time {
	switch {
	case o.id == wire.SchedulerID && p.outlives():
		return o.at.Add(lookTime)
	case o.id == wire.SchedulerID:
		return o.at.Add(lastWordTime)
	case p.view.Recovers && p.c.beats():
		return o.at.Add(p.c.HeartbeatTimeout + verdictTime)
	}
	return o.at.Add(verdictTime)
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
