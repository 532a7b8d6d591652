package node

import (
	"strings"
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// breaker panics where the data plane releases a packet.
type breaker struct{}

func (breaker) Release() { panic("injected") }

// breakLoop makes the loop of n's data plane panic.
func breakLoop(n *Node) {
	n.mu.Lock()
	tr, alone, self := n.mu.transport, n.mu.alone, uint32(n.mu.view.Self)
	n.mu.Unlock()
	m := transport.Outgoing{Header: wire.Header{Kind: wire.Empty, DType: wire.Uint8, Run: 1, RawLen: 1}, Owner: breaker{}}
	if tr != nil {
		tr.Send(self, m)
	} else {
		alone.Join(aloneID).Send(aloneID, m)
	}
}

// TestPanicInTheDataPlaneIsAnError breaks one worker's loop.
func TestPanicInTheDataPlaneIsAnError(t *testing.T) {
	c := start(t, 2, 1)
	c.initAll(1, 64)
	barrier, err := c.workers[0].Barrier() // no other node enters it
	if err != nil {
		t.Fatal(err)
	}
	breakLoop(c.workers[1])
	if err := c.ended(c.workers[0], barrier); fault.CodeOf(err) != fault.NodeLost {
		t.Errorf("the other worker: %v", err)
	}
	if err := c.ended(c.workers[1], c.workers[1].Close()); fault.CodeOf(err) != fault.Internal || !strings.Contains(err.Error(), "injected") {
		t.Errorf("the broken worker: %v", err)
	}
	for _, n := range append(c.servers, c.scheduler) {
		if err := c.ended(n, n.Life()); fault.CodeOf(err) != fault.NodeLost {
			t.Errorf("%s: %v", n.Info().Role, err)
		}
	}
	c.wait(c.workers[0], c.workers[0].Leave("it left"))
}

// TestPanicInTheLoopOfAWorkerAlone ends what waits with an error that names the panic.
func TestPanicInTheLoopOfAWorkerAlone(t *testing.T) {
	config, err := ParseConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	n := Open(config)
	c := &testCluster{t: t}
	c.wait(n, n.Life())
	worker, err := n.Worker()
	if err != nil {
		t.Fatal(err)
	}
	array := make([]byte, 64)
	ticket, err := initOne(worker, 1, wire.Uint8, array)
	if err != nil {
		t.Fatal(err)
	}
	c.wait(n, ticket)
	breakLoop(n)
	for err == nil { // until the loop has met the packet
		var ticket *kv.Ticket
		if ticket, err = worker.PushPull(1, wire.Uint8, array, array, wire.OpSum, 0); err == nil {
			err = c.ended(n, ticket)
		}
	}
	if fault.CodeOf(err) != fault.Internal || !strings.Contains(err.Error(), "injected") {
		t.Errorf("error %v", err)
	}
	if err := c.ended(n, n.Close()); fault.CodeOf(err) != fault.Internal {
		t.Errorf("error of close: %v", err)
	}
}
