package transport

import (
	"fmt"
	"slices"
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// laned makes two nodes with so many lanes, each with a connection in every one; the
// handlers of lane i are in hs[i].
func laned(t *testing.T, lanes int, prepare ...func(*node)) (nodes [2]*node, hs [][2]*recorder) {
	ids := [2]uint32{8, 9}
	for i, id := range ids {
		nodes[i] = listen(t, id, nil)
		if err := nodes[i].Divide(lanes); err != nil {
			t.Fatal(err)
		}
		for _, p := range prepare {
			p(nodes[i])
		}
	}
	if kitEndures {
		for _, n := range nodes {
			n.Endure(map[uint32]string{8: nodes[0].dialed(), 9: nodes[1].dialed()})
		}
	}
	for range lanes {
		hs = append(hs, [2]*recorder{newRecorder(8), newRecorder(9)})
	}
	for i, n := range nodes {
		var handlers []Handler
		for _, h := range hs {
			handlers = append(handlers, h[i])
		}
		n.Start(Identity{ID: n.id, Incarnation: incarnation(n.id), Token: token}, map[uint32]uint64{9: incarnation(9)}, 0, handlers...)
	}
	ctx, cancel := soon()
	defer cancel()
	for lane := range lanes {
		if err := nodes[1].Lane(lane).Dial(ctx, 8, incarnation(8), nodes[0].dialed()); err != nil {
			t.Fatal(err)
		}
		if err := nodes[0].Lane(lane).Await(ctx, []uint32{9}); err != nil {
			t.Fatal(err)
		}
	}
	return nodes, hs
}

// What is sent in a lane arrives in it, whatever is queued in the others; to the node
// itself too. Counters, sockets and the end are of all lanes.
func TestLanes(t *testing.T) { overTCPAndShm(t, testLanes) }

func testLanes(t *testing.T) {
	const lanes = 3
	nodes, hs := laned(t, lanes)
	data := func(from, lane uint32) []byte { return fill(make([]byte, 5*wire.PacketBytes+77), from, lane) }
	for lane := range uint32(lanes) {
		nodes[0].Lane(int(lane)).Send(9, Outgoing{Header: contrib(lane, 0), Data: data(8, lane)})
		nodes[1].Lane(int(lane)).Send(8, Outgoing{Header: contrib(lane, 0), Data: data(9, lane)})
		nodes[1].Lane(int(lane)).Send(9, Outgoing{Header: contrib(lane, 0), Data: data(9, lane)})
	}
	for lane, pair := range hs {
		for i, want := range []int{6, 12} {
			for _, a := range pair[i].untilArrived(t, want) {
				if err := checkContent(a.peer, &a.header, a.payload); err != nil || int(a.header.Tensor) != lane {
					t.Errorf("lane %d: tensor %d, %v", lane, a.header.Tensor, err)
				}
			}
		}
	}
	if s := nodes[0].Stats(); s.Lanes != lanes || s.PacketsReceived != 6*lanes {
		t.Errorf("%d lanes and %d packets are counted, expected %d and %d", s.Lanes, s.PacketsReceived, lanes, 6*lanes)
	}
	fds := nodes[1].Sockets()
	slices.Sort(fds)
	if got := len(slices.Compact(fds)); got < lanes*(1+4) { // a connection, two epolls, two bells
		t.Errorf("%d descriptors for a forked child to close", got)
	}
}

// Goodbye writes the queue and a Goodbye in every lane.
func TestGoodbyeInAllLanes(t *testing.T) {
	nodes, hs := laned(t, 2)
	var l ledger
	runs := []int{1, 40} // the first lane is through long before the other
	for lane, n := range runs {
		for i := range n {
			nodes[0].Lane(lane).Send(9, Outgoing{Header: contrib(uint32(i), 0), Data: make([]byte, 1<<20), Owner: l.lend(nil)})
		}
	}
	ctx, cancel := soon()
	defer cancel()
	done := make(chan struct{})
	go func() { nodes[0].Goodbye(ctx); close(done) }()
	<-done
	l.check(t)
	for lane, pair := range hs {
		pair[1].untilArrived(t, runs[lane]*(1<<20)/wire.PacketBytes)
		if err := pair[1].untilLost(t, 8); err != nil {
			t.Errorf("lost with %v", err)
		}
	}
}

// Lanes that are added while the data plane is closed are closed too.
func TestLanesOfAClosedDataPlane(t *testing.T) {
	n := listen(t, 8, nil)
	n.Close()
	if err := n.Divide(3); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		l := n.Lane(i)
		l.mu.Lock()
		if !l.mu.stopped {
			t.Errorf("lane %d lives on", i)
		}
		l.mu.Unlock()
	}
}

// A handshake for a lane that does not exist is refused with that reason.
func TestUnknownLane(t *testing.T) {
	server, worker := listen(t, 8, nil), listen(t, 9, nil)
	server.start(9)
	if err := worker.Divide(2); err != nil {
		t.Fatal(err)
	}
	h := newRecorder(9)
	worker.Start(Identity{ID: 9, Incarnation: incarnation(9), Token: token}, nil, 0, h, h)
	ctx, cancel := soon()
	defer cancel()
	err := worker.Lane(1).Dial(ctx, 8, incarnation(8), server.addr())
	if fault.CodeOf(err) != fault.Connect || fmt.Sprint(err) != "server 0 at "+server.addr()+" refuses the data connection: server 0 has no lane 1: the nodes know different link rates" {
		t.Errorf("error %v", err)
	}
}

// The rate of the link is divided among the lanes.
func TestLinkRateOfLanes(t *testing.T) {
	nodes := [1]*node{listen(t, 8, nil)}
	if err := nodes[0].Divide(2); err != nil {
		t.Fatal(err)
	}
	nodes[0].Start(Identity{ID: 8}, nil, 10, newRecorder(8), newRecorder(8))
	for i := range 2 {
		if got := nodes[0].Lane(i).mu.conns.link.rate; got != 5 {
			t.Errorf("lane %d: %v", i, got)
		}
	}
}
