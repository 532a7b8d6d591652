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

// Join asks the scheduler to let this node in, and waits until the whole cluster is
// there. The van is the Postoffice's from then on; after an error it is closed.
func Join(ctx context.Context, v van.Van, c Config, e Events) (*Postoffice, error) {
	a, err := newApplicant(v, c)
	if err != nil {
		v.Close()
		return nil, err
	}
	l := newLoop(v)
	view, err := a.wait(ctx, l)
	if err != nil {
		v.Disconnect(wire.SchedulerID, true) // nothing is left to say
		l.close()
		return nil, err
	}
	p := newPostoffice(a.c, e, l, view)
	p.customers = a.asked
	l.run(p)
	return p, nil
}

// applicant is a node that has no id yet.
type applicant struct {
	c       Config
	me      Member
	asked   []int // customers
	van     van.Van
	start   time.Time
	heard   bool     // a scheduler of fptps's has answered
	missing []string // what the cluster lacks, as it said last
	told    time.Time
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
	a := &applicant{c: c, van: v, start: now, told: now, me: Member{
		Role: c.Role, Host: c.Host, Port: port, DataPort: c.DataPort,
		Incarnation: c.Incarnation, Share: c.Share, Place: c.Place, LinkRate: c.LinkRate, Protocol: Protocol, Classic: c.PSLite,
	}}
	if _, err := memberOf(nodeOf(a.me)); err != nil {
		return nil, fault.New(fault.Config, "%v: %v: check DMLC_NODE_HOST and FPTPS_SHARE", c.Role, err)
	}
	if err := v.Connect(wire.SchedulerID, c.SchedulerHost, c.SchedulerPort); err != nil {
		return nil, fault.New(fault.Connect, "%v: the scheduler's address %s: %v. Check DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT", c.Role, a.where(), err)
	}
	return a, a.ask(c.Customer)
}

func (a *applicant) where() string { return fmt.Sprintf("%s:%d", a.c.SchedulerHost, a.c.SchedulerPort) }

// ask asks for a place for each of the customers.
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
	if a.c.JoinTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.c.JoinTimeout)
		defer cancel()
	}
	ticker := time.NewTicker(tickTime)
	defer ticker.Stop()
	for {
		select {
		case e := <-l.inbox:
			if view, err := a.step(e); err != nil || view.Self != 0 {
				return view, err
			}
		case now := <-ticker.C:
			// A scheduler of fptps's wants to be asked again: that keeps this node's
			// place. One of ps-lite's would take every ADD_NODE for another node.
			if a.heard {
				if err := a.ask(a.asked...); err != nil {
					return View{}, err
				}
			}
			if now.Sub(a.told) >= noticeTime {
				a.told = now
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

// step takes a message. The view of a nil error has a Self when the node is in.
// Only who was asked knows the incarnation, so nobody else's word counts.
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
	a.van.Identify(view.Self)
	connect := a.van.Connect
	if view.Member(wire.SchedulerID).PSLite() {
		connect = a.van.ConnectPSLite
	}
	if err := connect(wire.SchedulerID, a.c.SchedulerHost, a.c.SchedulerPort); err != nil {
		return View{}, fault.New(fault.Connect, "%v: the scheduler at %s: %v", a.c.Role, a.where(), err)
	}
	return view, nil
}

// tooLate says what the node has waited for in vain.
func (a *applicant) tooLate(why error) error {
	waited := seconds(time.Since(a.start))
	switch {
	case !errors.Is(why, context.DeadlineExceeded):
		return fault.New(fault.Closed, "%v: closed while it waited to join the cluster at %s", a.c.Role, a.where())
	case a.heard:
		return fault.New(fault.Timeout, "%v: the cluster at %s was not complete within %s: %s missing. Start them, or check DMLC_NUM_WORKER and DMLC_NUM_SERVER",
			a.c.Role, a.where(), waited, strings.Join(a.missing, ", "))
	}
	return fault.New(fault.Connect, "%v: no scheduler answered at %s within %s: start one with `fptps scheduler`, or check DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT (it answers to %s:%d: check DMLC_NODE_HOST if it runs)",
		a.c.Role, a.where(), waited, a.me.Host, a.me.Port)
}

// seconds says "60 s".
func seconds(d time.Duration) string { return fmt.Sprintf("%.3g s", d.Seconds()) }
