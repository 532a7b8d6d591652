package kv

import (
	"math"
	"reflect"
	"testing"
	"unsafe"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// TestBusy: no memory is in two operations, but for the pull that waits for the
// push from the very same array. What is refused changes nothing.
func TestBusy(t *testing.T) {
	memory := make([]byte, 3*size)
	a, b := memory[:size], memory[size:2*size]
	tail, lap := memory[2*size:], memory[size/2:size/2+size] // lap overlaps a and b
	late := memory[1 : 1+size]
	pushA := func(d *desk) { d.push(1, a) }
	for _, c := range []struct {
		name  string
		first func(d *desk)
		then  func(d *desk) (*Ticket, error)
		busy  bool
	}{
		{"push after push of the same array", pushA, pushOf(1, a), true},
		{"push to another key", pushA, pushOf(2, a), true},
		{"push of a slice that begins in the array", pushA, pushOf(2, lap), true},
		{"push of a slice that begins a byte later", pushA, pushOf(2, late), true},
		{"push of a slice that ends in the array", func(d *desk) { d.push(1, lap) }, pushOf(2, a), true},
		{"push of the neighbour", pushA, pushOf(2, b), false},
		{"push between two", func(d *desk) { d.push(1, a); d.push(2, tail) }, pushOf(3, b), false},
		{"push over two", func(d *desk) { d.push(1, a); d.push(2, b) }, pushOf(3, lap), true},
		{"push_pull from the array", pushA, pushPullOf(1, a, b), true},
		{"push_pull to the array", pushA, pushPullOf(1, b, a), true},
		{"push_pull of the key to the array of its last push", pushA, pushPullOf(1, tail, a), true},
		{"push_pull in place", nothing, pushPullOf(1, a, a), false},
		{"push_pull to its own other half", nothing, pushPullOf(1, a, lap), true},
		{"push of an array that a push_pull fills", func(d *desk) { d.pushPull(1, a, b) }, pushOf(2, b), true},
		{"push of an array that a push_pull reads", func(d *desk) { d.pushPull(1, a, b) }, pushOf(2, a), true},
		{"pull into the array that push_pull works on in place", func(d *desk) { d.pushPull(1, a, a) }, pullTo(2, a), true},
		{"pull into the array that is pushed", pushA, pullTo(1, a), false},
		{"pull of another key into it", pushA, pullTo(2, a), true},
		{"second pull into it", func(d *desk) { pushA(d); d.pull(1, a) }, pullTo(1, a), true},
		{"pull into a part of it", pushA, pullTo(1, late), true},
		{"pull into the array of the push before the last", func(d *desk) { pushA(d); d.push(1, b) }, pullTo(1, a), true},
		{"pull into the array of a push that waits", func(d *desk) { d.push(1, b); pushA(d) }, pullTo(1, a), false},
		{"two pulls to one array", func(d *desk) { pushA(d); d.pull(1, b) }, pullTo(1, b), true},
		{"two pulls to two arrays", func(d *desk) { pushA(d); d.pull(1, b) }, pullTo(1, tail), false},
		{"push of an array that a pull fills", func(d *desk) { pushA(d); d.pull(1, b) }, pushOf(2, b), true},
		{"pull into it when the sum is here but the push not yet sent", func(d *desk) { pushA(d); d.sums(1, 1) }, pullTo(1, a), false},
		{"push when the sum is here but the push not yet sent", func(d *desk) { pushA(d); d.sums(1, 1) }, pushOf(1, a), true},
		{"push when it is sent but the sum is not here", func(d *desk) { pushA(d); d.letGo(); d.sums(1, 1, 0, 1) }, pushOf(1, a), true},
		{"push when the last has ended", func(d *desk) { pushA(d); d.letGo(); d.sums(1, 1) }, pushOf(1, a), false},
		{"skip", pushA, func(d *desk) (*Ticket, error) { return d.Skip(1) }, false},
		{"init from the array", pushA, func(d *desk) (*Ticket, error) { return d.Init(4, wire.Uint8, wire.Sync, a) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t, 0).ready(1, 2, 3)
			c.first(d)
			before := d.snapshot()
			ticket, err := c.then(d)
			if !c.busy {
				d.must(ticket, err)
				return
			}
			d.refused(fault.Busy, ticket, err)
			if after := d.snapshot(); after != before {
				t.Errorf("the refusal has changed\n%s\nto\n%s", before, after)
			}
		})
	}
}

func nothing(*desk) {}

func pushOf(key uint64, array []byte) func(*desk) (*Ticket, error) {
	return func(d *desk) (*Ticket, error) { return d.Push(key, wire.Uint8, array, wire.OpSum, 0) }
}

func pushPullOf(key uint64, array, out []byte) func(*desk) (*Ticket, error) {
	return func(d *desk) (*Ticket, error) { return d.PushPull(key, wire.Uint8, array, out, wire.OpSum, 0) }
}

func pullTo(key uint64, array []byte) func(*desk) (*Ticket, error) {
	return func(d *desk) (*Ticket, error) { return d.Pull(key, wire.Uint8, array) }
}

// TestArrayIsFreeWithItsTicket: an array of the caller's is free again when the
// ticket has ended and not before, whatever comes last: the sum, or the transport's
// word that the array is sent.
func TestArrayIsFreeWithItsTicket(t *testing.T) {
	sent, summed := (*desk).letGo, func(round uint64) func(*desk) {
		return func(d *desk) {
			d.sums(1, round, 1, 2)
			d.sums(1, round, 0)
		}
	}
	for name, steps := range map[string][]func(*desk){
		"sent, then summed": {sent, summed(1)},
		"summed, then sent": {summed(1), sent},
		"behind another":    {sent, summed(1), sent, summed(2)},
		"behind, sent last": {summed(1), summed(2), sent},
	} {
		for verb, start := range map[string]func(d *desk, a, b []byte) *Ticket{
			"push":               func(d *desk, a, _ []byte) *Ticket { return d.push(1, a) },
			"push_pull":          func(d *desk, a, b []byte) *Ticket { return d.pushPull(1, a, b) },
			"push_pull in place": func(d *desk, a, _ []byte) *Ticket { return d.pushPull(1, a, a) },
			"push and pull": func(d *desk, a, b []byte) *Ticket {
				ticket := d.push(1, a)
				d.pull(1, b)
				return ticket
			},
			"push and pull in place": func(d *desk, a, _ []byte) *Ticket {
				ticket := d.push(1, a)
				d.pull(1, a)
				return ticket
			},
		} {
			t.Run(verb+" "+name, func(t *testing.T) {
				d := newDesk(t, 0).ready(1, 2)
				if name[0] == 'b' {
					d.push(1, make([]byte, size))
				}
				a, b := make([]byte, size), make([]byte, size)
				used := [][]byte{a}
				ticket := start(d, a, b)
				if d.mu.flights.take(9, b, nil, nil) == nil { // b is not used
					d.mu.flights.leave(b, nil)
				} else {
					used = append(used, b)
				}
				for i, step := range append([]func(*desk){func(*desk) {}}, steps...) {
					step(d)
					if done := ticket.Done(); done != (i == len(steps)) {
						t.Errorf("after %d of %d steps the ticket's end is %v", i, len(steps), done)
					}
					for k, array := range used {
						free := d.mu.flights.take(9, array, nil, nil) == nil
						if free {
							d.mu.flights.leave(array, nil)
						}
						if free != ticket.Done() {
							t.Errorf("after %d of %d steps array %d is free: %v", i, len(steps), k, free)
						}
					}
				}
			})
		}
	}
}

// TestPullCopiesWhenItsPushEnds: the push of an array ends while a pull copies into
// it; it is the pull's alone then.
func TestPullCopiesWhenItsPushEnds(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	array := make([]byte, size)
	push := d.push(1, array)
	d.sums(1, 1)
	if err := d.mu.flights.take(1, array, nil, d.mu.byKey[1].last); err != nil { // a pull begins to copy
		t.Fatal(err)
	}
	d.letGo()
	d.ended(push, "")
	other, err := d.Pull(1, wire.Uint8, array)
	d.refused(fault.Busy, other, err)
	d.mu.flights.leave(array, nil) // and has copied
	d.ended(d.pull(1, array), "")
	d.holds(array, 1, 1)
}

// TestRefusals: what the arguments forbid, with its code; nothing changes.
func TestRefusals(t *testing.T) {
	const key, unknown, pending = 1, 3, 2
	array := make([]byte, size)
	longer := make([]byte, size+1)
	huge := array // of which the length alone is looked at
	(*struct {
		data          *byte
		length, space int
	})(unsafe.Pointer(&huge)).length = wire.MaxTensorBytes + 1
	for _, c := range []struct {
		name string
		code fault.Code
		do   func(d *desk) (*Ticket, error)
	}{
		{"init again", fault.Value, func(d *desk) (*Ticket, error) { return d.Init(key, wire.Uint8, wire.Sync, array) }},
		{"init again before it is declared", fault.Value, func(d *desk) (*Ticket, error) { return d.Init(pending, wire.Uint8, wire.Sync, array) }},
		{"init without a type", fault.Type, func(d *desk) (*Ticket, error) { return d.Init(unknown, 0, wire.Sync, array) }},
		{"init with a type there is not", fault.Type, func(d *desk) (*Ticket, error) { return d.Init(unknown, 200, wire.Sync, array) }},
		{"init of nothing", fault.Value, func(d *desk) (*Ticket, error) { return d.Init(unknown, wire.Uint8, wire.Sync, nil) }},
		{"init of parts of elements", fault.Value, func(d *desk) (*Ticket, error) { return d.Init(unknown, wire.Float32, wire.Sync, array) }},
		{"init of too much", fault.Value, func(d *desk) (*Ticket, error) { return d.Init(unknown, wire.Uint8, wire.Sync, huge) }},
		{"push without init", fault.Key, pushOf(unknown, array)},
		{"push before it is declared", fault.Key, pushOf(pending, array)},
		{"push of more", fault.Value, pushOf(key, longer)},
		{"push of less", fault.Value, pushOf(key, array[1:])},
		{"push of nothing", fault.Value, pushOf(key, nil)},
		{"push of another type", fault.Type, func(d *desk) (*Ticket, error) { return d.Push(key, wire.Int8, array, wire.OpSum, 0) }},
		{"mean of integers", fault.Type, func(d *desk) (*Ticket, error) { return d.Push(key, wire.Uint8, array, wire.OpMean, 0) }},
		{"push_pull without init", fault.Key, pushPullOf(unknown, array, array)},
		{"push_pull to more", fault.Value, pushPullOf(key, array, longer)},
		{"push_pull to nothing", fault.Value, pushPullOf(key, array, nil)},
		{"push_pull of nothing", fault.Value, pushPullOf(key, nil, array)},
		{"push_pull of another type", fault.Type, func(d *desk) (*Ticket, error) {
			return d.PushPull(key, wire.Float32, array, array, wire.OpSum, 0)
		}},
		{"mean of integers by push_pull", fault.Type, func(d *desk) (*Ticket, error) {
			return d.PushPull(key, wire.Uint8, array, array, wire.OpMean, 0)
		}},
		{"skip without init", fault.Key, func(d *desk) (*Ticket, error) { return d.Skip(unknown) }},
		{"skip before it is declared", fault.Key, func(d *desk) (*Ticket, error) { return d.Skip(pending) }},
		{"pull without init", fault.Key, pullTo(unknown, array)},
		{"pull before it is declared", fault.Key, pullTo(pending, array)},
		{"pull to more", fault.Value, pullTo(key, longer)},
		{"pull to nothing", fault.Value, pullTo(key, nil)},
		{"pull to another type", fault.Type, func(d *desk) (*Ticket, error) { return d.Pull(key, wire.Bool, array) }},
		{"info without init", fault.Key, func(d *desk) (*Ticket, error) {
			_, err := d.TensorInfo(unknown)
			return nil, err
		}},
	} {
		d := newDesk(t, 0).ready(key)
		d.must(d.Init(pending, wire.Uint8, wire.Sync, array))
		before := d.snapshot()
		ticket, err := c.do(d)
		if err == nil || ticket != nil || fault.CodeOf(err) != c.code {
			t.Errorf("%s: ticket %v, error %v (expected code %s)", c.name, ticket, err, c.code)
		}
		if after := d.snapshot(); after != before {
			t.Errorf("%s has changed\n%s\nto\n%s", c.name, before, after)
		}
	}
}

func TestTensorInfoAndStats(t *testing.T) {
	d := newDesk(t, 0).ready(1, 2)
	if info, err := d.TensorInfo(2); info != (TensorInfo{size, 0, wire.PacketBytes, "uint8", "sync", nil, nil}) || err != nil {
		t.Error(info, err)
	}
	a, b := make([]byte, size), make([]byte, size)
	d.push(1, a)
	d.pull(1, b)
	d.pull(1, a)
	d.pushPull(2, make([]byte, size), make([]byte, size))
	d.must(d.Skip(1)) // waits, so it is no round yet
	d.letGo()
	d.sums(1, 1, 0)
	got, want := d.Stats(), WorkerStats{Tensors: 2, Rounds: 4, BytesPushed: 2 * size, BytesPulled: 2*size + wire.PacketBytes, Shares: map[string]float64{"server 0": 1}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, expected %+v", got, want)
	}
}

// TestPriorityRange: the whole range of priorities reaches the packets.
func TestPriorityRange(t *testing.T) {
	for _, priority := range []int32{math.MinInt32, -1, 0, math.MaxInt32} {
		d := newDesk(t, 0).ready(1)
		d.must(d.Push(1, wire.Uint8, make([]byte, size), wire.OpSum, priority))
		if got := d.sent[0].Header.Priority; got != priority {
			t.Errorf("%d became %d", priority, got)
		}
	}
}

// A sum is taken only from the node that sums the packet: while one is being read
// into the caller's array, that of another must not end the ticket.
func TestSumOfAnotherNodeIsUnwanted(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	array := make([]byte, size)
	ticket, err := d.Worker.PushPull(1, wire.Uint8, array, array, wire.OpSum, 0)
	if err != nil {
		t.Fatal(err)
	}
	d.letGo()
	for p := range uint32(3) {
		raw := uint32(wire.PacketLen(size, p))
		h := wire.Header{Kind: wire.Sum, DType: wire.Uint8, Tensor: 1, Packet: p, Run: 1, Round: 1, RawLen: raw}
		if region := d.Worker.place(11, &h); region != nil {
			t.Fatalf("packet %d of node 11 would land in the array", p)
		}
		d.Worker.sum(11, &h, nil)
	}
	if ticket.Done() {
		t.Error("the ticket has ended by the sums of a node that sums nothing")
	}
}
