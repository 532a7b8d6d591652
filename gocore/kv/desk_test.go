package kv

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// size is that of every tensor on a desk: two packets and an odd tail of uint8.
const size = 2*wire.PacketBytes + 5

// desk is one worker whose packets stay in the test's hands: the test plays the
// transport, the aggregator (node 8) and the scheduler.
type desk struct {
	t *testing.T
	*Worker
	handler  Handler
	log      bytes.Buffer
	sent     []posting // and not released
	epoch    uint16    // of the sums that arrive
	declares []func(uint32, error)
}

type posting struct {
	node uint32
	transport.Outgoing
}

func newDesk(t *testing.T, rank int) *desk {
	d := &desk{t: t}
	shares, err := plan.New([]plan.Share{{Node: 8, Share: 1}})
	if err != nil {
		t.Fatal(err)
	}
	d.Worker = NewWorker(WorkerConfig{
		Rank: rank, Workers: ranksTo(rank + 2), Plan: shares, Lanes: []DataPlane{d}, Tickets: NewTickets(), Log: slog.New(slog.NewTextHandler(&d.log, nil)),
		Declare: each(func(_ uint64, _ wire.Tensor, done func(uint32, error)) {
			d.declares = append(d.declares, done)
		}),
		Name: func(node uint32) string { return wire.NodeName(int(node)) },
	})
	d.handler = Handler{Self: 9, Worker: d.Worker}
	return d
}

// ranksTo lists the ranks of so many workers.
func ranksTo(workers int) (ranks []int) {
	for rank := range workers {
		ranks = append(ranks, rank)
	}
	return ranks
}

func (d *desk) Send(node uint32, m transport.Outgoing) { d.sent = append(d.sent, posting{node, m}) }

// letGo has the transport release all that was sent.
func (d *desk) letGo() {
	for len(d.sent) > 0 {
		p := d.sent[0]
		d.sent = d.sent[1:]
		if p.Owner != nil {
			p.Owner.Release()
		}
	}
}

// declare answers the oldest declaration: the id is the key.
func (d *desk) declare(key uint64, err error) {
	done := d.declares[0]
	d.declares = d.declares[1:]
	done(uint32(key), err)
}

// ready initialises keys, whose round 0 is complete then.
func (d *desk) ready(keys ...uint64) *desk {
	for _, key := range keys {
		ticket := d.must(d.Init(key, wire.Uint8, wire.Sync, make([]byte, size)))
		d.declare(key, nil)
		d.letGo()
		d.initialised(key)
		d.ended(ticket, "")
	}
	return d
}

// must fails the test if an operation is refused.
func (d *desk) must(ticket *Ticket, err error) *Ticket {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
	return ticket
}

// refused checks that an operation is refused.
func (d *desk) refused(code fault.Code, ticket *Ticket, err error) {
	d.t.Helper()
	if err == nil || ticket != nil || fault.CodeOf(err) != code {
		d.t.Errorf("expected an error of code %s: ticket %v, error %v", code, ticket, err)
	}
}

func (d *desk) push(key uint64, array []byte) *Ticket {
	d.t.Helper()
	return d.must(d.Push(key, wire.Uint8, array, wire.OpSum, 0))
}

func (d *desk) pushPull(key uint64, array, out []byte) *Ticket {
	d.t.Helper()
	return d.must(d.PushPull(key, wire.Uint8, array, out, wire.OpSum, 0))
}

func (d *desk) pull(key uint64, array []byte) *Ticket {
	d.t.Helper()
	return d.must(d.Pull(key, wire.Uint8, array))
}

// ended checks that a ticket has ended, with an error of code or, where that is
// "", without one.
func (d *desk) ended(ticket *Ticket, code fault.Code) {
	d.t.Helper()
	done, err := ticket.Wait(0)
	if !done || (err == nil) != (code == "") || err != nil && fault.CodeOf(err) != code {
		d.t.Errorf("ticket: done %v, error %v; expected %q", done, err, code)
	}
}

func (d *desk) underWay(ticket *Ticket) {
	d.t.Helper()
	if ticket.Done() {
		d.t.Error("the ticket has ended already")
	}
}

// sum is the sum of a round: every packet of it is different.
func sum(key, round uint64) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(17*key + 5*round + uint64(i/wire.PacketBytes))
	}
	return b
}

// initialised has the replies to an Init arrive, which are empty.
func (d *desk) initialised(key uint64) {
	d.t.Helper()
	for p := range uint32(3) {
		raw := uint32(min(wire.PacketBytes, size-int(p)*wire.PacketBytes))
		d.arrive(wire.Header{Kind: wire.Sum, Tensor: uint32(key), Packet: p, RawLen: raw}, nil)
	}
}

// sums has sums arrive: the packets that are named, else all.
func (d *desk) sums(key, round uint64, packets ...uint32) {
	d.t.Helper()
	if packets == nil {
		packets = []uint32{1, 0, 2}
	}
	whole := sum(key, round)
	for _, p := range packets {
		payload := whole[p*wire.PacketBytes : min((p+1)*wire.PacketBytes, size)]
		d.arrive(wire.Header{Kind: wire.Sum, Tensor: uint32(key), Packet: p, Round: round, RawLen: uint32(len(payload))}, payload)
	}
}

// arrive brings one packet as the transport does.
func (d *desk) arrive(h wire.Header, payload []byte) {
	d.t.Helper()
	h.Run, h.WireLen, h.Epoch = 1, uint32(len(payload)), d.epoch
	if h.DType == 0 {
		h.DType = wire.Uint8
	}
	var l transport.Destination
	if payload != nil {
		var err error
		if l, err = d.handler.Place(8, &h); err != nil || len(l.Bytes) != len(payload) {
			d.t.Fatalf("%d bytes for a payload of %d, error %v", len(l.Bytes), len(payload), err)
		}
		copy(l.Bytes, payload)
	}
	if err := d.handler.Arrived(8, &h, l); err != nil {
		d.t.Fatal(err)
	}
}

// holds checks that array is the sum of a round.
func (d *desk) holds(array []byte, key, round uint64) {
	d.t.Helper()
	if !bytes.Equal(array, sum(key, round)) {
		d.t.Errorf("the array does not hold the sum of key %d round %d", key, round)
	}
}

// explains checks the text of a ticket's Explain.
func (d *desk) explains(ticket *Ticket, want string) {
	d.t.Helper()
	if got := ticket.Explain().Text; got != want {
		d.t.Errorf("ticket explains %q, expected %q", got, want)
	}
}

// snapshot is all that an operation could change.
func (d *desk) snapshot() string {
	s := fmt.Sprint(d.mu.stats, d.mu.flights.list, len(d.sent), len(d.declares), d.Tickets.mu.open)
	for _, key := range []uint64{1, 2, 3} {
		if t := d.mu.byKey[key]; t != nil {
			s += fmt.Sprintf("; %d: %p %p %d %d %d", key, t.last, t.active, len(t.queue), t.next, t.readers)
			if t.active != nil {
				s += fmt.Sprint(len(t.active.pulls))
			}
		}
	}
	return s
}
