package transport

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"fptps/gocore/wire"
)

// Connections are reset at any byte, also of handshakes, while all nodes send to all: every byte arrives once, and in order.
func TestEveryByteArrivesOnceAcrossBreaks(t *testing.T) {
	enduring(t, func(t *testing.T) {
		for _, tc := range exchanges {
			t.Run(tc.name, func(t *testing.T) {
				var all []*flaky
				nodes := tc.run(t, func(n *node, rng *rand.Rand) { all = append(all, wear(t, n, rng, 40)) })
				var resets int64
				var resumed uint64
				for i, n := range nodes {
					resets += all[i].resets.Load()
					resumed += n.Stats().Resumed
				}
				t.Logf("%d resets, made again %d times on both sides", resets, resumed)
				if resets == 0 || resumed == 0 {
					t.Error("nothing broke")
				}
			})
		}
	})
}

// Each lane makes its own connections again.
func TestLanesAcrossBreaks(t *testing.T) {
	enduring(t, func(t *testing.T) {
		const lanes, runs = 3, 100
		rng := seeded(t, rand.Uint64())
		nodes, hs := laned(t, lanes, func(n *node) { wear(t, n, rng, 30) })
		for tensor := range uint32(runs) {
			for lane := range lanes {
				for i, n := range nodes {
					to := nodes[1-i].id
					n.Lane(lane).Send(to, Outgoing{Header: contrib(tensor, 0), Data: fill(make([]byte, 3*wire.PacketBytes), n.id, tensor)})
				}
			}
		}
		for lane, pair := range hs {
			for _, h := range pair {
				for i, a := range h.untilArrived(t, 3*runs) {
					if err := checkContent(a.peer, &a.header, a.payload); err != nil || a.header.Tensor != uint32(i/3) || a.header.Packet != uint32(i%3) {
						t.Fatalf("lane %d: tensor %d, packet %d in place %d, %v", lane, a.header.Tensor, a.header.Packet, i, err)
					}
				}
			}
		}
		if nodes[0].Stats().Resumed == 0 {
			t.Error("nothing broke")
		}
	})
}

// A connection that is made again, but breaks each time before anything arrives, is lost after a while.
func TestConnectionThatIsMadeAgainInVainIsLost(t *testing.T) {
	enduring(t, func(t *testing.T) {
		var f *flaky
		nodes := mesh(t, func(n *node) {
			n.futileTime = 50 * time.Millisecond
			if n.id == 8 {
				f = wear(t, n, seeded(t, 1), 1<<40)
			}
		}, 8, 9)
		f.mu.Lock()
		f.most = 500 // a handshake gets through, a packet does not
		f.mu.Unlock()
		f.breakAll()
		nodes[1].Send(8, Outgoing{Header: contrib(1, 0), Data: make([]byte, wire.PacketBytes)})
		if err := nodes[1].h.untilLost(t, 8); err == nil || !strings.Contains(err.Error(), "again and again for 50ms") {
			t.Errorf("lost with %v", err)
		}
	})
}

// What a node has sent is released without an answer; few packets are needed for that.
func TestAcknowledgementsRelease(t *testing.T) {
	enduring(t, func(t *testing.T) {
		const packets = 6400
		nodes := mesh(t, func(n *node) { n.h.arrived = func(arrival) error { return nil } }, 8, 9)
		var l ledger
		done := make(chan struct{}, 2)
		for _, size := range []int{packets * wire.PacketBytes, 1} {
			nodes[1].Send(8, Outgoing{Header: contrib(1, 0), Data: make([]byte, size), Owner: l.lend(func() { done <- struct{}{} })})
			<-done
		}
		acks := nodes[0].Stats().Acks
		if t.Logf("%d packets for %d", acks, packets); acks == 0 || acks > packets/8 {
			t.Errorf("%d acknowledgements for %d packets", acks, packets)
		}
		if s := nodes[1].Stats(); s.Acks != 0 || s.PacketsReceived != 0 {
			t.Errorf("acknowledgements were counted or acknowledged: %+v", s)
		}
	})
}

// Nothing is sent only to acknowledge where every packet has an answer, which does it: nearly always, the owner of a packet is released
// before the answer arrives.
func TestAnswersAcknowledge(t *testing.T) {
	enduring(t, func(t *testing.T) {
		const rounds = 500
		var l ledger
		var nodes []*node
		answered, before := make(chan struct{}), 0
		nodes = mesh(t, func(n *node) {
			n.h.arrived = func(a arrival) error {
				if n.id == 8 {
					n.Send(9, Outgoing{Header: contrib(1, 0), Data: make([]byte, 100)})
					return nil
				}
				if l.released.Load() == l.lent.Load() {
					before++
				}
				answered <- struct{}{}
				return nil
			}
		}, 8, 9)
		for range rounds {
			nodes[1].Send(8, Outgoing{Header: contrib(1, 0), Data: make([]byte, wire.PacketBytes), Owner: l.lend(nil)})
			<-answered
		}
		if acks := nodes[0].Stats().Acks; acks > rounds/10 || before < rounds/2 {
			t.Errorf("%d acknowledgements for %d packets, %d released before their answer", acks, rounds, before)
		}
	})
}

// A peer that has ended, on either side, is lost as soon as it or its listener refuses; nobody waits.
func TestPeerThatHasEndedIsLost(t *testing.T) {
	enduring(t, func(t *testing.T) {
		for ends := range 2 {
			nodes := mesh(t, func(n *node) { n.brokenTime = 10 * deadline }, 8, 9)
			left, gone := nodes[1-ends], nodes[ends]
			gone.Close()
			if err := left.h.untilLost(t, gone.id); err == nil || !strings.Contains(err.Error(), "could not be made again") || strings.Contains(err.Error(), "no answer within") || MayLive(err) {
				t.Errorf("node %d lost the other with %v", left.id, err)
			}
		}
	})
}

// Another process at the address of one that has ended is not taken for it.
func TestSuccessorIsNotThePeer(t *testing.T) {
	enduring(t, func(t *testing.T) {
		var f *flaky
		nodes := mesh(t, func(n *node) {
			if n.id == 8 {
				f = wear(t, n, seeded(t, 1), 0)
			}
		}, 8, 9)
		next := listen(t, 8, nil)
		next.Start(Identity{ID: 8, Incarnation: 99, Token: token}, map[uint32]uint64{9: incarnation(9)}, 0, next.h)
		f.mu.Lock()
		f.target = next.addr()
		f.mu.Unlock()
		f.breakAll()
		if err := nodes[1].h.untilLost(t, 8); err == nil || !strings.Contains(err.Error(), "this is server 0 (incarnation 63)") {
			t.Errorf("lost with %v", err)
		}
	})
}

// broken makes two nodes whose connection is broken, and cannot be made again: the front of both is silent. The queue of
// each has runs.
func broken(t *testing.T, l *ledger, prepare func(n *node)) []*node {
	var fronts []*flaky
	nodes := mesh(t, func(n *node) {
		fronts = append(fronts, wear(t, n, seeded(t, 1), 0))
		prepare(n)
	}, 8, 9)
	exchange(t, nodes[0], nodes[1])
	for _, f := range fronts {
		f.silent.Store(true)
	}
	for _, f := range fronts {
		f.breakAll()
	}
	ctx, cancel := soon()
	defer cancel()
	for i, n := range nodes {
		if err := n.waitUntil(ctx, func() bool { return len(n.mu.conns.order) == 0 || n.mu.conns.order[0].fd < 0 }); err != nil {
			t.Fatal(err)
		}
		sendBulk(n, nodes[1-i].id, l)
	}
	return nodes
}

func TestBrokenConnectionIsLostAfterAWhile(t *testing.T) {
	enduring(t, func(t *testing.T) {
		var l ledger
		nodes := broken(t, &l, func(n *node) { n.brokenTime = 20 * time.Millisecond })
		for i, n := range nodes {
			if err := n.h.untilLost(t, nodes[1-i].id); err == nil || !strings.Contains(err.Error(), "could not be made again: no answer within 20ms") || !MayLive(err) {
				t.Errorf("node %d: %v", n.id, err)
			}
		}
		l.check(t)
	})
}

// A broken connection ends at once by Drop, Close, or the end of a Goodbye's context, and releases what it has.
func TestBrokenConnectionEnds(t *testing.T) {
	enduring(t, func(t *testing.T) {
		for _, how := range []string{"drop", "close", "goodbye"} {
			var l ledger
			nodes := broken(t, &l, func(n *node) { n.brokenTime = 10 * deadline })
			ctx, cancel := context.WithCancel(context.Background())
			for i, n := range nodes {
				switch how {
				case "drop":
					if err := n.Drop(ctx, nodes[1-i].id); err != nil || len(n.h.ends) != 1 {
						t.Errorf("drop: %v, lost %v", err, n.h.ends)
					}
				case "close":
					n.Close()
				case "goodbye":
					cancel()
					n.Goodbye(ctx)
				}
			}
			cancel()
			l.check(t)
			for _, n := range nodes {
				n.Close()
				n.h.places.check(t)
			}
		}
	})
}

// A node leaves over a connection that breaks again and again: everything arrives, and the end is in order on both sides.
func TestGoodbyeAcrossBreaks(t *testing.T) {
	enduring(t, func(t *testing.T) {
		rng := seeded(t, rand.Uint64())
		for range 8 {
			var l ledger
			nodes := mesh(t, func(n *node) { wear(t, n, rng, 10) }, 8, 9)
			leaver := rng.IntN(2)
			left, gone := nodes[1-leaver], nodes[leaver]
			const runs = 20
			for tensor := range uint32(runs) {
				gone.Send(left.id, Outgoing{Header: contrib(tensor, 0), Data: fill(make([]byte, 5*wire.PacketBytes), gone.id, tensor), Owner: l.lend(nil)})
			}
			ctx, cancel := soon()
			gone.Goodbye(ctx)
			if ctx.Err() != nil {
				t.Error("the goodbye took until the deadline")
			}
			cancel()
			if err := left.h.untilLost(t, gone.id); err != nil {
				t.Errorf("lost with %v", err)
			}
			if err := gone.h.ends[left.id]; err != nil {
				t.Errorf("left with %v", err)
			}
			if n := len(left.h.untilArrived(t, 5*runs)); n != 5*runs {
				t.Errorf("%d packets of %d", n, 5*runs)
			}
			l.check(t)
		}
	})
}

// Nobody takes the end of a connection after a goodbye, of one side or of both, for a break.
func TestGoodbyeIsNoBreak(t *testing.T) {
	enduring(t, func(t *testing.T) {
		for both := range 2 {
			nodes := mesh(t, nil, 8, 9, 11)
			ctx, cancel := soon()
			var leaving sync.WaitGroup
			for _, n := range nodes[:1+2*both] {
				leaving.Go(func() { n.Goodbye(ctx) })
			}
			leaving.Wait()
			cancel()
			for _, n := range nodes {
				if s := n.Stats(); s.Rejected != 0 || s.Resumed != 0 {
					t.Errorf("%+v", s)
				}
			}
		}
	})
}

// The log has one line for a connection, however often it breaks.
func TestBreaksAreLoggedOnce(t *testing.T) {
	enduring(t, func(t *testing.T) {
		log := &lines{Handler: slog.DiscardHandler}
		var f *flaky
		nodes := mesh(t, func(n *node) {
			if n.id == 8 {
				f = wear(t, n, seeded(t, 1), 0)
			} else {
				n.config.Log = slog.New(log)
			}
		}, 8, 9)
		ctx, cancel := soon()
		defer cancel()
		for i := range uint64(3) {
			f.breakAll()
			if err := nodes[1].waitUntil(ctx, func() bool { return nodes[1].count.resumed.Load() > i && nodes[1].mu.conns.byPeer[8].fd >= 0 }); err != nil {
				t.Fatal(err)
			}
			exchange(t, nodes[0], nodes[1])
		}
		log.mu.Lock()
		defer log.mu.Unlock()
		if len(log.all) != 1 || !strings.Contains(log.all[0], "made again") {
			t.Errorf("logged %q", log.all)
		}
	})
}
