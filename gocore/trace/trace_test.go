package trace

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"
	"testing"
)

// ticking is a clock that shows 1, 2, 3 ...
func ticking() func() int64 {
	now := int64(0)
	return func() int64 { now++; return now }
}

// decoded is what a reader of a part finds.
func decoded(t *testing.T, part []byte) (h Head, events []Event) {
	t.Helper()
	line, rest, found := bytes.Cut(part, []byte("\n"))
	if err := json.Unmarshal(line, &h); !found || err != nil {
		t.Fatalf("no head: %v", err)
	}
	if len(rest)%EventBytes != 0 {
		t.Fatalf("%d bytes of events", len(rest))
	}
	le := binary.LittleEndian
	for ; len(rest) > 0; rest = rest[EventBytes:] {
		events = append(events, Event{
			Time: int64(le.Uint64(rest)), Tensor: le.Uint32(rest[8:]), Round: le.Uint32(rest[12:]), Packet: le.Uint32(rest[16:]),
			Bytes: le.Uint32(rest[20:]), Peer: le.Uint32(rest[24:]), Kind: Kind(le.Uint32(rest[28:])),
		})
	}
	return h, events
}

func TestAPartHasTheEventsOfAllPlacesInOrder(t *testing.T) {
	tracer := New(ticking())
	tracer.Packet(Read, 1, 1, 1, 9, 100) // off
	tracer.Start(1)
	tracer.Packet(Queued, 7, 3, 5, 8, 16384)
	tracer.Packet(Read, 7, 1<<32+3, 6, 9, 100)
	tracer.Note(Event{Kind: Waited, Time: 1, Tensor: NoTensor, Bytes: 44})
	tracer.Stop()
	tracer.Packet(Read, 1, 1, 1, 9, 100)
	part, err := tracer.Encode(Head{Name: "worker 1"})
	if err != nil {
		t.Fatal(err)
	}
	h, events := decoded(t, part)
	want := []Event{
		{Kind: Waited, Time: 1, Tensor: NoTensor, Bytes: 44},
		{Kind: Queued, Time: 1, Tensor: 7, Round: 3, Packet: 5, Peer: 8, Bytes: 16384},
		{Kind: Read, Time: 2, Tensor: 7, Round: 3, Packet: 6, Peer: 9, Bytes: 100},
	}
	if len(events) != len(want) {
		t.Fatalf("%+v", events)
	}
	for i := range want {
		if events[i] != want[i] {
			t.Errorf("event %d is %+v, want %+v", i, events[i], want[i])
		}
	}
	if h.Format != Format || h.Name != "worker 1" || h.Sampling != 1 || h.Lost != 0 || h.From != 0 {
		t.Errorf("head %+v", h)
	}
}

func TestARingKeepsTheLastEventsAndCountsTheOthers(t *testing.T) {
	tracer := New(ticking())
	tracer.Start(1)
	const more = 10
	for range ringEvents + more {
		tracer.Packet(Read, 1, 1, 1, 9, 1)
	}
	tracer.Note(Event{Kind: Called, Time: 3}) // its ring has room
	events, lost, from := tracer.events()
	if len(events) != ringEvents+1 || lost != more || from != more+1 || events[1].Time != more+1 {
		t.Errorf("%d events, %d lost, all from %d on, the second at %d", len(events), lost, from, events[1].Time)
	}
	tracer.Start(1)
	if events, lost, from = tracer.events(); len(events) != 0 || lost != 0 || from != 0 {
		t.Errorf("a new trace begins with %d events, %d lost", len(events), lost)
	}
}

func TestSampleIsOneInN(t *testing.T) {
	for _, n := range []uint32{1, 2, 64, 1000} {
		count := 0
		for round := range uint32(500) {
			for packet := range uint32(500) {
				if sampled(3, round, packet, n) {
					count++
				}
			}
		}
		want := 250_000 / float64(n)
		if math.Abs(float64(count)-want) > 5*math.Sqrt(want) {
			t.Errorf("1 in %d: %d of 250,000, want about %.0f", n, count, want)
		}
	}
	// The sample is part of the format: nodes of another version must choose the same packets.
	var first []uint32
	for packet := range uint32(300) {
		if sampled(1, 1, packet, 64) {
			first = append(first, packet)
		}
	}
	if want := []uint32{7, 9, 21, 63, 73}; !slices.Equal(first, want) {
		t.Errorf("sample %v, want %v", first, want)
	}
}

func TestTracingAllocatesNothing(t *testing.T) {
	on := New(ticking())
	on.Start(1)
	for name, tracer := range map[string]*Tracer{"none": nil, "off": New(ticking()), "on": on} {
		count := testing.AllocsPerRun(100, func() {
			tracer.Packet(Read, 1, 1, 1, 9, 1)
			tracer.Note(Event{Kind: Called, Tensor: 1})
		})
		if count != 0 {
			t.Errorf("%s: %v allocations", name, count)
		}
	}
}

func TestClock(t *testing.T) {
	type exchange struct{ sent, scheduler, received int64 }
	tests := map[string]struct {
		observed []exchange
		want     []Exchange
	}{
		"the scheduler's clock is 1000 ahead": {
			[]exchange{{100, 1110, 120}}, []Exchange{{110, 1000, 10}},
		},
		"and behind": {
			[]exchange{{5000, 10, 5020}}, []Exchange{{5010, -5000, 10}},
		},
		"the fastest answer of a second counts": {
			[]exchange{{0, 500, 100}, {200, 1210, 220}, {300, 9999, 900}}, []Exchange{{210, 1000, 10}},
		},
		"each second has its own, as clocks drift": {
			[]exchange{{100, 1110, 120}, {2e9, 2e9 + 1500, 2e9 + 1000}}, []Exchange{{110, 1000, 10}, {2e9 + 500, 1000, 500}},
		},
		"an answer before the question says nothing": {
			[]exchange{{100, 1110, 99}}, nil,
		},
	}
	for name, test := range tests {
		var c Clock
		for _, x := range test.observed {
			c.Observe(x.sent, x.scheduler, x.received)
		}
		got := c.Exchanges()
		if len(got) != len(test.want) {
			t.Errorf("%s: %v", name, got)
			continue
		}
		for i := range got {
			if got[i] != test.want[i] {
				t.Errorf("%s: %+v, want %+v", name, got[i], test.want[i])
			}
		}
	}
}

func TestAClockKeepsABoundedNumberOfExchanges(t *testing.T) {
	var c Clock
	for i := range int64(3 * maxExchanges) {
		c.Observe(i*windowTime, math.MinInt64, i*windowTime+10) // a scheduler's answer may be anything
	}
	all := c.Exchanges()
	if len(all) > maxExchanges || all[len(all)-1].Time != (3*maxExchanges-1)*windowTime+5 {
		t.Errorf("%d exchanges, the last at %d", len(all), all[len(all)-1].Time)
	}
}
