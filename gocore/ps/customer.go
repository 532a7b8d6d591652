package ps

import (
	"sync"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/latch"
	"fptps/gocore/wire"
)

// Customer is one application's end on this node, and on a worker one of several of
// it: requests leave and answers come through it. Any goroutine may use it; one at a
// time may wait in Next.
type Customer struct {
	App, ID int32

	office *Office
	wake   chan struct{} // holds one: there are events
	mu     struct {
		sync.Mutex
		tracker  Tracker
		requests queue
		ended    []Event           // of own requests, before those of others
		awaited  map[int32]*ending // requests whose end is no event
		serve    func(*Message)    // answers requests, one at a time; nil: they are events
		serving  bool
		failure  error // why nothing is sent any more; nil while all is well
		closed   bool
	}
}

// ending is what a request's end is waited for by.
type ending struct {
	latch.Latch
	result *Result // set before the latch opens
}

// Event is one of: a request of a node, the response to a simple request, the end of
// a request.
type Event struct {
	Request, Response *Message
	Result            *Result
}

func newCustomer(o *Office, app, id int32) *Customer {
	c := &Customer{App: app, ID: id, office: o, wake: make(chan struct{}, 1)}
	c.mu.awaited = map[int32]*ending{}
	return c
}

// Next waits at most timeout for an event; false when there is none, or none any more.
func (c *Customer) Next(timeout time.Duration) (Event, bool) {
	if e, ok := c.take(); ok {
		return e, true
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		if e, ok := c.take(); ok {
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

// Done gives back the memory of an event's values, which nobody may read any more. To leave it out costs time alone.
func (c *Customer) Done(e Event) {
	if e.Request != nil {
		c.office.depot.put(e.Request.lent)
		e.Request.lent = nil
	}
	if e.Result != nil {
		for _, b := range e.Result.lent {
			c.office.depot.put(b)
		}
		e.Result.lent = nil
	}
}

func (c *Customer) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.closed
}

func (c *Customer) take() (Event, bool) {
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

// accept takes a message for this customer.
func (c *Customer) accept(m *Message) error {
	if m.Request {
		if c.admit(m) {
			c.serveNow(m)
		}
		return nil
	}
	return c.answered(m)
}

// nowBytes is the longest request that is served by the goroutine that received it; longer ones would keep it from
// receiving.
const nowBytes = 64 << 10

// admit tells whether the caller is to serve a request, at once; else it waits for its turn.
func (c *Customer) admit(m *Message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return false
	}
	if c.mu.serve != nil && !c.mu.serving && c.mu.requests.empty() && m.size() <= nowBytes {
		c.mu.serving = true
		return true
	}
	c.mu.requests.push(m)
	c.wakeUp()
	return false
}

// turn waits for a request whose turn it is; nil once the customer is closed.
func (c *Customer) turn() *Message {
	for {
		m, over := c.nextTurn()
		if m != nil || over {
			return m
		}
		<-c.wake
	}
}

func (c *Customer) nextTurn() (m *Message, over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || c.mu.serving {
		return nil, c.mu.closed
	}
	m = c.mu.requests.pop()
	c.mu.serving = m != nil
	return m, false
}

// enqueue has a request wait for its turn.
func (c *Customer) enqueue(m *Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.requests.push(m)
	c.wakeUp()
}

// serveNow serves a request; the caller's turn was noted.
func (c *Customer) serveNow(m *Message) {
	c.mu.serve(m)
	c.Done(Event{Request: m})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.serving = false
	c.wakeUp()
}

// answered takes a response.
func (c *Customer) answered(m *Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bring(m)
	result, err := c.mu.tracker.Answer(m)
	if err != nil {
		return err
	}
	if !m.Pull {
		c.office.depot.put(m.lent)
		m.lent = nil
	}
	if m.Simple && m.Failure == "" {
		c.mu.ended = append(c.mu.ended, Event{Response: m})
		c.wakeUp()
	}
	if result != nil {
		c.over(result)
	}
	return nil
}

// bring copies the values of an answer to where they are waited for, unless they are there. mu is held.
func (c *Customer) bring(m *Message) {
	if m.landed || !m.Pull || len(m.KVs.Vals) == 0 {
		return
	}
	if place := c.mu.tracker.Land(m.Timestamp, m.Peer, len(m.KVs.Vals), m.KVs.DType, m.KVs.Lens != nil); place != nil {
		copy(place, m.KVs.Vals)
		c.office.depot.put(m.lent)
		m.KVs.Vals, m.lent, m.landed = place, nil, true
	}
}

// over tells of the end of a request. mu is held.
func (c *Customer) over(r *Result) {
	e := c.mu.awaited[r.Timestamp]
	if e == nil {
		c.mu.ended = append(c.mu.ended, Event{Result: r})
		c.wakeUp()
		return
	}
	if r.Err != nil || r.KVs.Lens != nil || len(r.KVs.Keys) > 0 && !r.Landed {
		e.result = r
	} else {
		delete(c.mu.awaited, r.Timestamp)
		c.Done(Event{Result: r})
	}
	e.Open()
}

// Wait waits at most timeout for the end of a request that is Awaited. done tells whether it has ended, as one has that
// is not known any more; the result, of which there is none where there is nothing to tell, stays until Forget.
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

// Forget drops the result of a request that was waited for.
func (c *Customer) Forget(r *Result) {
	c.mu.Lock()
	delete(c.mu.awaited, r.Timestamp)
	c.mu.Unlock()
	c.Done(Event{Result: r})
}

// land gives the place in an array of the caller's for the answer of a node; nil where it has none.
func (c *Customer) land(ts int32, id, bytes int, d wire.DType, lens bool) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.tracker.Land(ts, id, bytes, d, lens)
}

// lose ends what is asked of a node.
func (c *Customer) lose(id int, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.mu.tracker.Lose(id, why) {
		c.over(r)
	}
}

// fail ends all that is asked of anyone, and all that is asked from now on.
func (c *Customer) fail(why error) {
	c.mu.Lock()
	c.mu.failure = why
	c.mu.Unlock()
	for _, id := range c.office.group(cluster.AllGroup) {
		c.lose(id, why)
	}
}

// Close has later messages dropped, and wakes Next.
func (c *Customer) Close() {
	c.office.forget(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.closed = true
	c.wakeUp()
}

// Ending is what is to happen at the end of a request.
type Ending struct {
	Out     []byte // an array that may be filled with the values of a pull until then; its Result tells whether it was
	Awaited bool   // it is told by Wait, not by Next
}

// start opens a request of nodes, unless nothing is sent any more. d is of Out's elements.
func (c *Customer) start(pull bool, asked map[int][]uint64, end Ending, d wire.DType) (int32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.failure != nil {
		return 0, c.mu.failure
	}
	nobody := len(asked) == 0 // has to answer: it ends at once
	if nobody {
		asked = map[int][]uint64{0: nil}
	}
	ts := c.mu.tracker.Start(pull, asked)
	if end.Awaited {
		c.mu.awaited[ts] = &ending{}
	}
	if nobody {
		for _, r := range c.mu.tracker.Lose(0, nil) {
			c.over(r)
		}
	} else if end.Out != nil {
		c.mu.tracker.Fill(ts, end.Out, d)
	}
	return ts, nil
}

// send takes a message of request ts to its node; where that fails, the request does.
func (c *Customer) send(m *Message) {
	if err := c.office.send(m); fault.CodeOf(err) == fault.NodeLost {
		c.lose(m.Peer, err)
	} else if err != nil {
		c.lose(m.Peer, fault.New(fault.Connect, "request %d could not be sent to %s: %v", m.Timestamp, name(m.Peer), err))
	}
}

// Missing names who has not answered a request.
func (c *Customer) Missing(ts int32) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, id := range c.mu.tracker.Missing(ts) {
		names = append(names, name(id))
	}
	return names
}

// Fail answers a request with an error.
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

// answerTo is an empty answer to a request.
func answerTo(m *Message) *Message {
	return &Message{Peer: m.Peer, App: m.App, Customer: m.Customer, Timestamp: m.Timestamp, Head: m.Head,
		Simple: m.Simple, Push: m.Push, Pull: m.Pull, Priority: m.Priority, Life: m.Life}
}

func name(id int) string { return wire.NodeName(id) }
