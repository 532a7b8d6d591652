package transport

import (
	"testing"

	"fptps/gocore/wire"
)

func TestPacketsArriveWholeAndInOrder(t *testing.T) {
	overTCPAndShm(t, testPacketsArriveWholeAndInOrder)
}

func testPacketsArriveWholeAndInOrder(t *testing.T) {
	nodes := mesh(t, nil, 8, 9)
	server, worker := nodes[0], nodes[1]
	var l ledger
	data := fill(make([]byte, 3*wire.PacketBytes+5), 9, 1)
	worker.Send(8, Outgoing{Header: contrib(1, 0), Data: data, Owner: l.lend(nil)})
	for i, a := range server.h.untilArrived(t, 4) {
		if a.peer != 9 || a.header.Packet != uint32(i) || a.header.Tensor != 1 || a.header.RawLen != a.header.WireLen {
			t.Errorf("arrival %d is %+v of node %d", i, a.header, a.peer)
		}
		if err := checkContent(9, &a.header, a.payload); err != nil {
			t.Error(err)
		}
	}
	worker.Close()
	server.Close()
	l.check(t)
	server.h.places.check(t)
}
