package ps

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/van"
	"fptps/gocore/wire/pspb"
)

const (
	// appTime is how long a message waits for its app to be opened on this node, as in ps-lite.
	appTime = 5 * time.Second
	// maxEarly and maxEarlyBytes bound the waiting messages.
	maxEarly      = 4096
	maxEarlyBytes = 256 << 20
	// maxLogged bounds the number of senders whose malformed messages are logged.
	maxLogged = 100
	// maxFailure bounds the length of an error text in an answer.
	maxFailure = 16 << 10
)

// Post sends messages: a cluster.Postoffice, or the scheduler's cluster.Runner.
type Post interface {
	View() cluster.View
	Send(id int, m *pspb.Meta, data ...[]byte) error
}

// Office dispatches the messages of all apps on a node.
type Office struct {
	role     cluster.Role
	log      *slog.Logger
	failed   func(err error)
	joined   chan struct{} // closed by Join
	post     Post          // set before joined closes
	links    links         // to the peers on the data plane
	pool     pool
	liveness liveness
	mu       struct {
		sync.Mutex
		customers map[customerAddress]*Customer
		early     []earlyMessage // for apps that are not open yet, in the order of arrival
		bytes     int            // of early
		failure   error
		rejected  uint64
		logged    map[int]bool // senders
	}
}

type customerAddress struct{ app, customer int32 }

type earlyMessage struct {
	to    customerAddress
	m     *Message
	until time.Time
}

// NewOffice makes the office of a node before it has joined its cluster. failed is called with a panic of one of its
// goroutines.
func NewOffice(role cluster.Role, log *slog.Logger, failed func(err error)) *Office {
	o := &Office{role: role, log: log, failed: failed, joined: make(chan struct{})}
	o.links.byPeer = map[int]*link{}
	o.mu.customers = map[customerAddress]*Customer{}
	o.mu.logged = map[int]bool{}
	o.liveness.dead, o.liveness.deaths = map[int]error{}, map[int]int{}
	return o
}

// Join sets the post. It is called once.
func (o *Office) Join(p Post) {
	o.post = p
	close(o.joined)
}

// hasJoined reports whether Join was called.
func (o *Office) hasJoined() bool {
	select {
	case <-o.joined:
		return true
	default:
		return false
	}
}

// Open makes a customer of an app. On servers and the scheduler an app has a single
// customer with the app's own id, as in ps-lite.
func (o *Office) Open(app, customer int32) (*Customer, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := o.addressOf(app, customer)
	if o.mu.customers[at] != nil {
		return nil, fault.New(fault.Value, "app %d has a customer %d already", at.app, at.customer)
	}
	c := newCustomer(o, app, at.customer)
	c.mu.failure = o.mu.failure
	o.mu.customers[at] = c
	o.mu.early = slices.DeleteFunc(o.mu.early, func(e earlyMessage) bool {
		if e.to != at {
			return false
		}
		o.mu.bytes -= e.m.size()
		c.enqueue(e.m)
		return true
	})
	return c, nil
}

// addressOf is the local customer that a message to (app, customer) is for.
func (o *Office) addressOf(app, customer int32) customerAddress {
	if o.role != cluster.RoleWorker {
		customer = app
	}
	return customerAddress{app, customer}
}

func (o *Office) forget(c *Customer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.mu.customers, customerAddress{c.App, c.ID})
}

// Deliver handles a message that arrived over ZeroMQ, from another node or this one. It does not block.
func (o *Office) Deliver(from cluster.Member, e *van.Envelope) {
	m, err := Parse(from.ID, e.Meta, e.Data)
	o.dispatch(from.ID, m, err)
}

// dispatch passes a message to its customer. A non-nil err says why the message is malformed; m is then the readable part
// of it, or nil.
func (o *Office) dispatch(from int, m *Message, err error) {
	if m != nil {
		m.PeerDeaths = o.deathsOf(from)
	}
	o.mu.Lock()
	if err != nil {
		defer o.mu.Unlock()
		o.reject(from, err.Error())
		if m != nil {
			o.handleMalformed(m, err)
		}
		return
	}
	at := o.addressOf(m.App, m.Customer)
	c := o.mu.customers[at]
	if c == nil {
		o.keepEarly(at, m)
	}
	o.mu.Unlock()
	if c == nil { // else deliver without the lock: each peer's messages arrive on one goroutine, which keeps their order
		return
	}
	if err := c.accept(m); err != nil {
		o.Reject(from, err.Error())
	}
}

// handleMalformed answers a malformed request with an error. A malformed answer fails its
// request.
func (o *Office) handleMalformed(m *Message, why error) {
	if m.Request {
		o.answerFailure(m, why.Error())
	} else if c := o.mu.customers[o.addressOf(m.App, m.Customer)]; c != nil {
		m.Failure = "its answer is malformed: " + why.Error()
		c.accept(m) // its error would count the message twice
	}
}

// keepEarly keeps a request until its app is opened. An answer without a customer is
// rejected at once: the customer that asked was open, and has closed since.
func (o *Office) keepEarly(at customerAddress, m *Message) {
	if !m.Request || len(o.mu.early) == maxEarly || o.mu.bytes+m.size() > maxEarlyBytes || o.mu.failure != nil {
		o.rejectUnknown(at, m)
		return
	}
	o.mu.early = append(o.mu.early, earlyMessage{at, m, time.Now().Add(appTime)})
	o.mu.bytes += m.size()
	time.AfterFunc(appTime, func() { o.guard(func() { o.expireEarly(time.Now()) }) })
}

// guard runs f on a goroutine of the office's own.
func (o *Office) guard(f func()) {
	if err := fault.Catch(func() error { f(); return nil }); err != nil {
		o.failed(err)
	}
}

// expireEarly rejects messages whose app was not opened within appTime.
func (o *Office) expireEarly(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.early = slices.DeleteFunc(o.mu.early, func(e earlyMessage) bool {
		late := !now.Before(e.until)
		if late {
			o.mu.bytes -= e.m.size()
			o.rejectUnknown(e.to, e.m)
		}
		return late
	})
}

func (o *Office) rejectUnknown(at customerAddress, m *Message) {
	why := fmt.Sprintf("there is no app %d here", at.app)
	if o.role == cluster.RoleWorker {
		why = fmt.Sprintf("there is no customer %d of app %d here", at.customer, at.app)
	}
	o.reject(m.Peer, why)
	if m.Request {
		o.answerFailure(m, why)
	}
}

// answerFailure sends an error as the answer to a request.
func (o *Office) answerFailure(m *Message, why string) {
	answer := answerTo(m)
	answer.Failure = why
	if err := o.send(answer); err != nil {
		o.log.Warn("an error could not be sent", "to", name(m.Peer), "reason", err)
	}
}

// Reject counts a malformed or misdirected message, and logs the first of each sender.
func (o *Office) Reject(from int, why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reject(from, why)
}

func (o *Office) reject(from int, why string) {
	o.mu.rejected++
	if !o.mu.logged[from] && len(o.mu.logged) < maxLogged {
		o.mu.logged[from] = true
		o.log.Warn("a message was rejected; further ones from this sender are counted, not logged", "from", name(from), "reason", why)
	}
}

// Rejected is the number of rejected messages.
func (o *Office) Rejected() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.rejected
}

// Fail fails all open requests and all later ones with err.
func (o *Office) Fail(err error) {
	o.mu.Lock()
	o.mu.failure = err
	all := slices.Collect(maps.Values(o.mu.customers))
	o.mu.Unlock()
	for _, c := range all {
		c.fail(err)
	}
}

// send sends a message to its peer. It calls the message's done once its values are no longer read, now or later.
func (o *Office) send(m *Message) error {
	defer m.release()
	if !o.hasJoined() {
		return fault.New(fault.Closed, "this node has not joined its cluster yet")
	}
	why, stale := o.reachable(m)
	if stale || why != nil && !m.Request {
		return nil // the node that asked is dead
	}
	if why != nil {
		return why
	}
	if len(m.Failure) > maxFailure {
		m.Failure = m.Failure[:maxFailure] + "..."
	}
	if l := o.links.get(m.Peer); l != nil {
		return o.transmit(l, m)
	}
	meta, frames := m.Encode()
	if err := checkSizes(frames); err != nil {
		return err
	}
	return o.post.Send(m.Peer, meta, frames...)
}

// servers is the number of servers that the keys are divided among.
func (o *Office) servers() int {
	if !o.hasJoined() {
		return 0
	}
	return len(o.post.View().Servers())
}

// group lists the ids of a group, or the single id to.
func (o *Office) group(to int) []int {
	bits := map[cluster.Role]int{cluster.RoleScheduler: cluster.SchedulerGroup, cluster.RoleServer: cluster.ServerGroup, cluster.RoleWorker: cluster.WorkerGroup}
	if !o.hasJoined() {
		return nil
	}
	var ids []int
	for _, m := range o.post.View().Members {
		if m.ID == to || to <= cluster.AllGroup && bits[m.Role]&to != 0 {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// size is about the memory of m, in bytes.
func (m *Message) size() int {
	return len(m.Body) + len(m.KVs.Vals) + 8*len(m.KVs.Keys) + 4*len(m.KVs.Lens)
}

var _ Post = (*cluster.Postoffice)(nil)
var _ Post = (*cluster.Runner)(nil)
