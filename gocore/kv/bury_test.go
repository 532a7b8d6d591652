package kv

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// recovering is a desk whose worker survives the death of node 8: nodes 10 and 12 could sum.
func recovering(t *testing.T) *desk {
	d := newDesk(t, 0)
	d.Recovers, d.Aggregators = true, []uint32{8, 10, 12}
	return d
}

// toHeirs lists what was sent to other nodes than 8: "contrib 0 r1 -> 10", packets and rounds.
func (d *desk) toHeirs() (list []string) {
	kinds := map[wire.Kind]string{wire.Contrib: "contrib", wire.Empty: "empty", wire.Have: "have", wire.Kept: "kept"}
	for _, p := range d.sent {
		if p.node == 8 {
			continue
		}
		h := p.Header
		packets := max(1, uint32(len(p.Data)+wire.PacketBytes-1)/wire.PacketBytes, h.Run)
		for n := range packets {
			list = append(list, fmt.Sprintf("%s %d r%d", kinds[h.Kind], h.Packet+n, h.Round))
		}
	}
	slices.Sort(list)
	return list
}

func TestBury(t *testing.T) {
	array := func() []byte { return bytes.Repeat([]byte{7}, size) }
	for name, tc := range map[string]struct {
		play func(d *desk)
		want string
	}{
		"before any round":        {func(d *desk) {}, "have 0 r0, have 1 r0, have 2 r0"},
		"in the first round":      {func(d *desk) { d.push(1, array()) }, "contrib 0 r1, contrib 1 r1, contrib 2 r1, have 0 r0, have 1 r0, have 2 r0"},
		"of a push":               {func(d *desk) { d.push(1, array()); d.sums(1, 1, 1) }, "contrib 0 r1, contrib 2 r1, have 0 r0, have 1 r1, have 2 r0"},
		"of a skip":               {func(d *desk) { d.must(d.Skip(1)); d.sums(1, 1, 0) }, "empty 1 r1, empty 2 r1, have 0 r1, have 1 r0, have 2 r0"},
		"of a push_pull in place": {func(d *desk) { a := array(); d.pushPull(1, a, a); d.sums(1, 1, 2) }, "contrib 0 r1, contrib 1 r1, have 0 r0, have 1 r0, have 2 r1"},
		"between rounds":          {func(d *desk) { a := array(); d.pushPull(1, a, a); d.sums(1, 1) }, "have 0 r1, have 1 r1, have 2 r1"},
		"in a later round": {func(d *desk) {
			a := array()
			d.pushPull(1, a, a)
			d.sums(1, 1)
			d.letGo()
			d.push(1, array())
		}, "contrib 0 r2, contrib 1 r2, contrib 2 r2, have 0 r1, have 1 r1, have 2 r1"},
	} {
		t.Run(name, func(t *testing.T) {
			d := recovering(t).ready(1)
			tc.play(d)
			d.Bury(Death{Node: 8})
			if got := strings.Join(d.toHeirs(), ", "); got != tc.want {
				t.Errorf("%s,\nexpected %s", got, tc.want)
			}
			for _, p := range d.sent {
				if p.node != 8 && p.Header.Kind == wire.Contrib && p.Data[0] != 7 {
					t.Error("a contribution is no more what it was")
				}
			}
		})
	}
}

// A newcomer asks a worker for its state that has died since it was chosen.
func TestFetchFromADeadWorker(t *testing.T) {
	d := recovering(t)
	d.Bury(Death{Node: 8})
	if done, err := d.Fetch(8).Wait(0); !done || fault.CodeOf(err) != fault.NodeLost {
		t.Errorf("done %v, error %v", done, err)
	}
}

// Of a push_pull in place the contribution is whole until its sum is: a part of a sum of the dead node does not touch it.
func TestPartOfASum(t *testing.T) {
	d := recovering(t).ready(1)
	array := bytes.Repeat([]byte{7}, size)
	ticket := d.pushPull(1, array, array)
	h := wire.Header{Kind: wire.Sum, DType: wire.Uint8, Tensor: 1, Run: 1, Round: 1, RawLen: wire.PacketBytes, WireLen: wire.PacketBytes}
	l, err := d.handler.Place(8, &h)
	if err != nil {
		t.Fatal(err)
	}
	copy(l.Bytes, bytes.Repeat([]byte{1}, 100))
	if !bytes.Equal(array, bytes.Repeat([]byte{7}, size)) {
		t.Error("the contribution has changed")
	}
	d.letGo()
	d.Bury(Death{Node: 8})
	whole := sum(1, 1)
	for _, p := range d.sent {
		if p.Header.Kind != wire.Contrib {
			continue
		}
		for n := range (len(p.Data) + wire.PacketBytes - 1) / wire.PacketBytes {
			packet := int(p.Header.Packet) + n
			payload := whole[packet*wire.PacketBytes : min((packet+1)*wire.PacketBytes, size)]
			for _, node := range []uint32{8, p.node} { // the dead node's sums are not taken any more
				d.underWay(ticket)
				d.sumOf(node, uint32(packet), payload)
			}
		}
	}
	for _, p := range d.sent {
		if p.Owner != nil {
			p.Owner.Release()
		}
	}
	d.ended(ticket, "")
	d.holds(array, 1, 1)
}

// sumOf brings a sum of key 1 in round 1 from a node.
func (d *desk) sumOf(node, packet uint32, payload []byte) {
	n := uint32(len(payload))
	h := wire.Header{Kind: wire.Sum, DType: wire.Uint8, Tensor: 1, Run: 1, Round: 1, Packet: packet, RawLen: n, WireLen: n}
	l, err := d.handler.Place(node, &h)
	if err == nil {
		copy(l.Bytes, payload)
		err = d.handler.Arrived(node, &h, l)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// recall brings a Recall.
func (d *desk) recall(h wire.Header) error {
	h.Kind, h.Run = wire.Recall, max(1, h.Run)
	d.sent = nil
	return d.handler.Arrived(10, &h, transport.Destination{})
}

func TestRecall(t *testing.T) {
	d := recovering(t).ready(1)
	array := bytes.Repeat([]byte{7}, size)
	d.pushPull(1, array, array)
	d.sums(1, 1)
	d.letGo()
	clear(array) // the caller's again
	d.pushPull(1, array, array)
	d.sums(1, 2, 1)
	for name, tc := range map[string]struct {
		h    wire.Header
		want []byte // nil: no answer
		late bool   // which is no error
	}{
		"the last sum":           {wire.Header{Tensor: 1, Packet: 0, Round: 1}, sum(1, 1)[:wire.PacketBytes], false},
		"the one under way":      {wire.Header{Tensor: 1, Packet: 1, Round: 2}, sum(1, 2)[wire.PacketBytes : 2*wire.PacketBytes], false},
		"overwritten":            {wire.Header{Tensor: 1, Packet: 1, Round: 1}, nil, true},
		"not here yet":           {wire.Header{Tensor: 1, Packet: 0, Round: 2}, nil, true},
		"of the round before it": {wire.Header{Tensor: 1, Packet: 0, Round: 0}, nil, true},
		"of another epoch":       {wire.Header{Tensor: 1, Packet: 0, Round: 1, Epoch: 1}, nil, true},
		"of a later round":       {wire.Header{Tensor: 1, Packet: 0, Round: 3}, nil, false},
		"no such packet":         {wire.Header{Tensor: 1, Packet: 3, Round: 1}, nil, false},
		"no such tensor":         {wire.Header{Tensor: 2, Packet: 0, Round: 1}, nil, false},
		"more than a packet":     {wire.Header{Tensor: 1, Packet: 0, Round: 1, Run: 2}, nil, false},
		"of an unending tensor":  {wire.Header{Tensor: 1, Packet: 1 << 31, Round: 1}, nil, false},
	} {
		err := d.recall(tc.h)
		if (err == nil) != (tc.want != nil || tc.late) || (len(d.sent) > 0) != (tc.want != nil) || tc.want != nil && !bytes.Equal(d.sent[0].Data, tc.want) {
			t.Errorf("%s: error %v, %d packets", name, err, len(d.sent))
		}
	}
}

// The news that a round has no sum is recalled like a sum.
func TestRecallOfAClash(t *testing.T) {
	d := recovering(t).ready(1)
	ticket := d.push(1, make([]byte, size))
	d.sums(1, 1, 0, 2)
	d.arrive(wire.Header{Kind: wire.Sum, Flags: wire.FlagClash, Tensor: 1, Packet: 1, Round: 1, RawLen: wire.PacketBytes}, nil)
	d.letGo()
	d.ended(ticket, fault.Mismatch)
	if err := d.recall(wire.Header{Tensor: 1, Packet: 1, Round: 1}); err != nil || d.sent[0].Header.Flags != wire.FlagClash || d.sent[0].Data != nil {
		t.Errorf("%v: %+v", err, d.sent)
	}
}

// An initial value dies with its aggregator, until a push makes it needless.
func TestLostInitialValue(t *testing.T) {
	d := recovering(t).ready(1, 2)
	underWay, waits := d.pull(1, make([]byte, size)), d.pull(1, make([]byte, size))
	d.letGo()
	d.Bury(Death{Node: 8})
	for _, ticket := range []*Ticket{underWay, waits} {
		d.ended(ticket, fault.NodeLost)
		if _, err := ticket.Wait(0); !strings.Contains(err.Error(), "key 1: a part of its initial value was lost with server 0") {
			t.Error(err)
		}
	}
	ticket, err := d.Pull(2, wire.Uint8, make([]byte, size))
	d.refused(fault.NodeLost, ticket, err)
	if !strings.Contains(err.Error(), "key 2: a part of its initial value was lost with server 0: push first") {
		t.Error(err)
	}
	d.push(2, make([]byte, size))
	d.pull(2, make([]byte, size))
}

// A question that a dead node cannot answer ends.
func TestBuryEndsQuestions(t *testing.T) {
	told := ""
	d := recovering(t).ready(1)
	d.Stateful = func(what string) { told = what }
	ticket := d.must(d.Resume(1, make([]byte, 8)))
	if told != "the clock of key 1" {
		t.Errorf("the scheduler hears of %q", told)
	}
	d.letGo()
	d.underWay(ticket)
	d.Bury(Death{Node: 8})
	d.ended(ticket, fault.NodeLost)
}

// Two rounds of a key in one call keep their sums in the same memory.
func TestAKeyTwiceInOneCall(t *testing.T) {
	d := recovering(t).ready(1)
	first, second := bytes.Repeat([]byte{7}, size), bytes.Repeat([]byte{8}, size)
	tickets, err := d.PushPullAll([]Exchange{
		{Key: 1, DType: wire.Uint8, Memory: first, Out: first}, {Key: 1, DType: wire.Uint8, Memory: second, Out: second},
	})
	if err != nil {
		t.Fatal(err)
	}
	d.sums(1, 1)
	d.letGo()
	d.ended(tickets[0], "")
	if err := d.recall(wire.Header{Tensor: 1, Packet: 2, Round: 1}); err != nil || !bytes.Equal(d.sent[0].Data, sum(1, 1)[2*wire.PacketBytes:]) {
		t.Errorf("the sum of round 1 is not kept: %v", err)
	}
}

// The statistics show who sums now.
func TestSharesAfterADeath(t *testing.T) {
	d := recovering(t)
	d.Bury(Death{Node: 8})
	if got := fmt.Sprint(d.Stats().Shares); got != "map[server 1:0.5 server 2:0.5]" {
		t.Error(got)
	}
	d.Bury(Death{Node: 10})
	if got := fmt.Sprint(d.Stats().Shares); got != "map[server 2:1]" {
		t.Error(got)
	}
}

// A tensor that is declared after a death has living aggregators.
func TestDeclareAfterADeath(t *testing.T) {
	d := recovering(t)
	d.Bury(Death{Node: 8})
	d.Bury(Death{Node: 12})
	d.must(d.Init(1, wire.Uint8, wire.Sync, make([]byte, size)))
	d.declare(1, nil)
	if len(d.sent) == 0 {
		t.Error("nothing was sent")
	}
	for _, p := range d.sent {
		if p.node != 10 {
			t.Errorf("packet %d goes to node %d", p.Header.Packet, p.node)
		}
	}
}
