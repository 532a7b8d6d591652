package transport

import (
	"sync"
	"testing"
)

func TestTrafficByPeer(t *testing.T) {
	overTCPAndShm(t, func(t *testing.T) {
		nodes := mesh(t, nil, 8, 9, 11)
		var l ledger
		var released sync.WaitGroup
		sizes := map[uint32]int{9: 1000, 11: 500}
		for peer, size := range sizes {
			released.Add(1)
			nodes[0].Send(peer, Outgoing{Header: contrib(1, 0), Data: fill(make([]byte, size), 8, 1), Owner: l.lend(released.Done)})
		}
		released.Wait() // an owner gets its memory back when the bytes are counted
		for _, n := range nodes[1:] {
			n.h.untilArrived(t, 1)
			if got, want := n.Traffic()[8], uint64(sizes[n.id]); got.Received != want || got.Sent != 0 || got.Remote {
				t.Errorf("node %d has %+v with the sender, want %d bytes received", n.id, got, want)
			}
		}
		for peer, size := range sizes {
			if got := nodes[0].Traffic()[peer]; got.Sent != uint64(size) || got.Received != 0 {
				t.Errorf("the sender has %+v with %d, want %d bytes sent", got, peer, size)
			}
		}
		if got := nodes[0].Stats().BytesSent; got != 1500 {
			t.Errorf("%d bytes sent in all", got)
		}
	})
}

func TestTalliesOutliveConnections(t *testing.T) {
	var p peers
	p.of(8, false).sent.Add(1)
	p.of(8, true).received.Add(2) // its connection was made anew
	p.of(9, true).sent.Add(4)
	if sent, received := p.total(); sent != 5 || received != 2 {
		t.Errorf("%d sent, %d received", sent, received)
	}
	if !p.of(8, true).remote.Load() {
		t.Error("peer 8 counts as one of this host")
	}
}
