package ps

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/cluster"
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

func newHub(t *testing.T, workers, servers int) *hub {
	h := &hub{t: t, offices: map[int]*Office{}}
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
	}
	return h
}

// deliver brings everything that was sent, and what is sent because of it.
func (h *hub) deliver() {
	for {
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
			if e, ok := s.customer.take(); ok {
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
