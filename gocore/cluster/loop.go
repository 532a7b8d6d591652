package cluster

import (
	"errors"
	"runtime/debug"
	"sync"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/van"
)

// handler has the callbacks of a loop, which makes all calls on its goroutine.
type handler interface {
	message(now time.Time, e *van.Envelope)
	tick(now time.Time)
	due() time.Time  // when tick must be called earlier than after the usual second; zero: not needed
	ended(err error) // the last call; nil after close
}

// loop is the goroutine of a Postoffice or a Runner, with a second one that receives for it.
// State that only the loop's goroutine uses needs no lock.
type loop struct {
	van            van.Van
	inbox          chan *van.Envelope
	wake           chan struct{} // holds a signal if calls are queued
	quit           chan struct{}
	once           sync.Once
	runs, receives sync.WaitGroup // its goroutines
	mu             struct {
		sync.Mutex
		calls  []func()
		broken error // error of Receive
		over   bool  // no more calls are accepted
	}
}

// newLoop starts the receiver; run starts the loop.
func newLoop(v van.Van) *loop {
	l := &loop{van: v, inbox: make(chan *van.Envelope), wake: make(chan struct{}, 1), quit: make(chan struct{})}
	l.receives.Add(1)
	go l.receive()
	return l
}

// receive passes every message to the loop. It ends when the van closes.
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

// run runs the loop with h until close or a failure.
func (l *loop) run(h handler) {
	l.runs.Add(1)
	go func() {
		defer l.runs.Done()
		err := l.guard(func() { l.handleAll(h) })
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

// guard converts a panic of f to an error.
func (l *loop) guard(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fault.New(fault.Internal, "control plane: panic: %v\n%s", r, debug.Stack())
		}
	}()
	f()
	return nil
}

func (l *loop) handleAll(h handler) {
	timer := time.NewTimer(tickTime)
	defer timer.Stop()
	for next := time.Now().Add(tickTime); ; { // also while messages arrive without a pause
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

// do queues f to run on the loop's goroutine. It never blocks. It returns false if the loop
// has ended; f will not run then.
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

// next returns the oldest call that has not run, nil if there is none. After a nil with last
// set, no further calls are accepted.
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

// drain runs the remaining calls after the loop has ended, then accepts no more.
func (l *loop) drain() {
	for call := l.next(true); call != nil; call = l.next(true) {
		l.guard(call)
	}
}

func (l *loop) stop() { l.once.Do(func() { close(l.quit) }) }

// close ends the loop and the van. When it returns, both goroutines have ended.
func (l *loop) close() {
	l.stop()
	l.runs.Wait()
	l.van.Close()
	l.receives.Wait()
}
