package ps

import (
	"bytes"
	"cmp"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/cluster"
	"fptps/gocore/transport"
	"fptps/gocore/van"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// hub is a cluster of offices. What they send waits until the test delivers it.
type hub struct {
	t       *testing.T
	members []cluster.Member
	offices map[int]*Office
	mu      sync.Mutex // of sent: the offices' timers send, too
	sent    []parcel
	lines   map[[2]int][]*transport.Outgoing // what waits for the data plane's connections, in the order of Send
	random  *rand.Rand
	log     bytes.Buffer
}

type parcel struct {
	from, to int
	meta     *pspb.Meta
	data     [][]byte
}

// hubPost is one node's way to send.
type hubPost struct {
	*hub
	self int
}

func (p hubPost) View() cluster.View { return cluster.View{Self: p.self, Members: p.members} }

func (p hubPost) Send(id int, m *pspb.Meta, data ...[]byte) error {
	if p.offices[id] == nil {
		return van.ErrClosed
	}
	var copies [][]byte
	for _, frame := range data {
		copies = append(copies, bytes.Clone(frame))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, parcel{p.self, id, proto.Clone(m).(*pspb.Meta), copies})
	return nil
}

// bothWays runs a test with messages over ZeroMQ, and with messages over the data plane.
func bothWays(t *testing.T, test func(*testing.T, bool)) {
	t.Run("zeromq", func(t *testing.T) { test(t, false) })
	t.Run("packets", func(t *testing.T) { test(t, true) })
}

// newHub makes a cluster; link has messages between workers, servers and the scheduler go over the data plane.
func newHub(t *testing.T, link bool, workers, servers int) *hub {
	h := &hub{t: t, offices: map[int]*Office{}, random: rand.New(rand.NewPCG(uint64(workers), uint64(servers)))}
	log := slog.New(slog.NewTextHandler(&h.log, nil))
	add := func(role cluster.Role, id int) {
		h.members = append(h.members, cluster.Member{ID: id, Role: role, Protocol: cluster.Protocol})
		h.offices[id] = NewOffice(role, log)
	}
	for rank := range servers {
		add(cluster.RoleServer, wire.ServerID(rank))
	}
	for rank := range workers {
		add(cluster.RoleWorker, wire.WorkerID(rank))
	}
	add(cluster.RoleScheduler, wire.SchedulerID)
	for id, o := range h.offices {
		o.Join(hubPost{h, id})
		for _, m := range h.members {
			if link && m.ID != id && m.Role != o.role {
				o.Link(hubPlane{h, id}, m.ID)
			}
		}
	}
	return h
}

// hubPlane is one node's data plane.
type hubPlane struct {
	*hub
	self int
}

func (p hubPlane) Send(peer uint32, m transport.Outgoing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lines == nil {
		p.lines = map[[2]int][]*transport.Outgoing{}
	}
	at := [2]int{p.self, int(peer)}
	p.lines[at] = append(p.lines[at], &m)
}

// carry brings one packet of any connection; false where there is none.
func (h *hub) carry() bool {
	h.mu.Lock()
	ends := slices.SortedFunc(maps.Keys(h.lines), func(a, b [2]int) int { return cmp.Or(a[0]-b[0], a[1]-b[1]) })
	h.mu.Unlock()
	if len(ends) == 0 {
		return false
	}
	h.carryOn(ends[h.random.IntN(len(ends))])
	return true
}

// carryOn brings the most urgent packet of a connection.
func (h *hub) carryOn(at [2]int) {
	h.mu.Lock()
	runs := h.lines[at]
	run := slices.MaxFunc(runs, func(a, b *transport.Outgoing) int { return cmp.Compare(a.Header.Priority, b.Header.Priority) })
	header, data := run.Header, run.Data[:min(wire.PacketBytes, len(run.Data))]
	header.RawLen, header.WireLen = uint32(len(data)), uint32(len(data))
	run.Data = run.Data[len(data):]
	run.Header.Packet++
	over := len(run.Data) == 0
	if over {
		h.lines[at] = slices.DeleteFunc(runs, func(r *transport.Outgoing) bool { return r == run })
	}
	if len(h.lines[at]) == 0 {
		delete(h.lines, at)
	}
	h.mu.Unlock()
	h.packet(at[0], at[1], &header, data)
	if over {
		run.Owner.Release()
	}
}

// packet brings one packet, whose header has to be one that the wire takes.
func (h *hub) packet(from, to int, header *wire.Header, data []byte) {
	h.t.Helper()
	var b [wire.HeaderBytes]byte
	header.Put(b[:])
	if err := header.Get(b[:]); err != nil {
		h.t.Fatal(err)
	}
	place := h.offices[to].Place(uint32(from), header)
	copy(place.Bytes, data)
	h.offices[to].Arrived(uint32(from), header, place)
}

// deliver brings everything that was sent, and what is sent because of it.
func (h *hub) deliver() {
	for {
		if h.carry() {
			continue
		}
		h.mu.Lock()
		if len(h.sent) == 0 {
			h.mu.Unlock()
			return
		}
		next := h.sent[0]
		h.sent = h.sent[1:]
		h.mu.Unlock()
		h.give(next.from, next.to, next.meta, next.data...)
	}
}

func (h *hub) give(from, to int, meta *pspb.Meta, data ...[]byte) {
	if h.offices[to].lines.get(from) != nil {
		encoded, err := van.Encode(meta)
		if err != nil {
			h.t.Fatal(err)
		}
		b := first(append([][]byte{encoded}, data...), new(depot).get) // all of it, in tests that give
		h.packet(from, to, &wire.Header{Kind: wire.Part, Run: 1, Round: 1 << 60, RawLen: uint32(len(b)), WireLen: uint32(len(b))}, b)
		return
	}
	member := cluster.Member{ID: from}
	h.offices[to].Deliver(member, &van.Envelope{From: from, Meta: meta, Data: data})
}

func (h *hub) open(id int, app, customer int32) *Customer {
	h.t.Helper()
	c, err := h.offices[id].Open(app, customer)
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// event takes the next event, which has to be there.
func (h *hub) event(c *Customer) Event {
	h.t.Helper()
	e, ok := c.take()
	if !ok {
		h.t.Fatalf("app %d has no event; log:\n%s", c.App, h.log.String())
	}
	return e
}

// result takes the next event, the end of request ts.
func (h *hub) result(c *Customer, ts int32) *Result {
	h.t.Helper()
	e := h.event(c)
	if e.Result == nil || e.Result.Timestamp != ts {
		h.t.Fatalf("got %+v, want the end of request %d", e, ts)
	}
	return e.Result
}

// sums has servers answer what they were asked with Sum.
func (h *hub) sums(all ...*Sum) {
	h.deliver()
	for again := true; again; {
		again = false
		for _, s := range all {
			if e, ok := s.server.take(); ok {
				s.serve(e.Request)
				again = true
			}
		}
		h.deliver()
	}
}

// wantRejected checks the counter of a node, and that the log names the sender once.
func (h *hub) wantRejected(id int, want uint64, from string) {
	h.t.Helper()
	if got := h.offices[id].Rejected(); got != want {
		h.t.Errorf("%s has rejected %d messages, want %d", name(id), got, want)
	}
	if lines := strings.Count(h.log.String(), `from="`+from+`"`) + strings.Count(h.log.String(), `from=`+from+" "); lines != 1 {
		h.t.Errorf("the log names %s in %d lines, want 1:\n%s", from, lines, h.log.String())
	}
}
