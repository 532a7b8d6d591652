package ps

import (
	"sync"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/latch"
	"fptps/gocore/wire"
)

// Customer is a user of an app on this node: it sends requests and receives answers and
// other nodes' requests. A worker may have several customers of one app. Any goroutine
// may use a Customer, but only one at a time may wait in Next.
type Customer struct {
	App, ID int32

	office *Office
	wake   chan struct{} // holds a signal after an event was added
	mu     struct {
		sync.Mutex
		tracker  Tracker
		requests queue
		ended    []Event           // ends of own requests; Next returns them before other nodes' requests
		awaited  map[int32]*waiter // requests whose end is reported by Wait
		unheard  []int32           // of the awaited, those that have ended with a result, in order; some are forgotten
		serve    func(*Message)    // serves requests, one at a time; nil: requests are events
		serving  bool
		failure  error // why requests fail; nil while they may be sent
		closed   bool
	}
}

// waiter lets Wait block until a request ends.
type waiter struct {
	latch.Latch
	result *Result // set before the latch opens
}

// Event is one of: a request of another node, the response to a simple request, the end
// of an own request.
type Event struct {
	Request, Response *Message
	Result            *Result
}

func newCustomer(o *Office, app, id int32) *Customer {
	c := &Customer{App: app, ID: id, office: o, wake: make(chan struct{}, 1)}
	c.mu.awaited = map[int32]*waiter{}
	return c
}

// Next waits at most timeout for an event; false after the timeout or once the customer is closed.
func (c *Customer) Next(timeout time.Duration) (Event, bool) {
	if e, ok := c.poll(); ok {
		return e, true
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		if e, ok := c.poll(); ok {
			return e, true
		}
		select {
		case <-c.wake:
		case <-timer.C:
			return Event{}, false
		}
		if c.isClosed() {
			return Event{}, false
		}
	}
}

// Done returns the buffers of an event to the pool; its values must not be read any more. Calling Done is optional, but
// saves time.
func (c *Customer) Done(e Event) {
	if e.Request != nil {
		c.office.pool.put(e.Request.pooled)
		e.Request.pooled = nil
	}
	if e.Result != nil {
		for _, b := range e.Result.pooled {
			c.office.pool.put(b)
		}
		e.Result.pooled = nil
	}
}

func (c *Customer) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.closed
}

func (c *Customer) poll() (Event, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.mu.ended) > 0 {
		e := c.mu.ended[0]
		c.mu.ended[0] = Event{}
		c.mu.ended = c.mu.ended[1:]
		return e, true
	}
	if m := c.mu.requests.pop(); m != nil {
		return Event{Request: m}, true
	}
	return Event{}, false
}

func (c *Customer) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// accept handles a message to this customer.
func (c *Customer) accept(m *Message) error {
	if m.Request {
		if c.admit(m) {
			c.serveAdmitted(m)
		}
		return nil
	}
	return c.handleAnswer(m)
}

// inlineBytes bounds the requests that are served on the goroutine that received them; serving a longer one would delay
// receiving.
const inlineBytes = 64 << 10

// admit reports whether the caller must serve m now; if not, m was queued or dropped.
func (c *Customer) admit(m *Message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return false
	}
	if c.mu.serve != nil && !c.mu.serving && c.mu.requests.empty() && m.size() <= inlineBytes {
		c.mu.serving = true
		return true
	}
	c.mu.requests.push(m)
	c.wakeUp()
	return false
}

// awaitRequest waits for the next request to serve; nil once the customer is closed.
func (c *Customer) awaitRequest() *Message {
	for {
		m, closed := c.startServing()
		if m != nil || closed {
			return m
		}
		<-c.wake
	}
}

// startServing pops the next request and marks the customer as serving; nil if there is none or another is being served.
func (c *Customer) startServing() (m *Message, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || c.mu.serving {
		return nil, c.mu.closed
	}
	m = c.mu.requests.pop()
	c.mu.serving = m != nil
	return m, false
}

// enqueue queues a request.
func (c *Customer) enqueue(m *Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.requests.push(m)
	c.wakeUp()
}

// serveAdmitted serves a request after admit or startServing has set c.mu.serving.
func (c *Customer) serveAdmitted(m *Message) {
	c.mu.serve(m)
	c.Done(Event{Request: m})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.serving = false
	c.wakeUp()
}

// handleAnswer handles a response.
func (c *Customer) handleAnswer(m *Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.copyToCaller(m)
	result, err := c.mu.tracker.Answer(m)
	if err != nil {
		return err
	}
	if !m.Pull {
		c.office.pool.put(m.pooled)
		m.pooled = nil
	}
	if m.Simple && m.Failure == "" {
		c.mu.ended = append(c.mu.ended, Event{Response: m})
		c.wakeUp()
	}
	if result != nil {
		c.finish(result)
	}
	return nil
}

// copyToCaller copies the values of an answer into the caller's array, if it has one and they are not there yet. mu is
// held.
func (c *Customer) copyToCaller(m *Message) {
	if m.inPlace || !m.Pull || len(m.KVs.Vals) == 0 {
		return
	}
	if place := c.mu.tracker.AnswerBuffer(m.Timestamp, m.Peer, len(m.KVs.Vals), m.KVs.DType, m.KVs.Lens != nil); place != nil {
		copy(place, m.KVs.Vals)
		c.office.pool.put(m.pooled)
		m.KVs.Vals, m.pooled, m.inPlace = place, nil, true
	}
}

// finish reports the end of a request, by Wait or as an event. mu is held.
func (c *Customer) finish(r *Result) {
	e := c.mu.awaited[r.Timestamp]
	if e == nil {
		c.mu.ended = append(c.mu.ended, Event{Result: r})
		c.wakeUp()
		return
	}
	if r.Err != nil || r.KVs.Lens != nil || len(r.KVs.Keys) > 0 && !r.InPlace {
		e.result = r
		c.keep(r.Timestamp)
	} else {
		delete(c.mu.awaited, r.Timestamp)
		c.Done(Event{Result: r})
	}
	e.Open()
}

// maxUnheard bounds the results that are kept for Wait, as python/fptps/ps/app.py does: a program that waits for none of
// its requests must not grow.
const maxUnheard = 1 << 14

// keep notes a result that waits for Forget, and drops the oldest of too many. mu is held.
func (c *Customer) keep(ts int32) {
	c.mu.unheard = append(c.mu.unheard, ts)
	for len(c.mu.unheard) > maxUnheard {
		old := c.mu.unheard[0]
		c.mu.unheard = c.mu.unheard[1:]
		if e := c.mu.awaited[old]; e != nil && e.result != nil {
			delete(c.mu.awaited, old)
			c.Done(Event{Result: e.result})
		}
	}
}

// Wait waits at most timeout for the end of a request that was started with Awaited, and reports whether it has ended. The
// result is nil if the request succeeded without data to read; else it is kept until Forget.
func (c *Customer) Wait(ts int32, timeout time.Duration) (r *Result, done bool) {
	c.mu.Lock()
	e := c.mu.awaited[ts]
	c.mu.Unlock()
	if e == nil {
		return nil, true
	}
	if !e.Wait(timeout) {
		return nil, false
	}
	return e.result, true
}

// Forget drops a result that Wait returned.
func (c *Customer) Forget(r *Result) {
	c.mu.Lock()
	delete(c.mu.awaited, r.Timestamp)
	c.mu.Unlock()
	c.Done(Event{Result: r})
}

// answerBuffer is Tracker.AnswerBuffer under the lock.
func (c *Customer) answerBuffer(ts int32, id, bytes int, d wire.DType, lens bool) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.tracker.AnswerBuffer(ts, id, bytes, d, lens)
}

// failPeer fails the open requests to a node.
func (c *Customer) failPeer(id int, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.mu.tracker.FailPeer(id, why) {
		c.finish(r)
	}
}

// fail fails all open requests, and all later ones.
func (c *Customer) fail(why error) {
	c.mu.Lock()
	c.mu.failure = why
	c.mu.Unlock()
	for _, id := range c.office.group(cluster.AllGroup) {
		c.failPeer(id, why)
	}
}

// Close makes the customer drop later messages, and wakes Next.
func (c *Customer) Close() {
	c.office.forget(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.closed = true
	c.wakeUp()
}

// Completion says how a request's end is reported.
type Completion struct {
	Out     []byte // an array that the values of a pull may be written to until then; Result.InPlace reports whether they were
	Awaited bool   // Wait reports it, not Next
}

// start opens a request to the nodes in asked. d is the dtype of Out.
func (c *Customer) start(pull bool, asked map[int][]uint64, completion Completion, d wire.DType) (int32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.failure != nil {
		return 0, c.mu.failure
	}
	immediate := len(asked) == 0 // no node has to answer: the request ends at once
	if immediate {
		asked = map[int][]uint64{0: nil}
	}
	ts := c.mu.tracker.Start(pull, asked)
	if completion.Awaited {
		c.mu.awaited[ts] = &waiter{}
	}
	if immediate {
		for _, r := range c.mu.tracker.FailPeer(0, nil) {
			c.finish(r)
		}
	} else if completion.Out != nil {
		c.mu.tracker.SetOut(ts, completion.Out, d)
	}
	return ts, nil
}

// send sends a message of an open request; if that fails, so does the request.
func (c *Customer) send(m *Message) {
	if err := c.office.send(m); fault.CodeOf(err) == fault.NodeLost {
		c.failPeer(m.Peer, err)
	} else if err != nil {
		c.failPeer(m.Peer, fault.New(fault.Connect, "request %d could not be sent to %s: %v", m.Timestamp, name(m.Peer), err))
	}
}

// Missing names the nodes that have not answered a request.
func (c *Customer) Missing(ts int32) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, id := range c.mu.tracker.Missing(ts) {
		names = append(names, name(id))
	}
	return names
}

// Fail sends an error as the answer to a request.
func (c *Customer) Fail(to *Message, why string) error {
	answer := answerTo(to)
	answer.Failure = why
	return c.answer(answer)
}

func (c *Customer) answer(m *Message) error {
	if err := c.office.send(m); err != nil {
		return fault.New(fault.Connect, "the answer to request %d could not be sent to %s: %v", m.Timestamp, name(m.Peer), err)
	}
	return nil
}

// answerTo makes an empty answer to a request.
func answerTo(m *Message) *Message {
	return &Message{Peer: m.Peer, App: m.App, Customer: m.Customer, Timestamp: m.Timestamp, Head: m.Head,
		Simple: m.Simple, Push: m.Push, Pull: m.Pull, Priority: m.Priority, PeerDeaths: m.PeerDeaths}
}

func name(id int) string { return wire.NodeName(id) }
