package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/van"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// Runner runs a Scheduler with a van, a clock and a goroutine.
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

	// Used by the loop's goroutine alone.
	scheduler *Scheduler
	current   *van.Envelope       // the message that the scheduler handled last
	barriers  map[int]func(error) // barriers that this node's program waits in, by group
}

// Serve starts the scheduler of a cluster on a van, which the Runner owns from then on.
func Serve(v van.Van, c Config, e Events) (*Runner, error) {
	r := &Runner{c: c, events: e, log: c.log(), joined: make(chan struct{}), done: make(chan struct{}), barriers: map[int]func(error){}}
	if c.Workers < 1 || c.Workers > wire.MaxWorkers || c.Servers < 0 || c.Servers > wire.MaxWorkers {
		v.Close()
		return nil, fault.New(fault.Config, "scheduler: DMLC_NUM_WORKER=%d must be 1 to %d, DMLC_NUM_SERVER=%d 0 to %d",
			c.Workers, wire.MaxWorkers, c.Servers, wire.MaxWorkers)
	}
	if c.MinWorkers > c.Workers {
		v.Close()
		return nil, fault.New(fault.Config, "scheduler: FPTPS_MIN_WORKERS=%d, but DMLC_NUM_WORKER=%d", c.MinWorkers, c.Workers)
	}
	if c.MaxWorkers > 0 && c.MaxWorkers < c.Workers {
		v.Close()
		return nil, fault.New(fault.Config, "scheduler: FPTPS_MAX_WORKERS=%d, but DMLC_NUM_WORKER=%d", c.MaxWorkers, c.Workers)
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

// Joined is closed when all nodes have joined and View is known.
func (r *Runner) Joined() <-chan struct{} { return r.joined }

// Barrier enters a barrier of a group for this node's own program, and calls done when all
// nodes of the group have entered it, or with an error if the cluster ends before. It is
// called once Joined has closed, for one barrier of a group at a time. done is called on the
// runner's goroutine and must not block.
func (r *Runner) Barrier(group int, done func(error)) {
	start := func() {
		switch {
		case group < 1 || group > AllGroup || !inGroup(RoleScheduler, group) || r.barriers[group] != nil:
			done(fault.New(fault.Value, "the scheduler cannot wait for a barrier of group %d: it is not in that group, or waits there already", group))
		case r.over():
			done(r.endError())
		default:
			r.barriers[group] = done
			r.perform(r.scheduler.Arrive(group))
		}
	}
	if !r.loop.do(start) {
		done(r.endError())
	}
}

// over reports whether the cluster has ended.
func (r *Runner) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// endError is the error of a barrier after the end of the cluster.
func (r *Runner) endError() error {
	if r.over() && r.err != nil {
		return r.err
	}
	return fault.New(fault.Closed, "the cluster has ended")
}

// Send sends a message of an app to a node, itself included, once Joined is closed. It does
// not block, and does not use data after it returns.
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

// View describes the cluster, once Joined is closed.
func (r *Runner) View() View { return *r.mail.view.Load() }

// Done closes when the cluster has ended; Err is then the reason. Close sends the last
// messages.
func (r *Runner) Done() <-chan struct{} { return r.done }

// Err is nil when the cluster ended in good order; valid once Done has closed.
func (r *Runner) Err() error { return r.err }

// Gone reports that a process has ended, or has left without waiting for the others, for
// example because its data connection with the scheduler has ended. After an orderly end it
// has no effect.
func (r *Runner) Gone(id int, incarnation uint64, why string) {
	r.loop.do(func() { r.perform(r.scheduler.Gone(time.Now(), id, incarnation, why)) })
}

// Unreachable is Gone for a process that may still live: it hears that it was given up.
func (r *Runner) Unreachable(id int, incarnation uint64, why string) {
	r.loop.do(func() { r.perform(r.scheduler.Unreachable(time.Now(), id, incarnation, why)) })
}

// Close ends the scheduler when its last messages are sent, or after a timeout. It is
// idempotent, and must not be called from an event.
func (r *Runner) Close() { r.loop.close() }

// Status returns the state of the cluster, also after its end.
func (r *Runner) Status() Status {
	found := make(chan Status, 1)
	if !r.loop.do(func() { defer close(found); found <- r.scheduler.Status(time.Now()) }) {
		return r.scheduler.Status(time.Now()) // the loop has ended, so that nothing changes it any more
	}
	return <-found
}

// Rejected counts the messages of strangers that were dropped.
func (r *Runner) Rejected() uint64 { return r.loop.van.Stats().Rejected }

func (r *Runner) message(now time.Time, e *van.Envelope) {
	r.current = e
	r.perform(r.scheduler.Step(now, e.From, e.Host, e.Meta))
}

func (r *Runner) tick(now time.Time) { r.perform(r.scheduler.Tick(now)) }

func (r *Runner) due() time.Time { return r.scheduler.Due() }

func (r *Runner) ended(err error) {
	counts := r.scheduler.Counts()
	if dropped := r.loop.van.Stats().Rejected + counts.Strays; dropped+counts.Refused > 0 {
		r.log.Warn("scheduler: refused strangers", "messages", dropped, "joiners", counts.Refused)
	}
	if err == nil {
		r.finish(fault.New(fault.Closed, "scheduler: closed before the cluster had ended"))
		return
	}
	r.finish(err)
	r.log.Error("scheduler: broke", "reason", err)
	r.events.failed(err)
}

// perform performs the scheduler's actions. A member that cannot receive messages is reported as gone.
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
			actions = append(actions, r.scheduler.Gone(time.Now(), send.ID, r.scheduler.incarnation(send.ID), "it reads no messages: "+err.Error())...)
		}
	}
}

func (r *Runner) act(action Action) error {
	v := r.loop.van
	switch a := action.(type) {
	case Connect:
		return v.Connect(a.ID, a.Host, a.Port)
	case Disconnect:
		v.Disconnect(a.ID, a.Now)
	case Identify:
		v.Identify(a.ID)
	case Send:
		return v.Send(a.ID, a.Meta)
	case Answer:
		if r.current.Answer != nil {
			r.current.Answer(a.Meta)
		}
	case Asked:
		r.events.asked(a.Member, a.Missing)
	case Joined:
		r.mail = newMail(v, a.View, r.scheduler.ids()...)
		r.log.Info("scheduler: all nodes have joined", "workers", r.c.Workers, "servers", r.c.Servers)
		close(r.joined)
	case Passed:
		done := r.barriers[a.Group]
		delete(r.barriers, a.Group)
		done(nil)
	case Deliver:
		r.events.message(a.From, r.current)
	case Vacated:
		r.log.Warn("scheduler: lost "+Name(a.ID)+"; its place is kept for a successor", "reason", a.Why, "for", r.c.RecoveryTimeout)
		r.mail.view.Store(&a.View)
		r.events.vacated(a.ID, a.Why)
	case Buried:
		r.log.Warn("scheduler: "+Loss(a.ID, a.Why), "reason", a.Why)
		r.mail.change(a.View, a.ID)
		r.events.buried(Burial{ID: a.ID, Why: a.Why})
	case Backed:
		r.log.Info("scheduler: " + Name(a.Backup) + " has a replica of all that " + Name(a.ID) + " stores")
	case Recovered:
		r.log.Warn("scheduler: a successor has taken the place of " + Name(a.ID))
		r.mail.view.Store(&a.View)
		r.events.recovered(a.View.Member(a.ID))
	case Came:
		r.log.Info("scheduler: " + Name(a.ID) + " has come: it takes part when the others have their connections with it, a worker when they admit it")
		r.mail.change(a.View, a.ID)
		r.events.came(a.View.Member(a.ID))
	case Admitted:
		r.log.Warn("scheduler: " + Name(a.ID) + " takes part from now on")
		r.mail.change(a.View, 0)
		r.events.admitted(a.View.Member(a.ID), 0, 0)
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
	case Planned:
		r.log.Info(fmt.Sprintf("scheduler: plan %d of the summing: %s", a.Number, a.Why))
	case Kept:
		r.log.Info("scheduler: the first plan of the summing stays: the links are as equal as it takes them to be, or not known")
	case Note:
		r.log.Warn("scheduler: " + a.Text)
	}
	return nil
}

func (r *Runner) finish(err error) {
	r.once.Do(func() {
		r.err = err
		close(r.done)
		for group, done := range r.barriers {
			delete(r.barriers, group)
			done(r.endError())
		}
	})
}

// lostError is the error of all waits after the death of a node.
func lostError(id int, why string) error {
	return fault.New(fault.NodeLost, "%s was lost: %s. The cluster cannot go on without it", Name(id), why).With(wire.AboutNode(id))
}
