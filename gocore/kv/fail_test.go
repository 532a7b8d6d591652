package kv

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// TestClash: workers that ask for different operations get no sum but an error,
// its pulls too, and the next round ends well.
func TestClash(t *testing.T) {
	for _, clashing := range [][]uint32{{0, 1, 2}, {1}, {2}} {
		d := newDesk(t, 0).ready(1)
		array := make([]byte, size)
		push, pull := d.push(1, array), d.pull(1, make([]byte, size))
		next := d.pushPull(1, make([]byte, size), make([]byte, size))
		d.letGo()
		for p := range uint32(3) {
			if slices.Contains(clashing, p) {
				raw := uint32(wire.PacketLen(size, p))
				d.arrive(wire.Header{Kind: wire.Sum, Flags: wire.FlagClash, Tensor: 1, Round: 1, Packet: p, RawLen: raw}, nil)
			} else {
				d.sums(1, 1, p)
			}
		}
		d.ended(push, fault.Mismatch)
		d.ended(pull, fault.Mismatch)
		d.letGo()
		d.sums(1, 2)
		d.ended(next, "")
	}
	d := newDesk(t, 0).ready(1)
	d.push(1, make([]byte, size))
	d.letGo()
	for p := range uint32(3) {
		raw := uint32(wire.PacketLen(size, p))
		d.arrive(wire.Header{Kind: wire.Sum, Flags: wire.FlagClash, Tensor: 1, Round: 1, Packet: p, RawLen: raw}, nil)
	}
	d.ended(d.pull(1, make([]byte, size)), fault.Mismatch) // afterwards
}

// TestDeclareError: the scheduler says that the workers disagree, and the key is free.
func TestDeclareError(t *testing.T) {
	d := newDesk(t, 0)
	first := d.must(d.Init(1, wire.Uint8, wire.Sync, make([]byte, size)))
	d.declare(1, fault.New(fault.Mismatch, "sizes differ"))
	d.ended(first, fault.Mismatch)
	other, err := d.Pull(1, wire.Uint8, make([]byte, size))
	d.refused(fault.Key, other, err)
	if len(d.sent) != 0 {
		t.Error("a refused declaration was followed by packets")
	}
	values := bytes.Repeat([]byte{3}, size)
	second := d.must(d.Init(1, wire.Uint8, wire.Sync, values))
	d.declare(1, nil)
	if got := d.sent[0].Data; !bytes.Equal(got, bytes.Repeat([]byte{3}, size)) {
		t.Error("init does not send the values that it was called with")
	}
	d.letGo()
	d.initialised(1)
	d.ended(second, "")
}

// TestDeclaredAtOnce: the answer may come inside the call.
func TestDeclaredAtOnce(t *testing.T) {
	d := newDesk(t, 1)
	d.Declare = each(func(_ uint64, _ wire.Tensor, done func(uint32, error)) { done(1, nil) })
	ticket := d.must(d.Init(1, wire.Uint8, wire.Sync, make([]byte, size)))
	d.letGo()
	d.initialised(1)
	d.ended(ticket, "")
	d.Declare = each(func(_ uint64, _ wire.Tensor, done func(uint32, error)) {
		done(0, fault.New(fault.Mismatch, "no"))
	})
	d.ended(d.must(d.Init(2, wire.Uint8, wire.Sync, make([]byte, size))), fault.Mismatch)
}

// TestFailEndsEverything: every open ticket ends with the error, the arrays are free, and every later operation is
// refused with the same error.
func TestFailEndsEverything(t *testing.T) {
	for _, released := range []bool{true, false} { // before Fail, or by the late end of a Send
		d := newDesk(t, 0).ready(1, 2, 3)
		array := func() []byte { return make([]byte, size) }
		a := array()
		waiting := map[string]*Ticket{
			"init not declared": d.must(d.Init(4, wire.Uint8, wire.Sync, array())),
			"init declared":     d.must(d.Init(5, wire.Uint8, wire.Sync, array())),
			"active push":       d.push(1, a),
			"pull in place":     d.pull(1, a),
			"pull of active":    d.pull(1, array()),
			"queued push":       d.push(1, array()),
			"queued skip":       d.must(d.Skip(1)),
			"pull of queued":    d.pull(1, array()),
			"active push_pull":  d.pushPull(2, array(), array()),
			"queued push_pull":  d.pushPull(2, array(), array()),
			"active skip":       d.must(d.Skip(3)),
		}
		undeclared, declared := d.declares[0], d.declares[1]
		d.declares = nil
		declared(5, nil)
		d.sums(1, 1, 1)
		if released {
			d.letGo()
		}
		lost := fault.New(fault.NodeLost, "worker 1 died")
		d.Fail(lost)
		d.Fail(errors.New("a later error, which is not told"))
		d.letGo()
		for name, ticket := range waiting {
			if done, err := ticket.Wait(0); !done || err != error(lost) {
				t.Errorf("%s: done %v, error %v", name, done, err)
			}
		}
		if len(d.mu.flights.list) != 0 {
			t.Errorf("in flight at the end: %v", d.mu.flights.list)
		}
		undeclared(4, nil) // the scheduler's answer was under way
		undeclared(4, errors.New("or its refusal"))
		if len(d.sent) != 0 {
			t.Error("a worker that has failed sends")
		}
		d.sums(1, 1, 0, 2)
		d.sums(1, 2)
		for name, do := range map[string]func(*desk) (*Ticket, error){
			"init": func(d *desk) (*Ticket, error) { return d.Init(8, wire.Uint8, wire.Sync, a) }, "push": pushOf(1, a), "pull": pullTo(3, a),
			"push_pull": pushPullOf(2, a, a), "skip": func(d *desk) (*Ticket, error) { return d.Skip(1) },
			"info": func(d *desk) (*Ticket, error) {
				_, err := d.TensorInfo(1)
				return nil, err
			},
		} {
			if ticket, err := do(d); ticket != nil || err != error(lost) {
				t.Errorf("%s afterwards: ticket %v, error %v", name, ticket, err)
			}
		}
		if d.Tickets.mu.open != 0 {
			t.Errorf("%d tickets are open at the end", d.Tickets.mu.open)
		}
	}
}

// TestFailSparesWhatIsWhole: a push whose sum is complete ends well, even if the
// transport releases its array later.
func TestFailSparesWhatIsWhole(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	push := d.push(1, make([]byte, size))
	d.sums(1, 1)
	d.underWay(push)
	d.Fail(fault.New(fault.NodeLost, "worker 1 died"))
	d.underWay(push)
	d.letGo()
	d.ended(push, "")
}

// TestSendAfterFail: an operation that had begun when Fail came hands its packets to
// a transport that is closed, which releases them at once.
func TestSendAfterFail(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	d.Lanes[0] = sender(func(_ uint32, m transport.Outgoing) {
		d.Fail(fault.New(fault.NodeLost, "worker 1 died"))
		m.Owner.Release()
	})
	d.ended(d.push(1, make([]byte, size)), fault.NodeLost)
}

// TestReleaseWhileSumsArrive is for the race detector: the send loop releases an
// array while the receive loop takes a sum that is none.
func TestReleaseWhileSumsArrive(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	for round := range uint64(50) {
		push := d.push(1, make([]byte, size))
		released := make(chan bool)
		go func() {
			d.letGo()
			close(released)
		}()
		for p := range uint32(3) {
			d.arrive(wire.Header{
				Kind: wire.Sum, Flags: wire.FlagClash, Tensor: 1, Round: round + 1, Packet: p,
				RawLen: uint32(wire.PacketLen(size, p)),
			}, nil)
		}
		<-released
		d.ended(push, fault.Mismatch)
	}
}

// TestReleaseAndSumAtOnce: the last release has been counted but does not have the
// lock yet when the last sum ends the operation: it ends once.
func TestReleaseAndSumAtOnce(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	push := d.push(1, make([]byte, size))
	d.sums(1, 1, 0, 1)
	o := d.mu.byKey[1].active
	o.queued.Add(-1) // Release, up to the lock
	d.sums(1, 1, 2)
	d.ended(push, "")
	o.queued.Add(1)
	d.letGo() // Release, from the lock on
	if n := d.Tickets.mu.open; n != 0 {
		t.Errorf("%d tickets are open: one has ended twice", n)
	}
}

func TestExplain(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	pending := d.must(d.Init(2, wire.Uint8, wire.Sync, make([]byte, size)))
	d.explains(pending, "key 2 waits until every worker has declared it")
	d.Waiting("key 2", []string{"worker 1", "worker 3"})
	d.Waiting("barrier", []string{"worker 2"})
	d.explains(pending, "key 2 waits until every worker has declared it; missing: worker 1, worker 3")
	if got := append(d.WaitingFor("barrier"), d.WaitingFor("another barrier")...); !slices.Equal(got, []string{"worker 2"}) {
		t.Errorf("the barrier waits for %q", got)
	}
	d.declare(2, nil)
	d.explains(pending, "key 2 round 0: the sums of 0 of 3 packets are here")

	first, pull := d.push(1, make([]byte, size)), d.pull(1, make([]byte, size))
	next := d.push(1, make([]byte, size))
	d.sums(1, 1, 2, 1)
	for _, ticket := range []*Ticket{first, pull} {
		d.explains(ticket, "key 1 round 1: the sums of 2 of 3 packets are here")
	}
	d.explains(next, "waits for the operation before it: key 1 round 1: the sums of 2 of 3 packets are here")
	d.sums(1, 1, 0)
	for _, ticket := range []*Ticket{first, pull} {
		d.explains(ticket, "key 1: the sum is here, the last bytes are being sent")
	}
	d.explains(next, "key 1 round 2: the sums of 0 of 3 packets are here")
	d.letGo()
	d.explains(first, "")
}

// TestPanicFreesTheLock: after a panic in the middle of a change no thread waits for
// the worker's lock, and Fail still ends the open operations.
func TestPanicFreesTheLock(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	push := d.push(1, make([]byte, size))
	d.letGo()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		d.Worker.mu.byID[1].active.pulls[0].memory = nil
		d.arrive(wire.Header{Kind: wire.Sum, Tensor: 1, Round: 1, Packet: 1, RawLen: wire.PacketBytes}, nil)
	}()
	if !d.Worker.mu.TryLock() {
		t.Fatal("the lock is held")
	}
	d.Worker.mu.Unlock()
	d.Fail(fault.New(fault.Internal, "broken"))
	d.ended(push, fault.Internal)
	_, err := d.Pull(1, wire.Uint8, make([]byte, size))
	d.refused(fault.Internal, nil, err)
}
