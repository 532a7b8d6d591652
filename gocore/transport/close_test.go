package transport

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// Nodes that exchange fragmented data are closed, or leave by Goodbye, after a random number
// of events: every Owner is released once.
func TestCloseReleasesEveryOwnerOnce(t *testing.T) { overTCPAndShm(t, testCloseReleasesEveryOwnerOnce) }

func testCloseReleasesEveryOwnerOnce(t *testing.T) {
	seed := rand.Uint64()
	rng := seeded(t, seed)
	for round := range 40 {
		var l ledger
		var events, limit = make(chan struct{}, 1<<20), rng.IntN(400)
		event := func() {
			select {
			case events <- struct{}{}:
			default:
			}
		}
		nodes := mesh(t, func(n *node) {
			fragmented(n, seed+uint64(round))
			n.h.arrived = func(a arrival) error {
				event()
				if a.header.Priority < 3 { // answers, some of them to the node itself
					to := []uint32{8, 9, 11}[a.header.Packet%3]
					n.Send(to, Outgoing{Header: contrib(1, a.header.Priority+1), Data: make([]byte, 100_000), Owner: l.lend(event)})
				}
				return nil
			}
		}, 8, 9, 11)
		var work sync.WaitGroup
		for _, n := range nodes {
			work.Go(func() {
				for i := range 20 {
					n.Send([]uint32{8, 9, 11}[i%3], Outgoing{Header: contrib(2, 0), Data: make([]byte, 40_000), Owner: l.lend(event)})
				}
			})
		}
		for range limit {
			<-events
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		for _, n := range nodes {
			how := rng.IntN(3)
			work.Go(func() {
				switch how {
				case 0:
					n.Goodbye(ctx)
				case 1:
					go n.Close()
					n.Close()
				case 2:
					n.Close()
				}
			})
		}
		work.Wait()
		l.check(t)
		for _, n := range nodes {
			n.h.places.check(t)
			if n.h.failure != nil {
				t.Errorf("node %d failed: %v", n.id, n.h.failure)
			}
			if n.handler != nil {
				t.Errorf("node %d still refers to its handler", n.id)
			}
		}
		if t.Failed() {
			t.Fatalf("after %d events", limit)
		}
	}
}

func TestCloseWithoutStart(t *testing.T) {
	n := listen(t, 8, nil)
	n.Close()
	n.Close()
	n.start()
	var l ledger
	n.Send(8, Outgoing{Header: contrib(1, 0), Owner: l.lend(nil)})
	n.Send(9, Outgoing{Header: contrib(1, 0), Owner: l.lend(nil)})
	n.Send(9, Outgoing{Header: contrib(1, 0)})
	l.check(t)
}

// A panic anywhere fails the data plane cleanly: the panic does not escape, everything is
// released, and Failed is the last call.
func TestPanics(t *testing.T) { overTCPAndShm(t, testPanics) }

func testPanics(t *testing.T) {
	burst := func() { panic("burst") }
	ignore := func(arrival) error { return nil }
	atLocal := func(f func() error) func(arrival) error {
		return func(a arrival) error {
			if a.peer == 8 {
				return f()
			}
			return nil
		}
	}
	for _, tc := range []struct {
		name    string
		prepare func(h *recorder)
		to      uint32 // where a run goes whose release panics
	}{
		{"place", func(h *recorder) {
			h.place = func(uint32, *wire.Header) (Destination, error) { panic("burst") }
		}, 0},
		{"arrived", func(h *recorder) { h.arrived = func(arrival) error { panic("burst") } }, 0},
		{"local", func(h *recorder) { h.arrived = atLocal(func() error { panic("burst") }) }, 0},
		{"local error", func(h *recorder) { h.arrived = atLocal(func() error { return errors.New("burst") }) }, 0},
		{"lost", func(h *recorder) { h.lost = func(uint32, error) { panic("burst") } }, 0},
		{"release in the send loop", func(h *recorder) { h.arrived = ignore }, 9},
		{"release in the receive loop", func(h *recorder) { h.arrived = ignore }, 8},
		{"release at the end of a connection", func(h *recorder) { h.arrived = ignore }, 11},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var l ledger
			nodes := mesh(t, func(n *node) {
				n.puppets = []uint32{11}
				if n.id == 8 {
					tc.prepare(n.h)
				}
			}, 8, 9)
			server, worker := nodes[0], nodes[1]
			c := puppet(t, server, 11)
			sendBulk(server, 11, &l) // never read
			if tc.to != 0 {
				server.Send(tc.to, Outgoing{Header: contrib(5, -9), Data: make([]byte, 9), Owner: l.lend(burst)})
			}
			for i := range uint32(10) {
				for _, to := range []uint32{8, 9} {
					server.Send(to, Outgoing{Header: contrib(i, 0), Data: make([]byte, 70_000), Owner: l.lend(nil)})
				}
				worker.Send(8, Outgoing{Header: contrib(i, 0), Data: make([]byte, 70_000)})
			}
			c.CloseWrite()
			server.h.until(t, "Failed", func() bool { return server.h.failure != nil })
			if err := server.h.failure; !strings.Contains(err.Error(), "burst") {
				t.Errorf("failure %v", err)
			}
			l.check(t)
			untilClosed(t, c)
			worker.h.untilLost(t, 8)
			server.Send(9, Outgoing{Header: contrib(1, 0), Owner: l.lend(nil)})
			err := server.Await(context.Background(), []uint32{9})
			if fault.CodeOf(err) != fault.Internal || !strings.Contains(err.Error(), "burst") {
				t.Errorf("Await: %v", err)
			}
			server.Close()
			l.check(t)
			server.h.places.check(t)
			if server.h.after {
				t.Error("a call came after Failed")
			}
		})
	}
}
