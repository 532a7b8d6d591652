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
	// appTime is how long a message waits for its app to be opened here, as in ps-lite.
	appTime = 5 * time.Second
	// maxEarly and maxEarlyBytes bound such messages.
	maxEarly      = 4096
	maxEarlyBytes = 256 << 20
	// maxLogged bounds the senders whose nonsense is logged, and the memory of them.
	maxLogged = 100
	// maxFailure bounds the text of an error that is sent.
	maxFailure = 16 << 10
)

// Post carries messages: a cluster.Postoffice, or the scheduler's cluster.Runner.
type Post interface {
	View() cluster.View
	Send(id int, m *pspb.Meta, data ...[]byte) error
}

// Office is a node's end of all apps.
type Office struct {
	role    cluster.Role
	log     *slog.Logger
	joined  chan struct{} // closed by Join
	post    Post          // set before joined closes
	lines   lines         // to nodes that are reached over the data plane
	depot   depot
	absence absence
	mu      struct {
		sync.Mutex
		customers map[address]*Customer
		early     []early // for apps that are not open yet, in the order they came
		bytes     int     // of early
		failure   error
		rejected  uint64
		logged    map[int]bool // senders
	}
}

type address struct{ app, customer int32 }

type early struct {
	to    address
	m     *Message
	until time.Time
}

// NewOffice makes the office of a node that is going to join its cluster.
func NewOffice(role cluster.Role, log *slog.Logger) *Office {
	o := &Office{role: role, log: log, joined: make(chan struct{})}
	o.lines.of = map[int]*line{}
	o.mu.customers = map[address]*Customer{}
	o.mu.logged = map[int]bool{}
	o.absence.gone, o.absence.lives = map[int]error{}, map[int]int{}
	return o
}

// Join gives the office its post. Once.
func (o *Office) Join(p Post) {
	o.post = p
	close(o.joined)
}

// hasJoined tells whether there is a post.
func (o *Office) hasJoined() bool {
	select {
	case <-o.joined:
		return true
	default:
		return false
	}
}

// Open makes the customer of an app. On servers and the scheduler an app has one,
// whose id is the app's, as in ps-lite.
func (o *Office) Open(app, customer int32) (*Customer, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := o.at(app, customer)
	if o.mu.customers[at] != nil {
		return nil, fault.New(fault.Value, "app %d has a customer %d already", at.app, at.customer)
	}
	c := newCustomer(o, app, at.customer)
	c.mu.failure = o.mu.failure
	o.mu.customers[at] = c
	o.mu.early = slices.DeleteFunc(o.mu.early, func(e early) bool {
		if e.to != at {
			return false
		}
		o.mu.bytes -= e.m.size()
		c.enqueue(e.m)
		return true
	})
	return c, nil
}

// at is where a message for an app and customer goes on this node.
func (o *Office) at(app, customer int32) address {
	if o.role != cluster.RoleWorker {
		customer = app
	}
	return address{app, customer}
}

func (o *Office) forget(c *Customer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.mu.customers, address{c.App, c.ID})
}

// Deliver takes a message of a node, this one included, that came over ZeroMQ. It never waits.
func (o *Office) Deliver(from cluster.Member, e *van.Envelope) {
	m, err := Parse(from.ID, e.Meta, e.Data)
	o.take(from.ID, m, err)
}

// take hands a message to its customer. With an error it makes no sense; m is then what is known of it, maybe nil.
func (o *Office) take(from int, m *Message, err error) {
	if m != nil {
		m.Life = o.life(from)
	}
	o.mu.Lock()
	if err != nil {
		defer o.mu.Unlock()
		o.reject(from, err.Error())
		if m != nil {
			o.malformed(m, err)
		}
		return
	}
	at := o.at(m.App, m.Customer)
	c := o.mu.customers[at]
	if c == nil {
		o.keep(at, m)
	}
	o.mu.Unlock()
	if c == nil { // what one node sends comes one after the other, so that the lock is not needed for its order
		return
	}
	if err := c.accept(m); err != nil {
		o.Reject(from, err.Error())
	}
}

// malformed answers a request that makes no sense; by an answer that makes none, its
// request ends.
func (o *Office) malformed(m *Message, why error) {
	if m.Request {
		o.refuse(m, why.Error())
	} else if c := o.mu.customers[o.at(m.App, m.Customer)]; c != nil {
		m.Failure = "its answer makes no sense: " + why.Error()
		c.accept(m) // one that nobody has asked for is counted already
	}
}

// keep keeps a request until its app is opened. An answer has none to wait for: who
// has asked is there.
func (o *Office) keep(at address, m *Message) {
	if !m.Request || len(o.mu.early) == maxEarly || o.mu.bytes+m.size() > maxEarlyBytes || o.mu.failure != nil {
		o.unknown(at, m)
		return
	}
	o.mu.early = append(o.mu.early, early{at, m, time.Now().Add(appTime)})
	o.mu.bytes += m.size()
	time.AfterFunc(appTime, func() { o.expire(time.Now()) })
}

// expire gives up the messages whose app has not been opened.
func (o *Office) expire(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.early = slices.DeleteFunc(o.mu.early, func(e early) bool {
		late := !now.Before(e.until)
		if late {
			o.mu.bytes -= e.m.size()
			o.unknown(e.to, e.m)
		}
		return late
	})
}

func (o *Office) unknown(at address, m *Message) {
	why := fmt.Sprintf("there is no app %d here", at.app)
	if o.role == cluster.RoleWorker {
		why = fmt.Sprintf("there is no customer %d of app %d here", at.customer, at.app)
	}
	o.reject(m.Peer, why)
	if m.Request {
		o.refuse(m, why)
	}
}

// refuse answers a request with an error.
func (o *Office) refuse(m *Message, why string) {
	answer := answerTo(m)
	answer.Failure = why
	if err := o.send(answer); err != nil {
		o.log.Warn("an error could not be sent", "to", name(m.Peer), "reason", err)
	}
}

// Reject counts a message that makes no sense, and logs the first of its sender.
func (o *Office) Reject(from int, why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reject(from, why)
}

func (o *Office) reject(from int, why string) {
	o.mu.rejected++
	if !o.mu.logged[from] && len(o.mu.logged) < maxLogged {
		o.mu.logged[from] = true
		o.log.Warn("a message made no sense; more of that sender are counted only", "from", name(from), "reason", why)
	}
}

// Rejected counts the messages of members that made no sense.
func (o *Office) Rejected() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.rejected
}

// Fail ends everything that waits with err, and all that is asked from now on.
func (o *Office) Fail(err error) {
	o.mu.Lock()
	o.mu.failure = err
	all := slices.Collect(maps.Values(o.mu.customers))
	o.mu.Unlock()
	for _, c := range all {
		c.fail(err)
	}
}

// send takes a message to its node, and is through with its values: their done is called, now or later.
func (o *Office) send(m *Message) error {
	defer m.release()
	if !o.hasJoined() {
		return fault.New(fault.Closed, "this node has not joined its cluster yet")
	}
	why, stale := o.reachable(m)
	if stale || why != nil && !m.Request {
		return nil // nobody waits for this answer any more
	}
	if why != nil {
		return why
	}
	if len(m.Failure) > maxFailure {
		m.Failure = m.Failure[:maxFailure] + "..."
	}
	if l := o.lines.get(m.Peer); l != nil {
		return o.transmit(l, m)
	}
	meta, frames := m.Encode()
	if err := bounded(frames); err != nil {
		return err
	}
	return o.post.Send(m.Peer, meta, frames...)
}

// servers is how many servers cut the keys.
func (o *Office) servers() int {
	if !o.hasJoined() {
		return 0
	}
	return len(o.post.View().Servers())
}

// group lists the nodes of a group, or the one of an id.
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

// size is about what m takes in memory.
func (m *Message) size() int {
	return len(m.Body) + len(m.KVs.Vals) + 8*len(m.KVs.Keys) + 4*len(m.KVs.Lens)
}

var _ Post = (*cluster.Postoffice)(nil)
var _ Post = (*cluster.Runner)(nil)
