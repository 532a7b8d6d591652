package transport

import (
	"testing"

	"fptps/gocore/wire"
)

// A successor replaces a dead node: the old connection ends at once, its packets are released, Lost is called once, and only
// the successor's incarnation is accepted.
func TestReplacement(t *testing.T) {
	overTCPAndShm(t, func(t *testing.T) {
		nodes := mesh(t, nil, 8, 9)
		server, old := nodes[0], nodes[1]
		ctx, cancel := soon()
		defer cancel()
		var owners ledger
		for range 100 {
			server.Send(9, Outgoing{Header: contrib(1, 0), Data: make([]byte, wire.PacketBytes), Owner: owners.lend(nil)})
		}
		if err := server.Drop(ctx, 9); err != nil {
			t.Fatal(err)
		}
		server.h.mu.Lock()
		err, told := server.h.ends[9], len(server.h.ends) == 1
		server.h.ends = map[uint32]error{}
		server.h.mu.Unlock()
		if !told || err == nil {
			t.Errorf("told %v: %v", told, err)
		}
		owners.check(t)
		old.h.untilLost(t, 8)
		if err := old.Dial(ctx, 8, incarnation(8), server.addr()); err == nil {
			t.Error("the old one is let in again")
		}
		if err := server.Drop(ctx, 9); err != nil { // there is none
			t.Error(err)
		}

		next := listen(t, 9, nil)
		next.Start(Identity{ID: 9, Incarnation: 99, Token: token}, nil, 0, next.h)
		if err := next.Dial(ctx, 8, incarnation(8), server.addr()); err == nil {
			t.Error("the new one is let in before it is expected")
		}
		server.Expect(9, 99)
		if err := next.Dial(ctx, 8, incarnation(8), server.addr()); err != nil {
			t.Fatal(err)
		}
		next.Send(8, Outgoing{Header: contrib(2, 0), Data: fill(make([]byte, 100), 9, 2)})
		if a := server.h.untilArrived(t, 1); checkContent(9, &a[0].header, a[0].payload) != nil {
			t.Error("other bytes")
		}
	})
}
