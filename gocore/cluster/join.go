package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/van"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// Join joins the cluster, and waits until all nodes have joined. The Postoffice owns the van
// from then on; after an error the van is closed.
func Join(ctx context.Context, v van.Van, c Config, e Events) (*Postoffice, error) {
	a, err := newApplicant(v, c)
	if err != nil {
		v.Close()
		return nil, err
	}
	l := newLoop(v)
	view, err := a.wait(ctx, l)
	if err != nil {
		v.Disconnect(wire.SchedulerID, true) // no message is queued
		l.close()
		return nil, err
	}
	p := newPostoffice(a.c, e, l, view, a.known)
	p.customers = a.asked
	l.run(p)
	return p, nil
}

// applicant is this node before it has an id.
type applicant struct {
	c       Config
	me      Member
	asked   []int // customers
	van     van.Van
	start   time.Time
	heard   bool     // a scheduler of fptps has answered over the present connection
	made    int      // connections to the scheduler over which it was asked; the first ask waits for the first of them
	missing []string // the missing nodes, as the scheduler last reported
	logged  time.Time
	known   *pspb.Known // of the decisions before this node has joined; nil: the cluster ends with its scheduler
}

// newApplicant binds the van and sends the first ADD_NODE.
func newApplicant(v van.Van, c Config) (*applicant, error) {
	if c.Host == "" {
		host, err := LocalAddress(c.SchedulerHost)
		if err != nil {
			return nil, err
		}
		c.Host = host
	}
	port, err := v.Bind(bindHost(c.Host), c.Port)
	if err != nil {
		return nil, fault.New(fault.Connect, "%v: cannot listen at port %d: %v. Choose another PORT, or none for any free one", c.Role, c.Port, err)
	}
	now := time.Now()
	a := &applicant{c: c, van: v, start: now, logged: now, made: 1, me: Member{
		Role: c.Role, Host: c.Host, Port: port, DataPort: c.DataPort,
		Incarnation: c.Incarnation, Share: c.Share, Place: c.Place, LinkRate: c.LinkRate, Protocol: Protocol, Classic: c.PSLite,
	}}
	if _, err := memberOf(nodeOf(a.me)); err != nil {
		return nil, fault.New(fault.Config, "%v: %v: check DMLC_NODE_HOST and FPTPS_SHARE", c.Role, err)
	}
	if err := v.ConnectCounted(wire.SchedulerID, c.SchedulerHost, c.SchedulerPort); err != nil {
		return nil, fault.New(fault.Connect, "%v: the scheduler's address %s: %v. Check DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT", c.Role, a.where(), err)
	}
	return a, a.ask(c.Customer)
}

func (a *applicant) where() string { return fmt.Sprintf("%s:%d", a.c.SchedulerHost, a.c.SchedulerPort) }

// ask sends an ADD_NODE for each customer.
func (a *applicant) ask(customers ...int) error {
	for _, customer := range customers {
		me := a.me
		me.Customer = customer
		if err := a.van.Send(wire.SchedulerID, addNode(a.c, me)); err != nil {
			return fault.New(fault.Connect, "%v: asking the scheduler at %s: %v", a.c.Role, a.where(), err)
		}
		if !slices.Contains(a.asked, customer) {
			a.asked = append(a.asked, customer)
		}
	}
	return nil
}

// wait waits for the list of all nodes.
func (a *applicant) wait(ctx context.Context, l *loop) (View, error) {
	ticker := time.NewTicker(tickTime)
	defer ticker.Stop()
	for {
		select {
		case e := <-l.inbox:
			if view, err := a.step(e); err != nil || view.Self != 0 {
				return view, err
			}
		case now := <-ticker.C:
			// A scheduler of fptps must be asked again: that keeps this node's place. One of
			// ps-lite takes every ADD_NODE for another node, but nodes with tensors cannot
			// join it anyway.
			if a.connectedAnew() || a.heard || !a.c.PSLite {
				if err := a.ask(a.asked...); err != nil {
					return View{}, err
				}
			}
			if now.Sub(a.logged) >= noticeTime {
				a.logged = now
				a.c.log().Log(ctx, joinLevel(now.Sub(a.start)), "waiting to join the cluster",
					"scheduler", a.where(), "answered", a.heard, "missing", a.missing)
			}
		case customer := <-a.c.Customers:
			if err := a.ask(customer); err != nil {
				return View{}, err
			}
		case <-ctx.Done():
			return View{}, a.tooLate(ctx.Err())
		case <-l.quit:
			return View{}, fault.New(fault.Internal, "%v: the control plane broke while joining", a.c.Role)
		}
	}
}

// connectedAnew reports whether the connection to the scheduler was made anew since the last
// call. The scheduler that has read what was sent before, one of an earlier cluster at this
// address, has ended then, and the one there now has not been asked.
func (a *applicant) connectedAnew() bool {
	made := a.van.Connections(wire.SchedulerID)
	if made <= a.made {
		return false
	}
	a.made, a.heard = made, false
	return true
}

// step handles a message. If the error is nil and the view has a Self, the node has joined.
// Only the scheduler knows the incarnation, so messages of others are ignored.
func (a *applicant) step(e *van.Envelope) (View, error) {
	switch own := e.Meta.GetOwn().(type) {
	case *pspb.Meta_Refused:
		if own.Refused.GetIncarnation() == a.me.Incarnation {
			return View{}, fault.New(fault.Connect, "%v: the scheduler at %s refused this node: %s", a.c.Role, a.where(), clip(own.Refused.GetReason()))
		}
		return View{}, nil
	case *pspb.Meta_Waiting:
		if own.Waiting.GetIncarnation() == a.me.Incarnation {
			a.heard, a.missing = true, own.Waiting.GetMissing()
		}
		return View{}, nil
	}
	if e.Meta.GetControl().GetCmd() != pspb.AddNode || e.From != wire.SchedulerID {
		return View{}, nil
	}
	view, err := viewOf(e.Meta, a.me)
	if err != nil {
		a.c.log().Warn("dropped a list of nodes that makes no sense", "reason", err)
		return View{}, nil
	}
	if protocol := view.Member(wire.SchedulerID).Protocol; protocol != Protocol && !(protocol == 0 && a.c.PSLite) {
		return View{}, fault.New(fault.Connect, "%v: the scheduler at %s speaks version %d of fptps's protocol (0: it is a ps-lite program), this node version %d: start one with `fptps scheduler` of the same version",
			a.c.Role, a.where(), protocol, Protocol)
	}
	a.known = e.Meta.GetKnown()
	a.van.Identify(view.Self)
	if err := a.van.Connect(wire.SchedulerID, a.c.SchedulerHost, a.c.SchedulerPort); err != nil {
		return View{}, fault.New(fault.Connect, "%v: the scheduler at %s: %v", a.c.Role, a.where(), err)
	}
	return view, nil
}

// tooLate describes what the node was waiting for at the timeout.
func (a *applicant) tooLate(why error) error {
	waited := seconds(time.Since(a.start))
	switch {
	case !errors.Is(why, context.DeadlineExceeded):
		return fault.New(fault.Closed, "%v: closed while it waited to join the cluster at %s", a.c.Role, a.where())
	case a.heard:
		return fault.New(fault.Timeout, "%v: the cluster at %s was not complete within %s: %s missing. Start them, or check DMLC_NUM_WORKER and DMLC_NUM_SERVER",
			a.c.Role, a.where(), waited, strings.Join(a.missing, ", ")).With(fault.About{Missing: a.missing})
	}
	return fault.New(fault.Connect, "%v: no scheduler answered at %s within %s: start one with `fptps scheduler`, or check DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT (it answers to %s:%d: check DMLC_NODE_HOST if it runs)",
		a.c.Role, a.where(), waited, a.me.Host, a.me.Port)
}

// seconds formats a duration as "60 s".
func seconds(d time.Duration) string { return fmt.Sprintf("%.3g s", d.Seconds()) }
