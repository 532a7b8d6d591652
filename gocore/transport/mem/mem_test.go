package mem

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// node is a Handler that records all its calls.
type node struct {
	t      *testing.T
	log    []string
	bytes  []byte // payloads in the order of arrival
	ticks  []time.Time
	failed []error

	arrive func(h *wire.Header) error // nil: fine
	place  func(h *wire.Header) error
}

func (n *node) Place(_ uint32, h *wire.Header) (transport.Destination, error) {
	if n.place != nil {
		if err := n.place(h); err != nil {
			return transport.Destination{}, err
		}
	}
	return transport.Destination{Bytes: make([]byte, h.WireLen)}, nil
}

func (n *node) Arrived(peer uint32, h *wire.Header, l transport.Destination) error {
	n.bytes = append(n.bytes, l.Bytes...)
	return n.note(fmt.Sprint(peer), h, len(l.Bytes))
}

func (n *node) Local(h *wire.Header, payload []byte) error {
	n.bytes = append(n.bytes, payload...)
	return n.note("local", h, len(payload))
}

func (n *node) note(from string, h *wire.Header, bytes int) error {
	if int(h.WireLen) != bytes {
		n.t.Errorf("%d bytes for a header of %d", bytes, h.WireLen)
	}
	n.log = append(n.log, fmt.Sprintf("%s:%d.%d", from, h.Tensor, h.Packet))
	if n.arrive != nil {
		return n.arrive(h)
	}
	return nil
}

func (n *node) Lost(uint32, error) { n.t.Error("Lost") }
func (n *node) Tick(now time.Time) { n.ticks = append(n.ticks, now) }
func (n *node) Failed(err error)   { n.failed = append(n.failed, err) }
func (n *node) calls() string      { return strings.Join(n.log, " ") }
func (n *node) join(net *Network, id uint32) *Plane {
	p := net.Join(id)
	p.Attach(n)
	return p
}

// owner counts its releases.
type owner struct{ released atomic.Int32 }

func (o *owner) Release() { o.released.Add(1) }

// outgoing makes a tensor with the given number of packets. Its data has no period, so that a wrong offset shows.
func outgoing(tensor uint32, packets int) (transport.Outgoing, *owner) {
	rng := rand.New(rand.NewPCG(uint64(tensor), 0))
	m := transport.Outgoing{Header: wire.Header{Kind: wire.Contrib, DType: wire.Uint8, Tensor: tensor, Packet: 2, Run: 1}}
	if packets == 0 {
		m.Header.Kind, m.Header.RawLen = wire.Empty, 1
	} else {
		m.Data = make([]byte, (packets-1)*wire.PacketBytes+3)
		for i := range m.Data {
			m.Data[i] = byte(rng.Uint32())
		}
	}
	o := &owner{}
	m.Owner = o
	return m, o
}

// Without pick, packets arrive in the order of Send, complete and once.
func TestOldestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := New(nil)
		a, b := &node{t: t}, &node{t: t}
		planeA := a.join(net, 1)
		b.join(net, 2)
		m3, o3 := outgoing(3, 3)
		m4, o4 := outgoing(4, 0)
		m5, o5 := outgoing(5, 1)
		planeA.Send(2, m3)
		planeA.Send(2, m4)
		planeA.Send(1, m5)
		planeA.Send(2, m5)
		synctest.Wait()
		if got := b.calls(); got != "1:3.2 1:3.3 1:3.4 1:4.2 1:5.2" {
			t.Errorf("the peer hears %q", got)
		}
		if got := a.calls(); got != "local:5.2" || !bytes.Equal(a.bytes, m5.Data) {
			t.Errorf("the sender hears %q", got)
		}
		if !bytes.Equal(b.bytes, slices.Concat(m3.Data, m5.Data)) {
			t.Error("the bytes have changed on the way")
		}
		net.Close()
		net.Close() // again does no harm
		if o3.released.Load() != 1 || o4.released.Load() != 1 || o5.released.Load() != 2 {
			t.Errorf("released %d, %d, %d times", o3.released.Load(), o4.released.Load(), o5.released.Load())
		}
	})
}

// pick determines the order, also within one connection.
func TestPickChooses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := make(chan bool)
		first := true
		net := New(func(n int) int {
			if first {
				<-start
				first = false
			}
			return n - 1
		})
		a := &node{t: t}
		plane := a.join(net, 1)
		hold := &node{t: t}
		hold.join(net, 2)
		m, _ := outgoing(3, 1)
		hold.arrive = func(*wire.Header) error { // the first packet blocks the loop until all are queued
			for tensor, packets := range []int{1, 2, 0} {
				m, _ := outgoing(uint32(tensor), packets)
				plane.Send(1, m)
			}
			return nil
		}
		close(start)
		plane.Send(2, m)
		synctest.Wait()
		if got := a.calls(); got != "local:2.2 local:1.2 local:1.3 local:0.2" {
			t.Errorf("heard %q", got)
		}
		net.Close()
	})
}

// Close releases each owner once, whether all, some or none of its packets were
// delivered, or its destination is unknown.
func TestCloseReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := New(nil)
		inside, leave := make(chan bool), make(chan bool)
		a := &node{t: t}
		var owners []*owner
		a.arrive = func(h *wire.Header) error {
			if owners[h.Tensor].released.Load() != 0 {
				t.Errorf("the owner of tensor %d is released before the handler has its packet %d", h.Tensor, h.Packet)
			}
			if h.Tensor == 1 && h.Packet == 3 {
				close(inside)
				<-leave
			}
			return nil
		}
		plane := a.join(net, 1)
		send := func(to uint32, packets int) {
			m, o := outgoing(uint32(len(owners)), packets)
			owners = append(owners, o)
			plane.Send(to, m)
			synctest.Wait()
		}
		send(1, 1) // delivered
		send(1, 4) // delivered in part
		send(1, 2)
		send(1, 0)
		send(7, 1) // to an unknown node
		<-inside
		closed := make(chan bool)
		go func() {
			net.Close()
			close(closed)
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close does not wait for the handler")
		default:
		}
		close(leave)
		<-closed
		send(1, 1) // after Close
		for i, o := range owners {
			if n := o.released.Load(); n != 1 {
				t.Errorf("owner %d is released %d times", i, n)
			}
		}
		if got := a.calls(); got != "local:0.2 local:1.2 local:1.3" {
			t.Errorf("heard %q", got)
		}
		if len(net.mu.nodes) != 0 {
			t.Error("the network still refers to its handlers")
		}
	})
}

// A panic or an error in a handler ends the network: everything is released, then
// Failed is called once on every node, and nothing more.
func TestBroken(t *testing.T) {
	for _, c := range []struct {
		name  string
		local bool
		want  string
		spoil func(n *node)
	}{
		{"panic in Local", true, "injected", func(n *node) { n.arrive = func(*wire.Header) error { panic("injected") } }},
		{"panic in Arrived", false, "injected", func(n *node) { n.arrive = func(*wire.Header) error { panic("injected") } }},
		{"panic in Place", false, "injected", func(n *node) { n.place = func(*wire.Header) error { panic("injected") } }},
		{"error of Local", true, "refused", func(n *node) { n.arrive = func(*wire.Header) error { return errors.New("refused") } }},
		{"error of Arrived", false, "refused", func(n *node) { n.arrive = func(*wire.Header) error { return errors.New("refused") } }},
		{"error of Place", false, "refused", func(n *node) { n.place = func(*wire.Header) error { return errors.New("refused") } }},
	} {
		for _, packets := range []int{1, 2} { // the last of a run, or in its middle
			t.Run(fmt.Sprint(c.name, " of ", packets), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					net := New(nil)
					a, b := &failing{node: node{t: t}}, &failing{node: node{t: t}}
					plane := net.Join(1)
					plane.Attach(a)
					net.Join(2).Attach(b)
					to := uint32(2)
					c.spoil(&b.node)
					if c.local {
						to = 1
						c.spoil(&a.node)
					}
					first, o1 := outgoing(1, packets)
					second, o2 := outgoing(2, 1)
					a.owners, b.owners = []*owner{o1, o2}, []*owner{o1, o2}
					plane.network.mu.Lock() // so that both are queued
					plane.network.mu.queue = append(plane.network.mu.queue, &run{1, to, first, 0}, &run{1, to, second, 0})
					plane.network.mu.wake.Signal()
					plane.network.mu.Unlock()
					synctest.Wait()
					third, o3 := outgoing(3, 1)
					plane.Send(2, third)
					net.Close()
					for i, n := range []*failing{a, b} {
						if len(n.failed) != 1 || !strings.Contains(n.failed[0].Error(), c.want) || !strings.Contains(n.failed[0].Error(), "the data plane broke") {
							t.Errorf("node %d hears %v", i+1, n.failed)
						}
					}
					for i, o := range []*owner{o1, o2, o3} {
						if n := o.released.Load(); n != 1 {
							t.Errorf("owner %d is released %d times", i+1, n)
						}
					}
				})
			})
		}
	}
}

// failing checks in Failed that everything was released, and panics: Failed must be
// called on the other nodes nevertheless.
type failing struct {
	node
	owners []*owner
}

func (n *failing) Failed(err error) {
	n.node.Failed(err)
	for i, o := range n.owners {
		if o.released.Load() != 1 {
			n.t.Errorf("owner %d is not released when Failed comes", i+1)
		}
	}
	panic("Failed panics too")
}

// Tick is called every second, also while packets arrive without a pause.
func TestTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := New(nil)
		a, b := &node{t: t}, &node{t: t}
		start := time.Now()
		plane := a.join(net, 1)
		b.join(net, 2)
		time.Sleep(3500 * time.Millisecond) // virtual
		synctest.Wait()
		busy := 0
		a.arrive = func(*wire.Header) error { // every packet sends another packet
			if busy++; busy < 1000 {
				time.Sleep(10 * time.Millisecond)
				m, _ := outgoing(1, 0)
				plane.Send(1, m)
			}
			return nil
		}
		m, _ := outgoing(1, 0)
		plane.Send(1, m)
		time.Sleep(10 * time.Second)
		net.Close()
		time.Sleep(5 * time.Second) // nothing after Close
		for i, n := range []*node{a, b} {
			if len(n.ticks) < 12 || len(n.ticks) > 13 {
				t.Errorf("node %d: %d ticks in 13.5 s", i+1, len(n.ticks))
			}
			for k, at := range n.ticks {
				if late := at.Sub(start) - time.Duration(k+1)*time.Second; late < 0 || late > 20*time.Millisecond {
					t.Errorf("node %d: tick %d is late by %v", i+1, k, late)
				}
			}
		}
	})
}
