package cluster

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/van"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// resender is a ps-lite program with PS_RESEND=1: it keeps unacknowledged messages,
// acknowledges received ones, and sends every message twice.
type resender struct {
	t       *testing.T
	van     van.Van
	id      int
	mu      sync.Mutex
	pending map[uint64]bool // by signature
	got     []*pspb.Meta    // each once
	seen    map[uint64]bool
}

// sign is the signature as ps-lite's source has it: customer, sender, receiver, timestamp, request.
func sign(customer, from, to, timestamp int, request bool) uint64 {
	s := uint64(customer&0xffff)<<48 + uint64(from)<<40 + uint64(to)<<32 + uint64(timestamp)*2
	if request {
		s++
	}
	return s
}

func (r *resender) send(to int, m *pspb.Meta) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending[sign(int(m.GetCustomerId()), r.id, to, int(m.GetTimestamp()), m.GetRequest())] = true
	for range 2 {
		if err := r.van.Send(to, m); err != nil {
			r.t.Error(err)
		}
	}
}

// receive takes messages until the van closes.
func (r *resender) receive() {
	for {
		e, err := r.van.Receive()
		if err != nil {
			return
		}
		r.take(e)
	}
}

func (r *resender) take(e *van.Envelope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch c := e.Meta.GetControl(); {
	case c.GetCmd() == pspb.Ack:
		delete(r.pending, c.GetMsgSig())
	case c.GetCmd() == pspb.AddNode:
		r.got = append(r.got, e.Meta)
	case e.Meta.Timestamp == nil:
		r.t.Errorf("a message without a timestamp, at which ps-lite aborts: %v", e.Meta)
	default:
		s := sign(int(e.Meta.GetCustomerId()), e.From, r.id, int(e.Meta.GetTimestamp()), e.Meta.GetRequest())
		if err := r.van.Send(e.From, &pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.Ack), MsgSig: proto.Uint64(s)}}); err != nil {
			r.t.Error(err)
		}
		if !r.seen[s] {
			r.seen[s] = true
			r.got = append(r.got, e.Meta)
		}
	}
}

// A program that resends has everything acknowledged, by the scheduler and by a server, and none of it counts twice.
func TestResend(t *testing.T) {
	for seed := range uint64(10) {
		inBubble(t, seed, func(b *bench) {
			b.config.Resend, b.config.PSLite = true, true
			b.serve(1, 1)
			v := b.net.Van("peer")
			defer v.Close()
			port, err := v.Bind("peer", 0)
			if err != nil {
				t.Fatal(err)
			}
			r := &resender{t: t, van: v, id: wire.WorkerID(0), pending: map[uint64]bool{}, seen: map[uint64]bool{}}
			go r.receive()
			if err := v.Connect(wire.SchedulerID, "sched", schedulerPort); err != nil {
				t.Fatal(err)
			}
			me := plain(RoleWorker, "peer", 32767)
			me.Port = proto.Int32(int32(port))
			if err := v.Send(wire.SchedulerID, &pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.AddNode), Node: []*pspb.Node{me}}}); err != nil {
				t.Fatal(err)
			}
			s, err := b.join(context.Background(), RoleServer, "server", nil)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			v.Identify(r.id)
			r.mu.Lock()
			nodes := r.got[0]
			r.mu.Unlock()
			for _, n := range nodes.GetControl().GetNode() {
				if int(n.GetId()) != r.id {
					if err := v.Connect(int(n.GetId()), n.GetHostname(), int(n.GetPort())); err != nil {
						t.Fatal(err)
					}
				}
			}
			stamp := int32(0)
			stamped := func(m *pspb.Meta) *pspb.Meta {
				stamp++
				m.Timestamp, m.CustomerId = proto.Int32(stamp), proto.Int32(0)
				return m
			}
			b.each(2, func(i int) error {
				if i == 0 {
					return awaitBarrier(s, AllGroup)
				}
				r.send(wire.SchedulerID, stamped(barrierMessage(AllGroup, 0, 0, true)))
				return nil
			})
			r.send(wire.SchedulerID, stamped(&pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.Heartbeat), Node: []*pspb.Node{me}}}))
			for head := range int32(3) {
				r.send(s.View().Self, stamped(&pspb.Meta{Head: proto.Int32(head), AppId: proto.Int32(0), Request: proto.Bool(true)}))
			}
			if err := s.Send(r.id, &pspb.Meta{Head: proto.Int32(9), AppId: proto.Int32(0), Timestamp: proto.Int32(4)}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.pending) > 0 {
				t.Errorf("%d messages were not acknowledged", len(r.pending))
			}
			if got := b.records[s].letters(); !slices.Equal(got, []string{`worker 0: 0 []`, `worker 0: 1 []`, `worker 0: 2 []`}) {
				t.Errorf("the server got %q", got)
			}
			if len(r.got) != 4 { // the nodes, the barrier, the heartbeat, the server's
				t.Errorf("the program got %v", r.got)
			}
			s.Close()
			b.runner.Close()
			if strays := b.runner.scheduler.Counts().Strays + s.strays; strays > 0 {
				t.Errorf("%d of the program's messages were taken for a stranger's", strays)
			}
		})
	}
}

// What is remembered of a sender is bounded, and enough for all that it may send again.
func TestRecentSignaturesAreBounded(t *testing.T) {
	a := newAcks(true, 1)
	for n := range uint64(10 * maxRecent) {
		if a.remember(9, n) {
			t.Fatalf("%d is new", n)
		}
		if n >= maxRecent && !a.remember(9, n-maxRecent+1) {
			t.Fatalf("%d is forgotten already", n)
		}
	}
	if r := a.recent[9]; len(r.now)+len(r.before) > 2*maxRecent {
		t.Errorf("%d are remembered", len(r.now)+len(r.before))
	}
	if a.forget(9); a.remember(9, 10*maxRecent-1) {
		t.Error("the successor's message is taken for the dead one's")
	}
}
