package cluster

import (
	"slices"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// waiter is a customer that waits in a barrier.
type waiter struct {
	group   int
	request *pspb.Meta
	done    func(error) // nil once it has been called
	leaves  error       // the error for done once the scheduler has removed it; nil: it has not asked to withdraw
}

// end calls done, once.
func (w *waiter) end(err error) {
	if done := w.done; done != nil {
		w.done = nil
		done(err)
	}
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

// pslite reports whether the scheduler is a program of ps-lite.
func (p *Postoffice) pslite() bool { return p.view.Member(wire.SchedulerID).PSLite() }

// Barrier enters a barrier of a group, and calls done when all nodes of the group have
// entered it. The first barrier of AllGroup is the start of the cluster, the second its end.
// Each customer passes its barriers of one group one after the other. done is called on the
// postoffice's goroutine and must not block; after a failure or Close, with its error.
//
// withdraw removes this customer from the barrier again: done then gets withdraw's error,
// unless the barrier is passed first. withdraw does not wait.
func (p *Postoffice) Barrier(customer, group int, done func(error)) (withdraw func(error)) {
	return p.meet(customer, &waiter{group: group, done: done, request: barrierMessage(int32(group), 0, int32(customer), true)})
}

func (p *Postoffice) meet(customer int, w *waiter) (withdraw func(error)) {
	if !p.loop.do(func() { p.enter(customer, w) }) {
		w.end(p.failure)
	}
	return func(err error) { p.loop.do(func() { p.withdraw(customer, w, err) }) }
}

func (p *Postoffice) enter(customer int, w *waiter) {
	switch {
	case p.failure != nil:
		w.end(p.failure)
	case w.group < 1 || w.group > AllGroup || !inGroup(p.c.Role, w.group):
		w.end(fault.New(fault.Value, "a %v is not in group %d: it cannot wait for its barrier", p.c.Role, w.group))
	case w.group != AllGroup && p.closedOf(w.group) != 0:
		w.end(p.closedError("a barrier", fault.About{}, p.closedOf(w.group)))
	default:
		where := p.meeting(w.group, customer)
		waiting := p.barriers[where]
		if len(waiting) == 1 && waiting[0].done == nil && waiting[0].group == w.group { // see withdraw
			p.barriers[where] = []*waiter{w}
			return
		}
		p.barriers[where] = append(waiting, w)
		if len(waiting) == 0 {
			p.send(w.request)
		}
	}
}

// withdraw removes w from its queue. If the scheduler already knows of the barrier, the
// scheduler decides: either all have entered, or this node has left. A scheduler of ps-lite
// cannot withdraw: the next barrier of the queue is then the same barrier.
func (p *Postoffice) withdraw(customer int, w *waiter, err error) {
	where := p.meeting(w.group, customer)
	i := slices.Index(p.barriers[where], w)
	switch {
	case i < 0 || w.leaves != nil:
	case i > 0:
		p.barriers[where] = slices.Delete(p.barriers[where], i, i+1)
		w.end(err)
	case p.pslite():
		w.end(err)
	default:
		w.leaves = err
		p.send(withdrawMessage(w.group, customer))
	}
}

func withdrawMessage(group, customer int) *pspb.Meta {
	m := barrierMessage(int32(group), 0, int32(customer), true)
	m.Own = &pspb.Meta_Withdraw{Withdraw: &pspb.Withdraw{}}
	return m
}

// withdrawn handles the answer that the scheduler has removed this node from a barrier.
func (p *Postoffice) withdrawn(group, customer int) {
	where := p.meeting(group, customer)
	if waiting := p.barriers[where]; len(waiting) > 0 && waiting[0].leaves != nil {
		p.leave(where, waiting[0].leaves)
	}
}

// passed ends the barrier of a group, for all customers of the process that have entered
// it.
func (p *Postoffice) passed(group, customer int) {
	for where := range p.barriers {
		if p.pslite() || where.group == group && (where.customer == customer || group == AllGroup || p.view.Me().Customers > 1) {
			p.leave(where, nil)
		}
	}
}

// leave ends a queue's first barrier with err, nil if it is passed, and enters the next.
func (p *Postoffice) leave(where meeting, err error) {
	waiting := p.barriers[where]
	if len(waiting) == 0 {
		return
	}
	p.barriers[where] = waiting[1:]
	if len(waiting) > 1 {
		p.send(waiting[1].request)
	}
	p.endStall("barrier")
	waiting[0].end(err)
}
