package kv

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// TestPullIsTheSumOfTheLastPush: whenever the pull comes, and however many do.
func TestPullIsTheSumOfTheLastPush(t *testing.T) {
	for moment, play := range map[string]func(d *desk, push func() *Ticket, pull func()){
		"before any sum is here": func(d *desk, push func() *Ticket, pull func()) { push(); pull(); d.sums(1, 1); d.letGo() },
		"while the sums arrive": func(d *desk, push func() *Ticket, pull func()) {
			push()
			d.sums(1, 1, 2, 0)
			pull()
			d.letGo()
			d.sums(1, 1, 1)
		},
		"before and while": func(d *desk, push func() *Ticket, pull func()) {
			push()
			pull()
			d.sums(1, 1, 1)
			pull()
			d.letGo()
			d.sums(1, 1, 0, 2)
		},
		"while the push is sent":   func(d *desk, push func() *Ticket, pull func()) { push(); d.sums(1, 1); pull(); d.letGo() },
		"after the push has ended": func(d *desk, push func() *Ticket, pull func()) { push(); d.letGo(); d.sums(1, 1); pull() },
		"of a push that waits": func(d *desk, push func() *Ticket, pull func()) {
			push()
			push()
			pull()
			d.letGo()
			d.sums(1, 1)
			d.letGo()
			d.sums(1, 2)
		},
		"of the last of many": func(d *desk, push func() *Ticket, pull func()) {
			push()
			push()
			push()
			d.letGo()
			d.sums(1, 1)
			pull()
			d.letGo()
			d.sums(1, 2, 0, 1)
			pull()
			d.sums(1, 2, 2)
			d.letGo()
			pull()
			d.sums(1, 3)
		},
		"of a skip": func(d *desk, _ func() *Ticket, pull func()) {
			d.must(d.Skip(1))
			pull()
			d.letGo()
			d.sums(1, 1)
		},
	} {
		t.Run(moment, func(t *testing.T) {
			d := newDesk(t, 0).ready(1)
			var arrays [][]byte
			var rounds []uint64
			var tickets []*Ticket
			pushes := uint64(0)
			if moment == "of a skip" {
				pushes = 1
			}
			play(d, func() *Ticket {
				pushes++
				return d.push(1, make([]byte, size))
			}, func() {
				for range 2 {
					array := make([]byte, size)
					arrays, rounds, tickets = append(arrays, array), append(rounds, pushes), append(tickets, d.pull(1, array))
				}
			})
			for i, ticket := range tickets {
				d.ended(ticket, "")
				d.holds(arrays[i], 1, rounds[i])
			}
			again := make([]byte, size)
			d.ended(d.pull(1, again), "")
			d.holds(again, 1, pushes)
		})
	}
}

// TestPullAfterInit: each pull asks the aggregators for the value anew, and no round begins before it has come.
func TestPullAfterInit(t *testing.T) {
	d := newDesk(t, 1).ready(1)
	if kept := d.mu.byKey[1].kept; kept != nil {
		t.Errorf("%d bytes are kept of the initial value", len(kept))
	}
	one, two := make([]byte, size), make([]byte, size)
	first, second := d.pull(1, one), d.pull(1, two)
	d.explains(first, "key 1: its initial value: 0 of 3 packets are here")
	d.explains(second, "waits for the operation before it: key 1: its initial value: 0 of 3 packets are here")
	pushed := d.push(1, make([]byte, size))
	for _, pull := range []struct {
		ticket *Ticket
		array  []byte
	}{{first, one}, {second, two}} {
		want := wire.Header{Kind: wire.Want, Tensor: 1, Run: 3}
		if len(d.sent) != 1 || d.sent[0].node != 8 || d.sent[0].Header != want {
			t.Fatalf("%+v are sent, expected %+v alone", d.sent, want)
		}
		d.letGo()
		d.sums(1, 0, 2, 0)
		d.underWay(pull.ticket)
		d.sums(1, 0, 1)
		d.ended(pull.ticket, "")
		d.holds(pull.array, 1, 0)
	}
	if len(d.sent) != 1 || d.sent[0].Header.Kind != wire.Contrib || d.sent[0].Header.Round != 1 {
		t.Errorf("%+v are sent, expected round 1", d.sent)
	}
	d.letGo()
	d.sums(1, 1)
	d.ended(pushed, "")
	if got := d.Stats().Rounds; got != 2 {
		t.Errorf("%d rounds are counted: a pull is none", got)
	}
}

func TestPullOfTheArrayThatIsPushed(t *testing.T) {
	packets := []uint32{2, 0, 1}
	for sums := range len(packets) + 1 {
		d := newDesk(t, 0).ready(1)
		array := make([]byte, size)
		push := d.push(1, array)
		d.sums(1, 1, packets[:sums]...)
		pull := d.pull(1, array)
		d.sums(1, 1, packets[sums:]...)
		d.letGo()
		d.ended(push, "")
		d.ended(pull, "")
		d.holds(array, 1, 1)
		if len(d.mu.flights.list) != 0 {
			t.Errorf("%d sums before the pull: in flight at the end: %v", sums, d.mu.flights.list)
		}
	}
}

// TestPushPull reads the sum straight to where it is wanted, and keeps none.
func TestPushPull(t *testing.T) {
	for _, inPlace := range []bool{true, false} {
		d := newDesk(t, 0).ready(1)
		array := make([]byte, size)
		out := array
		if !inPlace {
			out = make([]byte, size)
		}
		ticket := d.pushPull(1, array, out)
		h := wire.Header{Kind: wire.Sum, DType: wire.Uint8, Tensor: 1, Packet: 1, Run: 1, Round: 1, RawLen: wire.PacketBytes, WireLen: wire.PacketBytes}
		l, err := d.handler.Place(8, &h)
		if err != nil || &l.Bytes[0] != &out[wire.PacketBytes] || len(l.Bytes) != wire.PacketBytes {
			t.Error("the sum is not read straight into out")
		}
		refuse := func() {
			t.Helper()
			other, err := d.Pull(1, wire.Uint8, make([]byte, size))
			d.refused(fault.Value, other, err)
		}
		refuse()
		d.letGo()
		d.sums(1, 1)
		d.ended(ticket, "")
		d.holds(out, 1, 1)
		if !inPlace && !bytes.Equal(array, make([]byte, size)) {
			t.Error("push_pull has changed the array that it pushed")
		}
		refuse()
		if d.mu.byKey[1].kept != nil {
			t.Error("push_pull keeps a sum")
		}
		d.push(1, array)
		after := d.pull(1, make([]byte, size))
		d.letGo()
		d.sums(1, 2)
		d.ended(after, "")
	}
}

// TestPushWaitsForReaders: a round starts only when no pull copies the sum before it.
func TestPushWaitsForReaders(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	tensor := d.mu.byKey[1]
	tensor.readers = 2 // two pulls are copying
	push := d.push(1, make([]byte, size))
	if len(d.sent) != 0 {
		t.Fatal("the round starts while its predecessor is copied")
	}
	d.explains(push, "key 1: its last sum is being copied, then the next round starts")
	for range 2 {
		d.mu.Lock()
		tensor.readers--
		out := d.advance(tensor)
		d.mu.Unlock()
		d.send(out)
		if want := 1 - min(tensor.readers, 1); len(d.sent) != want {
			t.Fatalf("%d runs are sent while %d pulls copy", len(d.sent), tensor.readers)
		}
	}
}

// TestPullsWhilePushing: a pull on another thread than the push that comes at the
// same time; the tensor is large, so that the push often finds the pull copying. The
// pull sees one whole sum.
func TestPullsWhilePushing(t *testing.T) {
	const packets, rounds = 128, 40
	d := newDesk(t, 0)
	d.Lanes[0] = sender(func(_ uint32, m transport.Outgoing) { m.Owner.Release() })
	array, out := make([]byte, packets*wire.PacketBytes), make([]byte, packets*wire.PacketBytes)
	sums := func(round uint64) {
		for p := range uint32(packets) {
			h := wire.Header{Kind: wire.Sum, DType: wire.Uint8, Tensor: 1, Packet: p, Round: round, RawLen: wire.PacketBytes}
			if region := d.place(8, &h); region != nil { // nil while the round waits for the pull
				region[0], region[wire.PacketBytes-1] = byte(round), byte(round)
				d.Worker.sum(8, &h, region)
			}
		}
	}
	d.must(d.Init(1, wire.Uint8, wire.Sync, array))
	d.declare(1, nil)
	for p := range uint32(packets) {
		d.Worker.sum(8, &wire.Header{Kind: wire.Sum, DType: wire.Uint8, Tensor: 1, Packet: p, RawLen: wire.PacketBytes}, nil)
	}
	d.must(d.Push(1, wire.Uint8, array, wire.OpSum, 0))
	sums(1)
	pulling, pulled := make(chan uint64), make(chan bool)
	go func() {
		for round := range pulling {
			if ticket, err := d.Pull(1, wire.Uint8, out); err != nil {
				t.Error(err)
			} else if done, err := ticket.Wait(time.Hour); !done || err != nil {
				t.Error(done, err)
			}
			for i := range out { // the push came first, or the pull did
				if edge := i % wire.PacketBytes; (edge == 0 || edge == wire.PacketBytes-1) && (out[i] != out[0] || out[i] != byte(round) && out[i] != byte(round-1)) {
					t.Errorf("round %d: byte %d is of round %d, the first of %d", round, i, out[i], out[0])
					break
				}
			}
			pulled <- true
		}
	}()
	for round := range uint64(rounds) {
		pulling <- round + 2
		push := d.must(d.Push(1, wire.Uint8, array, wire.OpSum, 0))
		for !push.Done() {
			sums(round + 2)
			runtime.Gosched()
		}
		<-pulled
	}
	close(pulling)
}

// sender implements DataPlane by one function.
type sender func(uint32, transport.Outgoing)

func (s sender) Send(node uint32, m transport.Outgoing) { s(node, m) }

// TestSentPackets: the runs of each kind of operation over two aggregators.
func TestSentPackets(t *testing.T) {
	shares, err := plan.New([]plan.Share{{Node: 8, Share: 1}, {Node: 9, Share: 2}})
	if err != nil {
		t.Fatal(err)
	}
	runs := plan.NewTally(shares).Cut(size, nil)
	if len(runs) != 2 {
		t.Fatalf("the cut is %v", runs)
	}
	second := uint64(runs[1].First) * wire.PacketBytes
	for _, c := range []struct {
		name string
		rank int
		do   func(d *desk, array []byte)
		want wire.Header // of both runs, but for the numbers of packets
	}{
		{"rank 0's init", 0, func(*desk, []byte) {}, wire.Header{Kind: wire.Contrib}},
		{"rank 1's init", 1, func(*desk, []byte) {}, wire.Header{Kind: wire.Empty}},
		{"push", 1, func(d *desk, a []byte) { d.must(d.Push(1, wire.Float32, a, wire.OpSum, -4)) }, wire.Header{Kind: wire.Contrib, Round: 1, Priority: -4}},
		{"push_pull", 0, func(d *desk, a []byte) { d.must(d.PushPull(1, wire.Float32, a, a, wire.OpMean, 8)) }, wire.Header{Kind: wire.Contrib, Round: 1, Op: wire.OpMean, Priority: 8}},
		{"skip", 0, func(d *desk, _ []byte) { d.must(d.Skip(1)) }, wire.Header{Kind: wire.Empty, Round: 1}},
	} {
		d := newDesk(t, c.rank)
		d.mu.plan = newNumbered(0, shares)
		array := make([]byte, size-1)
		d.must(d.Init(1, wire.Float32, wire.Sync, array))
		d.declare(5, nil)
		if c.want.Round > 0 {
			d.letGo()
			for p := range uint32(3) {
				raw := uint32(wire.PacketLen(size-1, p))
				d.Worker.sum(d.mu.byKey[1].owner(p), &wire.Header{Kind: wire.Sum, DType: wire.Float32, Tensor: 5, Packet: p, RawLen: raw}, nil)
			}
		}
		c.do(d, array)
		if len(d.sent) != 2 {
			t.Fatalf("%s: %d runs", c.name, len(d.sent))
		}
		for i, run := range runs {
			got, want := d.sent[i], c.want
			want.DType, want.Tensor, want.Packet, want.Run = wire.Float32, 5, run.First, 1
			var data []byte
			if want.Kind == wire.Empty {
				want.Run, want.RawLen = run.Count, []uint32{wire.PacketBytes, 4}[i]
			} else if data = array[:second]; i == 1 {
				data = array[second:]
			}
			same := c.want.Round == 0 || data == nil || &got.Data[0] == &data[0]
			if got.node != run.Node || got.Header != want || !slices.Equal(got.Data, data) || !same {
				t.Errorf("%s, run %d: to node %d: %+v with %d bytes (the caller's: %v)\nexpected to node %d: %+v with %d bytes",
					c.name, i, got.node, got.Header, len(got.Data), same, run.Node, want, len(data))
			}
		}
	}
}

// TestUnwantedSumsAreDropped: no packet of a peer moves a round but the right ones.
func TestUnwantedSumsAreDropped(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	array := make([]byte, size)
	ticket := d.pushPull(1, array, array)
	d.letGo()
	d.sums(1, 1, 0)
	rubbish := bytes.Repeat([]byte{0xee}, wire.PacketBytes)
	for name, h := range map[string]wire.Header{
		"again":            {Tensor: 1, Round: 1, Packet: 0},
		"the last round":   {Tensor: 1, Round: 0, Packet: 1},
		"the next round":   {Tensor: 1, Round: 2, Packet: 1},
		"no such packet":   {Tensor: 1, Round: 1, Packet: 3},
		"a far packet":     {Tensor: 1, Round: 1, Packet: 1 << 24},
		"another length":   {Tensor: 1, Round: 1, Packet: 2},
		"another type":     {Tensor: 1, Round: 1, Packet: 1, DType: wire.Int8},
		"no such tensor":   {Tensor: 2, Round: 1, Packet: 1},
		"another tensor's": {Tensor: 1<<24 - 1, Round: 1, Packet: 1},
	} {
		h.Kind, h.RawLen = wire.Sum, wire.PacketBytes
		d.arrive(h, rubbish)
		d.arrive(h, nil)
		if bytes.IndexByte(array, 0xee) >= 0 {
			t.Errorf("%s: the array has changed", name)
		}
		d.explains(ticket, "key 1 round 1: the sums of 1 of 3 packets are here")
	}
	d.sums(1, 1, 2, 1)
	d.ended(ticket, "")
	d.holds(array, 1, 1)
	d.arrive(wire.Header{Kind: wire.Sum, Tensor: 1, Round: 1, Packet: 1, RawLen: wire.PacketBytes}, rubbish)
	d.holds(array, 1, 1)
}

// TestZeroSum: a sum without a payload is all zeros, everywhere it is wanted.
func TestZeroSum(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	d.push(1, make([]byte, size))
	arrays := [][]byte{bytes.Repeat([]byte{9}, size), bytes.Repeat([]byte{8}, size)}
	for _, array := range arrays {
		d.pull(1, array)
	}
	d.letGo()
	d.sums(1, 1, 0, 2)
	d.arrive(wire.Header{Kind: wire.Sum, Tensor: 1, Round: 1, Packet: 1, RawLen: wire.PacketBytes}, nil)
	arrays = append(arrays, make([]byte, size))
	d.ended(d.pull(1, arrays[2]), "")
	want := sum(1, 1)
	clear(want[wire.PacketBytes : 2*wire.PacketBytes])
	for i, array := range arrays {
		if !bytes.Equal(array, want) {
			t.Errorf("array %d does not hold the sum", i)
		}
	}
}

func TestPacketsThatThisNodeDoesNotTake(t *testing.T) {
	worker := newDesk(t, 0).ready(1)
	server := Handler{Self: 8, Aggregator: NewAggregator(8, aggregate.NewMembers(2), worker, false, worker.Log)}
	for _, c := range []struct {
		name    string
		handler *Handler
		h       wire.Header
	}{
		{"a contribution to a worker", &worker.handler, wire.Header{Kind: wire.Contrib, RawLen: 4}},
		{"zeros to a worker", &worker.handler, wire.Header{Kind: wire.Empty, RawLen: 4}},
		{"a sum to a server", &server, wire.Header{Kind: wire.Sum, RawLen: 4}},
		{"a list to a server", &server, wire.Header{Kind: wire.Missing, RawLen: 4}},
		{"a contribution of a server", &server, wire.Header{Kind: wire.Contrib, RawLen: 4}},
	} {
		c.h.DType, c.h.Run = wire.Uint8, 1
		var l transport.Destination
		var err error
		if c.h.Kind != wire.Empty {
			c.h.WireLen = c.h.RawLen
			l, err = c.handler.Place(10, &c.h)
		}
		if err == nil {
			err = c.handler.Arrived(10, &c.h, l)
		}
		if err == nil {
			t.Errorf("%s is taken", c.name)
		}
	}
	if n := server.Aggregator.pool.Lent(); n != 0 {
		t.Errorf("%d buffers are lent", n)
	}
}

func TestMissingWorkersAreLogged(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	ticket := d.push(1, make([]byte, size))
	told := wire.Header{Kind: wire.Missing, DType: wire.Uint8, Tensor: 1, Run: 1, Round: 1, RawLen: 8, WireLen: 8}
	l, err := d.handler.Place(8, &told)
	if err != nil {
		t.Fatal(err)
	}
	other := told
	m, err := d.handler.Place(10, &other) // two connections may be in the middle of their lists
	if err != nil {
		t.Fatal(err)
	}
	copy(l.Bytes, "\x0b\x00\x00\x00\x0d\x00\x00\x00")
	copy(m.Bytes, "\xff\xff\xff\xff\xff\xff\xff\xff")
	if err := d.handler.Arrived(8, &told, l); err != nil {
		t.Fatal(err)
	}
	d.explains(ticket, "key 1 round 1: the sums of 0 of 3 packets are here; missing: worker 1, worker 2")
	start := time.Now()
	d.handler.Tick(start.Add(LogAfter / 2))
	if d.log.Len() > 0 {
		t.Errorf("too early: %q", d.log.String())
	}
	d.handler.Tick(start.Add(LogAfter))
	d.handler.Tick(start.Add(LogAfter * 3 / 2)) // logged just before
	if strings.Count(d.log.String(), `msg="no progress for 5 s" key=1 round=1 missing="worker 1, worker 2" other_keys=0`) != 1 {
		t.Errorf("the log is %q", d.log.String())
	}
	d.log.Reset()
	for name, h := range map[string]wire.Header{
		"another round": {Tensor: 1, Round: 2}, "no such tensor": {Tensor: 77, Round: 1},
	} {
		h.Kind, h.RawLen = wire.Missing, 4
		d.arrive(h, []byte{15, 0, 0, 0})
		d.explains(ticket, "key 1 round 1: the sums of 0 of 3 packets are here; missing: worker 1, worker 2")
		if d.log.Len() > 0 {
			t.Errorf("%s is logged: %s", name, d.log.String())
		}
	}
	d.letGo()
	d.sums(1, 1)
	next := d.push(1, make([]byte, size))
	d.explains(next, "key 1 round 2: the sums of 0 of 3 packets are here")
}

// TestTickIsBounded: however many tensors wait for other workers, a tick looks at maxLooks of them.
func TestTickIsBounded(t *testing.T) {
	d := newDesk(t, 0)
	begun := time.Now()
	tensors := make([]*tensor, maxLooks+7)
	for i := range tensors {
		tensors[i] = &tensor{key: uint64(i), begun: begun}
		d.setMissing(tensors[i], []string{"worker 1"})
		d.setMissing(tensors[i], []string{"worker 1", "worker 2"}) // the same place
	}
	d.handler.Tick(begun.Add(LogAfter))
	if want := fmt.Sprintf(`key=0 round=0 missing="worker 1, worker 2" other_keys=%d`, maxLooks-1); !strings.Contains(d.log.String(), want) {
		t.Errorf("the log is %q, want %q", d.log.String(), want)
	}
	for _, each := range tensors {
		d.setMissing(each, nil)
	}
	if d.mu.late.Len() != 0 {
		t.Errorf("%d tensors are looked at whose rounds are complete", d.mu.late.Len())
	}
}
