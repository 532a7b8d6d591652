package transport

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"fptps/gocore/wire"
)

// kept is compared with a list of all packets; the counts wrap around.
func TestKept(t *testing.T) {
	rng := seeded(t, rand.Uint64())
	for range 200 {
		base := rng.Uint32()
		if rng.IntN(2) == 0 {
			base = -rng.Uint32N(1000)
		}
		k := kept{base: base, seen: base}
		var all []packet
		popped, said := 0, 0
		for range rng.IntN(3000) {
			switch rng.IntN(3) {
			case 0:
				all = append(all, packet{index: len(all)})
				k.push(all[len(all)-1])
			case 1:
				writing := rng.IntN(3)
				claim := rng.IntN(len(all)+5) - 1
				err := k.acknowledge(base+uint32(claim), writing)
				if good := claim >= popped && claim <= len(all)+writing; (err == nil) != good {
					t.Fatalf("%d of %d to %d and %d being written: %v", claim, popped, len(all), writing, err)
				} else if good {
					said = claim
				}
			case 2:
				want := said > popped && popped < len(all)
				if k.acknowledged() != want {
					t.Fatalf("acknowledged %v with %d popped, %d said, %d in all", !want, popped, said, len(all))
				}
				p, ok := k.pop()
				if ok != want || ok && p != all[popped] {
					t.Fatalf("popped %v, %v at %d", p, ok, popped)
				} else if ok {
					popped++
				}
			}
			if k.len() != len(all)-popped || cap(k.packets) > 4*len(all)+64 {
				t.Fatalf("%d are kept of %d less %d, in room for %d", k.len(), len(all), popped, cap(k.packets))
			}
		}
	}
}

// ack is an acknowledgement of so many packets.
func ack(received uint32) []byte {
	return packetBytes(wire.Header{Kind: wire.Ack, Received: received}, 0)
}

// A peer that acknowledges what was never sent is lost, and nothing else happens.
func TestFalseAcknowledgements(t *testing.T) {
	counted := contrib(1, 0)
	counted.Received = 1 << 31
	for name, tc := range map[string]struct {
		endures bool
		bytes   []byte
		says    string
	}{
		"one too many":           {true, ack(batchPackets + 1), "acknowledges"},
		"less than before":       {true, append(ack(1), ack(0)...), "acknowledges"},
		"most":                   {true, ack(1<<32 - 1), "acknowledges"},
		"with a packet":          {true, packetBytes(counted, 10), "acknowledges"},
		"where there are none":   {false, ack(0), "not made again"},
		"packet where none are":  {false, packetBytes(counted, 10), "not made again"},
		"goodbye where none are": {false, packetBytes(wire.Header{Kind: wire.Goodbye, Received: 1}, 0), "not made again"},
	} {
		t.Run(name, func(t *testing.T) {
			kitEndures = tc.endures
			defer func() { kitEndures = false }()
			var l ledger
			server := listen(t, 8, nil)
			server.start(9)
			c := puppet(t, server, 9)
			server.Send(9, Outgoing{Header: contrib(1, 0), Data: make([]byte, 10), Owner: l.lend(nil)})
			if _, err := io.ReadFull(c, make([]byte, wire.HeaderBytes+10)); err != nil {
				t.Fatal(err)
			}
			c.Write(tc.bytes)
			if err := server.h.untilLost(t, 9); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("lost with %v", err)
			}
			if n := server.Stats().Malformed; n != 1 {
				t.Errorf("%d connections counted as malformed", n)
			}
			l.check(t)
		})
	}
}

// resume sends the Hello of a puppet that makes its connection again.
func resume(t *testing.T, n *node, change func(*wire.Hello)) (*net.TCPConn, error) {
	c := connect(t, n)
	h := helloTo(n, 9)
	h.Purpose, h.Socket = wire.Resume, 1
	change(&h)
	return c, shake(c, h)
}

// Handshakes that do not fit the connection are refused. The connection breaks at most, and can be made again then.
func TestFalseResumptions(t *testing.T) {
	enduring(t, func(t *testing.T) {
		server := listen(t, 8, func(n *node) { n.brokenTime = deadline })
		stranger, other := listen(t, 9, nil), listen(t, 11, nil) // the listeners of the puppets
		server.Endure(map[uint32]string{9: stranger.addr(), 11: other.addr()})
		server.start(9, 11)
		stranger.listener.Close() // and so nobody answers there; but the kernel would refuse
		held, err := net.Listen("tcp", stranger.addr())
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		puppet(t, server, 9).Write(packetBytes(contrib(1, 0), 10)) // else a new connection would take its place
		server.h.untilArrived(t, 1)
		for name, tc := range map[string]struct {
			change func(*wire.Hello)
			says   string
		}{
			"a number too large":    {func(h *wire.Hello) { h.Received = 1; h.Socket = 2 }, "acknowledges"},
			"no connection":         {func(h *wire.Hello) { h.ID, h.Incarnation = 11, incarnation(11) }, "no connection with worker 1"},
			"an older socket":       {func(h *wire.Hello) { h.Socket = 0 }, "newer connection"},
			"the socket before all": {func(h *wire.Hello) { h.Socket = 1<<16 - 1 }, "newer connection"},
			"another incarnation":   {func(h *wire.Hello) { h.Incarnation++ }, "restarted"},
			"a new connection":      {func(h *wire.Hello) { h.Purpose = wire.Endure }, "a connection already"},
			"a plain connection":    {func(h *wire.Hello) { h.Purpose = wire.Connect }, "FPTPS_RECOVERY"},
			"the other side":        {func(h *wire.Hello) { h.Purpose = wire.Wake }, "no connection with worker 0"},
		} {
			if _, err := resume(t, server, tc.change); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: %v", name, err)
			}
		}
		server.Send(9, Outgoing{Header: contrib(1, 0), Data: fill(make([]byte, 10), 8, 1)})
		c, err := resume(t, server, func(h *wire.Hello) { h.Socket = 3 })
		if err != nil {
			t.Fatal(err)
		}
		h, b := wire.Header{Kind: wire.Ack}, make([]byte, wire.HeaderBytes+10)
		for err == nil && h.Kind == wire.Ack { // of the packet above
			if _, err = io.ReadFull(c, b[:wire.HeaderBytes]); err == nil {
				err = h.Get(b)
			}
		}
		if err == nil {
			_, err = io.ReadFull(c, b[wire.HeaderBytes:])
		}
		if err != nil || h.Kind != wire.Contrib || string(b[wire.HeaderBytes:]) != string(fill(make([]byte, 10), 8, 1)) {
			t.Errorf("%x came, %v", b, err)
		}
	})
}

// To a peer that acknowledges nothing a node sends a bounded number of packets, and goes on when they are acknowledged. Acknowledgements
// of its own are not held back.
func TestNoMoreIsKeptThanTheBound(t *testing.T) {
	enduring(t, func(t *testing.T) {
		const packets = 3 * keptPackets
		var l ledger
		released := make(chan struct{}, packets)
		server := listen(t, 8, nil)
		server.start(9)
		c := puppet(t, server, 9)
		for range packets {
			server.Send(9, Outgoing{Header: contrib(1, 0), Data: make([]byte, 1), Owner: l.lend(func() { released <- struct{}{} })})
		}
		next := func() wire.Header {
			var b [wire.HeaderBytes + 1]byte
			var h wire.Header
			if _, err := io.ReadFull(c, b[:wire.HeaderBytes]); err != nil {
				t.Fatal(err)
			}
			if err := h.Get(b[:]); err != nil {
				t.Fatal(err)
			}
			io.ReadFull(c, b[:h.WireLen])
			return h
		}
		for range keptPackets {
			next()
		}
		c.Write(packetBytes(contrib(2, 0), 10))
		more := 0
		for ; next().Kind != wire.Ack; more++ {
			if more > batchPackets {
				t.Fatal("more is sent than the bound")
			}
		}
		if n := l.released.Load(); n != 0 {
			t.Errorf("%d are released", n)
		}
		for got := uint32(keptPackets + more); got < packets; got++ {
			if got%keptPackets == uint32(more) {
				c.Write(ack(got))
			}
			next()
		}
		c.Write(ack(packets))
		for range packets {
			<-released
		}
		l.check(t)
	})
}

// Without the setting the counts of headers are 0, and no packet is kept.
func TestNothingIsKeptWithoutTheSetting(t *testing.T) {
	nodes := mesh(t, func(n *node) {
		n.h.arrived = func(a arrival) error {
			if a.header.Received != 0 {
				return fmt.Errorf("a count of %d", a.header.Received)
			}
			n.h.note(func() { n.h.arrivals = append(n.h.arrivals, a) })
			return nil
		}
	}, 8, 9)
	for i := range uint32(200) {
		nodes[1].Send(8, Outgoing{Header: contrib(i, 0), Data: make([]byte, 100)})
		nodes[0].Send(9, Outgoing{Header: contrib(i, 0), Data: make([]byte, 100)})
	}
	for _, n := range nodes {
		n.h.untilArrived(t, 200)
		n.mu.Lock()
		if s := n.mu.conns.order[0].session; s != nil || n.count.acks.Load() != 0 {
			t.Errorf("session %+v, %d acknowledgements", s, n.count.acks.Load())
		}
		n.mu.Unlock()
	}
}
