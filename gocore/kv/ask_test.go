package kv

import (
	"bytes"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"fptps/gocore/aggregate"
	"fptps/gocore/fault"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// asking puts a question about key 1 to each of nodes.
func (d *desk) asking(i *inquiry, nodes ...uint32) *Ticket {
	var all []*ask
	for _, node := range nodes {
		all = append(all, &ask{node: node, header: wire.Header{Op: wire.AskRule, Tensor: 1}, data: []byte{1}, into: i.memory})
	}
	var ticket *Ticket
	i.about = "the news of key 1"
	d.step(func() effects {
		e := d.inquire(i, all)
		ticket = i.ticket
		return e
	})
	return ticket
}

// reply brings the answer to ask number n from a node.
func (d *desk) reply(node uint32, n uint64, flags uint8, payload []byte) {
	d.t.Helper()
	h := wire.Header{Kind: wire.Answer, Op: wire.AskRule, Flags: flags, Tensor: 1, Run: 1, Number: n, RawLen: uint32(len(payload)), WireLen: uint32(len(payload))}
	var l transport.Destination
	if len(payload) > 0 {
		var err error
		if l, err = d.handler.Place(node, &h); err != nil {
			d.t.Fatal(err)
		}
		copy(l.Bytes, payload)
	}
	if err := d.handler.Arrived(node, &h, l); err != nil {
		d.t.Fatal(err)
	}
}

func TestTicketEndsWithTheLastAnswer(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	heard := map[uint32]string{}
	ticket := d.asking(&inquiry{take: func(a *ask, payload []byte) error {
		heard[a.node] += string(payload)
		return nil
	}}, 8, 10)
	for n, p := range d.sent {
		want := wire.Header{Kind: wire.Ask, Op: wire.AskRule, Tensor: 1, Run: 1, Number: uint64(n + 1)}
		if p.Header != want || p.node != uint32(8+2*n) || string(p.Data) != "\x01" {
			t.Errorf("asked node %d %+v with %q", p.node, p.Header, p.Data)
		}
	}
	d.explains(ticket, "the news of key 1: 0 of 2 answers are here; missing: server 0, server 1")
	d.reply(10, 1, 0, []byte("from a node that was not asked this"))
	d.reply(8, 3, 0, []byte("to a question that was never asked"))
	d.reply(10, 2, 0, []byte("two"))
	d.reply(10, 2, 0, []byte("again"))
	d.explains(ticket, "the news of key 1: 1 of 2 answers are here; missing: server 0")
	d.reply(8, 1, 0, nil)
	d.explains(ticket, "the news of key 1: all answers are here, the last bytes are being sent")
	d.underWay(ticket)
	d.letGo()
	d.ended(ticket, "")
	if len(heard) != 2 || heard[10] != "two" || heard[8] != "" || len(d.mu.asks.open) != 0 {
		t.Errorf("heard %v, %d questions are open", heard, len(d.mu.asks.open))
	}
}

func TestAnswerLandsInTheCallersMemory(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	memory := []byte("......")
	if err := d.mu.flights.take(1, memory, nil, nil); err != nil {
		t.Fatal(err)
	}
	ticket := d.asking(&inquiry{memory: memory}, 8)
	d.letGo()
	_, err := d.Push(1, wire.Uint8, memory, wire.OpSum, 0)
	if err == nil {
		t.Error("the memory is free while the answer is awaited")
	}
	d.reply(8, 1, 0, []byte("answer"))
	d.ended(ticket, "")
	if string(memory) != "answer" || len(d.mu.flights.list) != 0 {
		t.Errorf("the memory holds %q, in flight is %v", memory, d.mu.flights.list)
	}
}

func TestRefusalOfAnAsk(t *testing.T) {
	for payload, want := range map[string]struct {
		code fault.Code
		text string
	}{
		"value: no such thing":        {fault.Value, "the news of key 1: server 0: no such thing"},
		"busy: a: b":                  {fault.Busy, "the news of key 1: server 0: a: b"},
		"unheard: of":                 {fault.Remote, "the news of key 1: server 0: unheard: of"},
		"nothing but \x1b[31m colour": {fault.Remote, "the news of key 1: server 0: nothing but ?[31m colour"},
	} {
		d := newDesk(t, 0).ready(1)
		memory := []byte("......")
		ticket := d.asking(&inquiry{memory: memory, take: func(*ask, []byte) error {
			t.Error("a refusal was taken for an answer")
			return nil
		}}, 8)
		if err := d.mu.flights.take(1, memory, nil, nil); err != nil {
			t.Fatal(err)
		}
		d.letGo()
		d.reply(8, 1, wire.FlagRefused, []byte(payload))
		done, err := ticket.Wait(0)
		if !done || fault.CodeOf(err) != want.code || err.Error() != want.text || string(memory) != "......" {
			t.Errorf("%q: done %v, code %s, error %v, memory %q", payload, done, fault.CodeOf(err), err, memory)
		}
	}
}

func TestAnswerOfAnotherLengthIsAnError(t *testing.T) {
	for _, payload := range []string{"", "short", "longer"[:6] + "!"} {
		d := newDesk(t, 0).ready(1)
		memory := []byte("......")
		if err := d.mu.flights.take(1, memory, nil, nil); err != nil {
			t.Fatal(err)
		}
		ticket := d.asking(&inquiry{memory: memory}, 8)
		d.letGo()
		d.reply(8, 1, 0, []byte(payload))
		d.ended(ticket, fault.Internal)
		if string(memory) != "......" {
			t.Errorf("%q is in the memory", memory)
		}
	}
}

func TestFailEndsAsks(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	ticket := d.asking(&inquiry{then: func() (e effects) {
		t.Error("goes on after the failure")
		return e
	}}, 8, 10)
	d.letGo()
	d.reply(8, 1, 0, nil)
	d.Fail(fault.New(fault.NodeLost, "server 1 was lost"))
	d.ended(ticket, fault.NodeLost)
	d.reply(10, 2, 0, []byte("late"))
}

// The messages of inquiry.then are sent when the last answer has come, and not before.
func TestThenIsCalledAfterTheLastAnswer(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	ticket := d.asking(&inquiry{then: func() effects { return effects{sends: []sending{{node: 12}}} }}, 8)
	d.letGo()
	d.reply(8, 1, 0, nil)
	if len(d.sent) != 1 || d.sent[0].node != 12 {
		t.Errorf("sent %v", d.sent)
	}
	d.ended(ticket, "")
}

func TestSilenceIsLogged(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	now := time.Now()
	d.handler.Tick(now)
	ticket := d.asking(&inquiry{}, 8, 10)
	d.letGo()
	for after, want := range []string{4: "", 5: "no answer for 5 s", 9: "", 10: "no answer for 10 s"} {
		d.log.Reset()
		d.handler.Tick(now.Add(time.Duration(after) * time.Second))
		if got := d.log.String(); strings.Count(got, "level=WARN") != min(len(want), 1) || !strings.Contains(got, want) {
			t.Errorf("after %d s the log is %q", after, got)
		} else if want != "" && !strings.Contains(got, `about="the news of key 1" missing="server 0, server 1"`) {
			t.Errorf("the log is %q", got)
		}
	}
	d.reply(8, 1, 0, nil) // which is progress
	d.log.Reset()
	d.handler.Tick(now.Add(13 * time.Second))
	if d.log.Len() > 0 {
		t.Errorf("3 s after an answer the log is %q", d.log.String())
	}
	d.reply(10, 2, 0, nil)
	d.ended(ticket, "")
}

// TestOneSilenceIsLogged: a tick speaks of the inquiry that has heard nothing for longest, and looks at no other.
func TestOneSilenceIsLogged(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	now := time.Now()
	d.handler.Tick(now)
	for range 3 {
		d.asking(&inquiry{}, 8, 10)
	}
	d.handler.Tick(now.Add(time.Second))
	d.reply(8, 1, 0, nil) // to the first
	for after, logged := range []string{4: "", 5: `msg="no answer for 5 s" about="the news of key 1" missing="server 0, server 1" other_questions=2`} {
		d.log.Reset()
		d.handler.Tick(now.Add(time.Duration(after) * time.Second))
		if got := d.log.String(); strings.Count(got, "level=WARN") != min(len(logged), 1) || !strings.Contains(got, logged) {
			t.Errorf("after %d s the log is %q", after, got)
		}
	}
	for n, node := range []uint32{10, 8, 10, 8, 10} {
		d.reply(node, uint64(n+2), 0, nil)
	}
	if d.mu.asks.waiting.Len() != 0 {
		t.Errorf("%d inquiries wait, and all are answered", d.mu.asks.waiting.Len())
	}
}

// TestEndedInquiryReleasesMemory: the ticket of an ended inquiry refers to none of the caller's memory.
func TestEndedInquiryReleasesMemory(t *testing.T) {
	d := newDesk(t, 0).ready(1)
	answered := func() (*Ticket, []weak.Pointer[byte]) {
		memory, taken := bytes.Repeat([]byte("x"), 1<<10), make([]byte, 1<<10)
		if err := d.mu.flights.take(1, memory, nil, nil); err != nil {
			t.Fatal(err)
		}
		ticket := d.asking(&inquiry{memory: memory, take: func(_ *ask, payload []byte) error {
			copy(taken, payload)
			return nil
		}}, 8)
		d.letGo()
		d.reply(8, 1, 0, bytes.Repeat([]byte("y"), 1<<10))
		return ticket, []weak.Pointer[byte]{weak.Make(&memory[0]), weak.Make(&taken[0])}
	}
	ticket, used := answered()
	d.ended(ticket, "")
	runtime.GC()
	for i, p := range used {
		if p.Value() != nil {
			t.Errorf("memory %d is kept", i)
		}
	}
	runtime.KeepAlive(ticket)
	runtime.KeepAlive(d)
}

// answers keeps what an aggregator answers.
type answers []posting

func (s *answers) Send(node uint32, m transport.Outgoing) {
	*s = append(*s, posting{node, m})
	if m.Owner != nil {
		m.Owner.Release()
	}
}

func TestUnknownAskIsRefused(t *testing.T) {
	var sent answers
	a := NewAggregator(8, aggregate.NewMembers(2), &sent, false, slog.New(slog.DiscardHandler))
	h := Handler{Self: 8, Aggregator: a}
	header := wire.Header{Kind: wire.Ask, Op: 99, Tensor: 1, Packet: 2, Run: 1, Number: 3, Priority: 4, RawLen: 5, WireLen: 5}
	put := func(node uint32) error {
		l, err := h.Place(node, &header)
		if err == nil {
			err = h.Arrived(node, &header, l)
		}
		return err
	}
	if err := put(11); err != nil {
		t.Fatal(err)
	}
	want := wire.Header{Kind: wire.Answer, Flags: wire.FlagRefused, Op: 99, Tensor: 1, Packet: 2, Run: 1, Number: 3, Priority: 4}
	if len(sent) != 1 || sent[0].node != 11 || sent[0].Header != want || string(sent[0].Data) != "value: this aggregator does not know operation 99" {
		t.Errorf("answered %+v", sent)
	}
	if err := put(12); err == nil || !strings.Contains(err.Error(), "not a worker") {
		t.Errorf("a node that is no worker asks: %v", err)
	}
	if a.pool.Lent() != 0 {
		t.Errorf("%d buffers are still lent", a.pool.Lent())
	}
}

// TestAsksTravel: every worker of a cluster asks every aggregator, its own among them.
func TestAsksTravel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, []uint32{1, 0}, []uint32{1}, nil, func(int, *wire.Header) {})
		for _, w := range c.workers {
			i := &inquiry{about: "nothing"}
			var ticket *Ticket
			w.step(func() effects {
				e := w.inquire(i, []*ask{
					{node: serverID(0), header: wire.Header{Op: wire.AskRule}, data: []byte("?")},
					{node: workerID(0), header: wire.Header{Op: wire.AskRule}},
				})
				ticket = i.ticket
				return e
			})
			err := wait(t, w, ticket)
			if err == nil || !strings.Contains(err.Error(), "nothing: ") {
				t.Errorf("rank %d: error %v", w.Rank, err)
			}
		}
		c.close()
	})
}
