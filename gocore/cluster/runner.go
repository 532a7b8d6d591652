package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/van"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// Runner gives a Scheduler its van, its clock and its goroutine.
type Runner struct {
	c      Config
	events Events
	log    *slog.Logger
	port   int
	loop   *loop
	joined chan struct{}
	done   chan struct{}
	once   sync.Once // of done
	mail   *mail     // set before joined closes
	err    error     // set before done closes

	// Touched by the loop's goroutine alone.
	scheduler *Scheduler
	taken     *van.Envelope       // the message that the scheduler was given last
	comes     map[int]func(error) // barriers that this node's program waits in, by group
}

// Serve starts the scheduler of a cluster on a van, which is the Runner's from then on.
func Serve(v van.Van, c Config, e Events) (*Runner, error) {
	r := &Runner{c: c, events: e, log: c.log(), joined: make(chan struct{}), done: make(chan struct{}), comes: map[int]func(error){}}
	if c.Workers < 1 || c.Workers > wire.MaxWorkers || c.Servers < 0 || c.Servers > wire.MaxWorkers {
		v.Close()
		return nil, fault.New(fault.Config, "scheduler: DMLC_NUM_WORKER=%d must be 1 to %d, DMLC_NUM_SERVER=%d 0 to %d",
			c.Workers, wire.MaxWorkers, c.Servers, wire.MaxWorkers)
	}
	port, err := v.Bind(bindHost(c.SchedulerHost), c.SchedulerPort)
	if err != nil {
		v.Close()
		return nil, fault.New(fault.Connect, "scheduler: cannot listen at port %d: %v. Is another scheduler running there? Choose another DMLC_PS_ROOT_PORT",
			c.SchedulerPort, err)
	}
	r.port, r.c.SchedulerPort = port, port
	var token [16]byte
	rand.Read(token[:])
	r.scheduler = NewScheduler(r.c, token)
	r.loop = newLoop(v)
	r.loop.run(r)
	return r, nil
}

// Port is where the scheduler listens.
func (r *Runner) Port() int { return r.port }

// Joined closes when every node is there and View is known.
func (r *Runner) Joined() <-chan struct{} { return r.joined }

// Barrier calls done when all nodes of a group have come, and this one's program now
// has too; with an error when the cluster ends before. One of a group at a time, once
// Joined has closed. done is called on the runner's goroutine and must not block.
func (r *Runner) Barrier(group int, done func(error)) {
	start := func() {
		switch {
		case group < 1 || group > AllGroup || !inGroup(RoleScheduler, group) || r.comes[group] != nil:
			done(fault.New(fault.Value, "the scheduler cannot wait for a barrier of group %d: it is not in it, or waits there already", group))
		case r.over():
			done(r.whyOver())
		default:
			r.comes[group] = done
			r.perform(r.scheduler.Arrive(group))
		}
	}
	if !r.loop.do(start) {
		done(r.whyOver())
	}
}

// over tells whether the cluster has ended.
func (r *Runner) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// whyOver is what a barrier ends with after the end.
func (r *Runner) whyOver() error {
	if r.over() && r.err != nil {
		return r.err
	}
	return fault.New(fault.Closed, "the cluster has ended")
}

// Send takes an application's message to a node, itself included, once Joined has
// closed. It does not wait, and has no use of data any more when it returns.
func (r *Runner) Send(id int, m *pspb.Meta, data ...[]byte) error {
	if id != wire.SchedulerID {
		return r.mail.send(id, m, data...)
	}
	e := toSelf(id, m, data)
	if !r.loop.do(func() { r.events.message(r.View().Me(), e) }) {
		return van.ErrClosed
	}
	return nil
}

// View is the cluster, once Joined has closed.
func (r *Runner) View() View { return *r.mail.view.Load() }

// Done closes when the cluster has ended; Err tells how. The last messages are
// still to leave: that is Close's.
func (r *Runner) Done() <-chan struct{} { return r.done }

// Err is nil when the cluster ended in good order; valid once Done has closed.
func (r *Runner) Err() error { return r.err }

// Gone says that a node's process has ended, or left without waiting for the
// others: for one, its data connection to the scheduler did. After the end in good
// order it means nothing.
func (r *Runner) Gone(id int, why string) {
	r.loop.do(func() { r.perform(r.scheduler.Gone(time.Now(), id, why)) })
}

// Close ends the scheduler, when the last messages have left or after a bound.
// Idempotent; not to be called from an event.
func (r *Runner) Close() { r.loop.close() }

func (r *Runner) message(now time.Time, e *van.Envelope) {
	r.taken = e
	r.perform(r.scheduler.Step(now, e.From, e.Meta))
}

func (r *Runner) tick(now time.Time) { r.perform(r.scheduler.Tick(now)) }

func (r *Runner) due() time.Time { return r.scheduler.Due() }

func (r *Runner) ended(err error) {
	counts := r.scheduler.Counts()
	if dropped := r.loop.van.Stats().Rejected + counts.Strays; dropped+counts.Refused > 0 {
		r.log.Warn("scheduler: has turned strangers away", "messages", dropped, "joiners", counts.Refused)
	}
	if err == nil {
		r.finish(fault.New(fault.Closed, "scheduler: closed before the cluster had ended"))
		return
	}
	r.finish(err)
	r.log.Error("scheduler: broke", "reason", err)
	r.events.failed(err)
}

// perform does what the machine wants done. A member that can be sent nothing is gone.
func (r *Runner) perform(actions []Action) {
	for len(actions) > 0 {
		action := actions[0]
		actions = actions[1:]
		err := r.act(action)
		if err == nil {
			continue
		}
		r.log.Warn("scheduler: a message was not sent", "reason", err)
		if send, ok := action.(Send); ok && errors.Is(err, van.ErrFull) {
			actions = append(actions, r.scheduler.Gone(time.Now(), send.ID, "it reads no messages: "+err.Error())...)
		}
	}
}

func (r *Runner) act(action Action) error {
	v := r.loop.van
	switch a := action.(type) {
	case Connect:
		if a.PSLite {
			return v.ConnectPSLite(a.ID, a.Host, a.Port)
		}
		return v.Connect(a.ID, a.Host, a.Port)
	case Disconnect:
		v.Disconnect(a.ID, a.Now)
	case Identify:
		v.Identify(a.ID)
	case Send:
		return v.Send(a.ID, a.Meta)
	case Joined:
		r.mail = newMail(v, a.View, r.scheduler.ids()...)
		r.log.Info("scheduler: everyone is here", "workers", r.c.Workers, "servers", r.c.Servers)
		close(r.joined)
	case Passed:
		done := r.comes[a.Group]
		delete(r.comes, a.Group)
		done(nil)
	case Deliver:
		r.events.message(a.From, r.taken)
	case Vacated:
		r.log.Warn("scheduler: lost "+Name(a.ID)+"; its place is kept for another", "reason", a.Why, "for", r.c.RecoveryTimeout)
		r.mail.view.Store(&a.View)
		r.events.vacated(a.ID, a.Why)
	case Recovered:
		r.log.Warn("scheduler: another node is " + Name(a.ID) + " now")
		r.mail.view.Store(&a.View)
		r.events.recovered(a.View.Member(a.ID))
	case Waited:
		r.log.Log(context.Background(), a.Level, "scheduler: waiting", "for", a.What, "missing", a.Missing)
		r.events.waiting(a.What, a.Missing)
	case Failed:
		r.log.Error("scheduler: lost "+Name(a.ID), "reason", a.Why)
		r.finish(lostError(a.ID, a.Why))
		r.events.lost(a.ID, a.Why)
	case Finished:
		r.log.Info("scheduler: the cluster has ended in good order")
		r.finish(nil)
	case Note:
		r.log.Warn("scheduler: " + a.Text)
	}
	return nil
}

func (r *Runner) finish(err error) {
	r.once.Do(func() {
		r.err = err
		close(r.done)
		for group, done := range r.comes {
			delete(r.comes, group)
			done(r.whyOver())
		}
	})
}

// lostError is what everything that waits ends with when a node is dead.
func lostError(id int, why string) error {
	return fault.New(fault.NodeLost, "%s was lost: %s. The cluster cannot go on without it", Name(id), why)
}
