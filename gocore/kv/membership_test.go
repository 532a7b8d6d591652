package kv

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// complete is what the scheduler says: so many rounds of each tensor with an id up to 1 have ended on some worker.
func ended(rounds uint64) (complete wire.Rounds) {
	complete.Add(0)
	complete.Add(rounds)
	return complete
}

// die is the death of worker 1, whose packets node 8 sums, as all others'.
func (d *desk) die() {
	d.Freeze(11)
	d.Bury(Death{Node: 11})
}

func (d *desk) settle(rounds uint64) {
	d.t.Helper()
	if err := d.Settle(ended(rounds)); err != nil {
		d.t.Fatal(err)
	}
}

// contributions counts the packets of key 1 that were sent in an epoch.
func (d *desk) contributions(epoch uint16) (packets int) {
	for _, p := range d.sent {
		if p.Header.Kind == wire.Contrib && p.Header.Epoch == epoch {
			packets += (len(p.Data) + wire.PacketBytes - 1) / wire.PacketBytes
		}
	}
	return packets
}

// A round whose sums have come to no worker is repeated; the contribution is whole, although the sum goes into its array.
func TestARoundIsRepeated(t *testing.T) {
	d := recovering(t).ready(0, 1)
	array := bytes.Repeat([]byte{7}, size)
	ticket := d.pushPull(1, array, array)
	d.sums(1, 1, 0, 2)
	d.letGo()
	d.die()
	d.sums(1, 1, 1) // the last one, during the freeze
	complete, _ := d.Complete()
	if got, _ := complete.Of(1); got != 1 {
		t.Errorf("%d rounds have ended", got)
	}
	d.underWay(ticket)
	d.explains(ticket, "key 1: after the death of a worker, until all nodes have heard of it, no round ends")
	d.settle(1)
	d.underWay(ticket)
	if n := d.contributions(1); n != 3 {
		t.Errorf("%d packets are sent again", n)
	}
	for _, p := range d.sent {
		if p.Header.Kind == wire.Contrib && !bytes.Equal(p.Data, array[:len(p.Data)]) || bytes.Contains(p.Data, []byte{0}) {
			t.Error("a contribution is no more what it was")
		}
	}
	d.sums(1, 1, 1) // of before
	d.epoch = 1
	d.sums(1, 1, 0, 2)
	d.underWay(ticket)
	d.sums(1, 1, 1)
	d.letGo()
	d.ended(ticket, "")
	d.holds(array, 1, 1)
	if ticket.Epoch() != 1 {
		t.Errorf("epoch %d", ticket.Epoch())
	}
}

// A round that has ended on another worker stands: the sums that are here count, and the others are waited for.
func TestARoundStands(t *testing.T) {
	d := recovering(t).ready(1)
	array := bytes.Repeat([]byte{7}, size)
	ticket := d.pushPull(1, array, array)
	d.sums(1, 1, 0)
	d.letGo()
	d.die()
	d.sums(1, 1, 2)
	d.settle(2)
	d.underWay(ticket)
	if n := d.contributions(0); n != 1 { // of the one whose sum is not here
		t.Errorf("%d packets are sent again", n)
	}
	d.sums(1, 1, 1)
	d.letGo()
	d.ended(ticket, "")
	d.holds(array, 1, 1)
	if ticket.Epoch() != 0 {
		t.Errorf("epoch %d", ticket.Epoch())
	}
	next := d.push(1, array)
	if n := d.contributions(1); n != 3 {
		t.Errorf("%d packets of the next round", n)
	}
	d.epoch = 1
	d.sums(1, 2)
	d.letGo()
	d.ended(next, "")
}

// All sums came during the freeze, and the round stands.
func TestARoundThatStandsEnds(t *testing.T) {
	d := recovering(t).ready(1)
	array := bytes.Repeat([]byte{7}, size)
	ticket := d.push(1, array)
	d.letGo()
	d.die()
	d.sums(1, 1)
	d.underWay(ticket)
	d.settle(2)
	d.letGo()
	d.ended(ticket, "")
	out := make([]byte, size)
	d.ended(d.pull(1, out), "")
	d.holds(out, 1, 1)
}

// A worker that had closed, and then died, takes part in no round that others would have to wait for.
func TestAClosedWorkerDies(t *testing.T) {
	d := recovering(t).ready(0, 1)
	if err := d.Closed(11, ended(0)); err != nil {
		t.Fatal(err)
	}
	array := make([]byte, size)
	ticket, err := d.Push(1, wire.Uint8, array, wire.OpSum, 0)
	d.refused(fault.Mismatch, ticket, err)
	d.die()
	d.settle(1)
	d.push(1, array)
}

// No round begins during a freeze.
func TestNoRoundBeginsInAFreeze(t *testing.T) {
	d := recovering(t).ready(1)
	d.die()
	ticket := d.push(1, make([]byte, size))
	if len(d.sent) != 0 {
		t.Errorf("%d runs were sent", len(d.sent))
	}
	d.explains(ticket, "key 1: after the death of a worker, until all nodes have heard of it, no round ends")
	d.Waiting(wire.Deaths, []string{"server 1"})
	d.explains(ticket, "key 1: after the death of a worker, until all nodes have heard of it, no round ends; missing: server 1")
	d.settle(1)
	if n := d.contributions(1); n != 3 {
		t.Errorf("%d packets of the round", n)
	}
	d.epoch = 1
	d.sums(1, 1)
	d.letGo()
	d.ended(ticket, "")
}

// A node that was not ready yet hears of a death by Bury alone. The next death freezes it as any other.
func TestADeathBeforeTheWorkerWasThere(t *testing.T) {
	d := recovering(t).ready(1)
	d.Bury(Death{Node: 11, Settles: true})
	d.settle(1)
	d.sent = nil
	d.Freeze(13)
	d.push(1, make([]byte, size))
	if len(d.sent) != 0 {
		t.Errorf("%d runs were sent in a freeze", len(d.sent))
	}
}

// A clash of a round that is repeated is forgotten.
func TestARepeatedRoundHasNoClash(t *testing.T) {
	d := recovering(t).ready(1)
	ticket := d.push(1, make([]byte, size))
	d.arrive(wire.Header{Kind: wire.Sum, Flags: wire.FlagClash, Tensor: 1, Packet: 1, Round: 1, RawLen: wire.PacketBytes}, nil)
	d.letGo()
	d.die()
	d.settle(1)
	d.epoch = 1
	d.sums(1, 1)
	d.letGo()
	d.ended(ticket, "")
}

// After the death of rank 0 the next one's values are the initial ones, and it sets the optimiser.
func TestTheNextLeads(t *testing.T) {
	d := newDesk(t, 1)
	d.Recovers, d.Aggregators = true, []uint32{8, 10}
	d.must(d.Init(1, wire.Uint8, wire.Sync, bytes.Repeat([]byte{7}, size)))
	d.declare(1, nil)
	if n := d.contributions(0); n != 0 || d.leads() {
		t.Errorf("%d packets, while rank 0 lives", n)
	}
	d.Freeze(9)
	d.Bury(Death{Node: 9})
	d.settle(0)
	if n := d.contributions(1); n != 3 || !d.leads() {
		t.Errorf("%d packets, after its death", n)
	}
	if got := d.Present(-1); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("%v are present", got)
	}
}

// Where the scheduler does not say what becomes of a round, that is an error.
func TestSettlementWithoutARound(t *testing.T) {
	d := recovering(t).ready(1)
	d.die()
	if err := d.Settle(wire.Rounds{}); fault.CodeOf(err) != fault.Internal {
		t.Errorf("error %v", err)
	}
}

// A large sum is copied on another thread; a failure meanwhile waits for it, as it may access the caller's array.
func TestALargeSumIsCopied(t *testing.T) {
	for fail := range 2 {
		d := newDesk(t, 0)
		d.Recovers = true
		array := make([]byte, 2*copyAtOnce)
		d.must(d.Init(1, wire.Uint8, wire.Sync, array))
		d.declare(1, nil)
		d.letGo()
		one := bytes.Repeat([]byte{1}, wire.PacketBytes)
		all := func(round uint64, payload []byte) {
			for p := range uint32(len(array) / wire.PacketBytes) {
				d.arrive(wire.Header{Kind: wire.Sum, Tensor: 1, Packet: p, Round: round, RawLen: wire.PacketBytes}, payload)
			}
		}
		all(0, nil)
		ticket := d.pushPull(1, array, array)
		d.letGo()
		all(1, one)
		if fail == 1 {
			d.Fail(errors.New("the end"))
			if !ticket.Done() {
				t.Error("the copy goes on after Fail")
			}
			continue
		}
		if done, err := ticket.Wait(time.Minute); !done || err != nil || bytes.ContainsRune(array, 0) {
			t.Errorf("done %v, error %v", done, err)
		}
	}
}
