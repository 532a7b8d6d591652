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

// hub is a cluster of offices. Their messages wait until the test delivers them.
type hub struct {
	t       *testing.T
	members []cluster.Member
	offices map[int]*Office
	mu      sync.Mutex // guards sent: the offices' timers send, too
	sent    []envelope
	packets map[[2]int][]*transport.Outgoing // waiting for each connection of the data plane, in the order of Send
	random  *rand.Rand
	log     bytes.Buffer
}

type envelope struct {
	from, to int
	meta     *pspb.Meta
	data     [][]byte
}

// hubPost is the Post of one node.
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
	p.sent = append(p.sent, envelope{p.self, id, proto.Clone(m).(*pspb.Meta), copies})
	return nil
}

// overBothPlanes runs a test with messages over ZeroMQ and over the data plane.
func overBothPlanes(t *testing.T, test func(*testing.T, bool)) {
	t.Run("zeromq", func(t *testing.T) { test(t, false) })
	t.Run("packets", func(t *testing.T) { test(t, true) })
}

// newHub makes a cluster. With dataPlane, messages between workers, servers and the scheduler travel over the data plane.
func newHub(t *testing.T, dataPlane bool, workers, servers int) *hub {
	h := &hub{t: t, offices: map[int]*Office{}, random: rand.New(rand.NewPCG(uint64(workers), uint64(servers)))}
	log := slog.New(slog.NewTextHandler(&h.log, nil))
	add := func(role cluster.Role, id int) {
		h.members = append(h.members, cluster.Member{ID: id, Role: role, Protocol: cluster.Protocol})
		h.offices[id] = NewOffice(role, log, func(err error) { t.Errorf("an office failed: %v", err) })
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
			if dataPlane && m.ID != id && m.Role != o.role {
				o.Link(hubPlane{h, id}, m.ID)
			}
		}
	}
	return h
}

// hubPlane is the Plane of one node.
type hubPlane struct {
	*hub
	self int
}

func (p hubPlane) Send(peer uint32, m transport.Outgoing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.packets == nil {
		p.packets = map[[2]int][]*transport.Outgoing{}
	}
	pair := [2]int{p.self, int(peer)}
	p.packets[pair] = append(p.packets[pair], &m)
}

// deliverPacket delivers one packet of a random connection; false if none waits.
func (h *hub) deliverPacket() bool {
	h.mu.Lock()
	ends := slices.SortedFunc(maps.Keys(h.packets), func(a, b [2]int) int { return cmp.Or(a[0]-b[0], a[1]-b[1]) })
	h.mu.Unlock()
	if len(ends) == 0 {
		return false
	}
	h.deliverPacketOn(ends[h.random.IntN(len(ends))])
	return true
}

// deliverPacketOn delivers the most urgent packet of a connection.
func (h *hub) deliverPacketOn(at [2]int) {
	h.mu.Lock()
	runs := h.packets[at]
	run := slices.MaxFunc(runs, func(a, b *transport.Outgoing) int { return cmp.Compare(a.Header.Priority, b.Header.Priority) })
	header, data := run.Header, run.Data[:min(wire.PacketBytes, len(run.Data))]
	header.RawLen, header.WireLen = uint32(len(data)), uint32(len(data))
	run.Data = run.Data[len(data):]
	run.Header.Packet++
	over := len(run.Data) == 0
	if over {
		h.packets[at] = slices.DeleteFunc(runs, func(r *transport.Outgoing) bool { return r == run })
	}
	if len(h.packets[at]) == 0 {
		delete(h.packets, at)
	}
	h.mu.Unlock()
	h.handlePacket(at[0], at[1], &header, data)
	if over {
		run.Owner.Release()
	}
}

// handlePacket passes one packet to its receiver. It fails the test if the header is invalid.
func (h *hub) handlePacket(from, to int, header *wire.Header, data []byte) {
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

// deliver delivers all messages, including those sent in response.
func (h *hub) deliver() {
	for {
		if h.deliverPacket() {
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
		h.deliverMessage(next.from, next.to, next.meta, next.data...)
	}
}

func (h *hub) deliverMessage(from, to int, meta *pspb.Meta, data ...[]byte) {
	if h.offices[to].links.get(from) != nil {
		encoded, err := van.Encode(meta)
		if err != nil {
			h.t.Fatal(err)
		}
		b := encodeFirst(append([][]byte{encoded}, data...), new(pool).get) // the messages of these tests fit in one packet
		h.handlePacket(from, to, &wire.Header{Kind: wire.Part, Run: 1, Number: 1 << 60, RawLen: uint32(len(b)), WireLen: uint32(len(b))}, b)
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

// event returns the next event; it fails the test if there is none.
func (h *hub) event(c *Customer) Event {
	h.t.Helper()
	e, ok := c.poll()
	if !ok {
		h.t.Fatalf("app %d has no event; log:\n%s", c.App, h.log.String())
	}
	return e
}

// result returns the next event, which must be the end of request ts.
func (h *hub) result(c *Customer, ts int32) *Result {
	h.t.Helper()
	e := h.event(c)
	if e.Result == nil || e.Result.Timestamp != ts {
		h.t.Fatalf("got %+v, want the end of request %d", e, ts)
	}
	return e.Result
}

// serveAll delivers messages and lets the servers answer requests, until nothing is left.
func (h *hub) serveAll(all ...*Sum) {
	h.deliver()
	for again := true; again; {
		again = false
		for _, s := range all {
			if e, ok := s.server.poll(); ok {
				s.serve(e.Request)
				again = true
			}
		}
		h.deliver()
	}
}

// wantRejected checks a node's counter of rejected messages, and that the log names the sender once.
func (h *hub) wantRejected(id int, want uint64, from string) {
	h.t.Helper()
	if got := h.offices[id].Rejected(); got != want {
		h.t.Errorf("%s has rejected %d messages, want %d", name(id), got, want)
	}
	if lines := strings.Count(h.log.String(), `from="`+from+`"`) + strings.Count(h.log.String(), `from=`+from+" "); lines != 1 {
		h.t.Errorf("the log names %s in %d lines, want 1:\n%s", from, lines, h.log.String())
	}
}
