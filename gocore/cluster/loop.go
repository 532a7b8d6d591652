package cluster

import (
	"errors"
	"runtime/debug"
	"sync"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/van"
)

// handler is what a loop drives; all calls come from the loop's goroutine.
type handler interface {
	message(now time.Time, e *van.Envelope)
	tick(now time.Time)
	due() time.Time  // when tick has something to do before its usual second is over; zero: nothing
	ended(err error) // the last call; nil when close was asked for
}

// loop is the one goroutine on which a Postoffice or a Runner lives, and the one
// that receives for it. State that it alone touches needs no lock.
type loop struct {
	van            van.Van
	inbox          chan *van.Envelope
	wake           chan struct{} // holds one: calls are waiting
	quit           chan struct{}
	once           sync.Once
	runs, receives sync.WaitGroup // its goroutines
	mu             struct {
		sync.Mutex
		calls  []func()
		broken error // why Receive ended
		over   bool  // no more calls are taken
	}
}

// newLoop starts to receive; run starts the rest.
func newLoop(v van.Van) *loop {
	l := &loop{van: v, inbox: make(chan *van.Envelope), wake: make(chan struct{}, 1), quit: make(chan struct{})}
	l.receives.Add(1)
	go l.receive()
	return l
}

// receive hands every message to the loop. It ends with the van.
func (l *loop) receive() {
	defer l.receives.Done()
	defer func() {
		if r := recover(); r != nil {
			l.breakDown(fault.New(fault.Internal, "control plane: panic: %v\n%s", r, debug.Stack()))
		}
	}()
	for {
		e, err := l.van.Receive()
		if err != nil {
			if !errors.Is(err, van.ErrClosed) {
				l.breakDown(fault.New(fault.Internal, "control plane: receiving failed: %v", err))
			}
			return
		}
		select {
		case l.inbox <- e:
		case <-l.quit:
		}
	}
}

func (l *loop) breakDown(err error) {
	l.mu.Lock()
	l.mu.broken = err
	l.mu.Unlock()
	l.stop()
}

// run drives h until close, or until something breaks.
func (l *loop) run(h handler) {
	l.runs.Add(1)
	go func() {
		defer l.runs.Done()
		err := l.guard(func() { l.turn(h) })
		if err == nil {
			l.mu.Lock()
			err = l.mu.broken
			l.mu.Unlock()
		}
		l.stop()
		l.guard(func() { h.ended(err) })
		l.drain()
	}()
}

// guard turns a panic of f into an error.
func (l *loop) guard(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fault.New(fault.Internal, "control plane: panic: %v\n%s", r, debug.Stack())
		}
	}()
	f()
	return nil
}

func (l *loop) turn(h handler) {
	timer := time.NewTimer(tickTime)
	defer timer.Stop()
	for next := time.Now().Add(tickTime); ; { // however many messages come meanwhile
		wait := time.Until(next)
		if due := h.due(); !due.IsZero() {
			wait = min(wait, time.Until(due))
		}
		timer.Reset(wait)
		select {
		case <-l.quit:
			return
		case <-timer.C:
			now := time.Now()
			next = now.Add(tickTime)
			h.tick(now)
		case e := <-l.inbox:
			h.message(time.Now(), e)
		case <-l.wake:
			for call := l.next(false); call != nil; call = l.next(false) {
				call()
			}
		}
	}
}

// do runs f on the loop's goroutine, later. It never blocks. False: the loop has
// ended, and f will not run.
func (l *loop) do(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.over {
		return false
	}
	l.mu.calls = append(l.mu.calls, f)
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return true
}

// next gives the oldest call that has not run, nil when there is none; if last is
// set, then none is taken any more.
func (l *loop) next(last bool) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.calls) == 0 {
		l.mu.calls, l.mu.over = nil, l.mu.over || last
		return nil
	}
	call := l.mu.calls[0]
	l.mu.calls[0] = nil
	l.mu.calls = l.mu.calls[1:]
	return call
}

// drain runs the calls that are left when the loop has ended, then takes no more.
func (l *loop) drain() {
	for call := l.next(true); call != nil; call = l.next(true) {
		l.guard(call)
	}
}

func (l *loop) stop() { l.once.Do(func() { close(l.quit) }) }

// close ends the loop and the van. On return nothing runs any more.
func (l *loop) close() {
	l.stop()
	l.runs.Wait()
	l.van.Close()
	l.receives.Wait()
}
