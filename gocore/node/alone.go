package node

import (
	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/plan"
	"fptps/gocore/transport"
	"fptps/gocore/transport/mem"
	"fptps/gocore/wire"
)

// aloneID is the node id of a worker without a cluster: rank 0.
var aloneID = uint32(wire.WorkerID(0))

// runAlone makes a worker that is its own only aggregator: the whole way of a
// gradient inside the process, so that a train.py runs as it is on a laptop.
func (n *Node) runAlone() error {
	shares, err := plan.New(1, []plan.Share{{Node: aloneID, Share: 1}})
	if err != nil {
		return err
	}
	network := mem.New(nil)
	plane := network.Join(aloneID)
	var tensors uint32
	worker := kv.NewWorker(kv.WorkerConfig{
		Plan: shares, Lanes: []kv.DataPlane{plane}, Tickets: n.Tickets, Log: n.log,
		Name: func(node uint32) string { return wire.NodeName(int(node)) },
		Declare: func(_ uint64, _ wire.Tensor, done func(uint32, error)) {
			n.mu.Lock()
			id := tensors
			tensors++
			n.mu.Unlock()
			if id >= wire.MaxTensors {
				done(0, fault.New(fault.Value, "more than %d tensors", wire.MaxTensors))
				return
			}
			done(id, nil)
		},
	})
	plane.Attach(&kv.Handler{
		Self: aloneID, Worker: worker, Aggregator: kv.NewAggregator([]uint32{aloneID}, plane, false, n.log),
		OnLost: func(uint32, error) {}, OnFailed: n.dataPlaneFailed,
	})
	if err := n.own(func() { n.mu.alone, n.mu.worker, n.mu.state, n.mu.hasJoined = network, worker, joined, true }); err != nil {
		network.Close()
		return err
	}
	n.endLife(nil)
	return nil
}

// breaker panics where the data plane lets go of a packet.
type breaker struct{}

// Release panics.
func (breaker) Release() { panic("injected") }

// Break makes the data plane's loop panic, for the test that no panic of ours takes
// the interpreter down.
func (n *Node) Break() {
	n.mu.Lock()
	tr, alone, self := n.mu.transport, n.mu.alone, uint32(n.mu.view.Self)
	n.mu.Unlock()
	m := transport.Outgoing{Header: wire.Header{Kind: wire.Empty, DType: wire.Uint8, Run: 1, RawLen: 1}, Owner: breaker{}}
	switch {
	case tr != nil:
		tr.Send(self, m)
	case alone != nil:
		alone.Join(aloneID).Send(aloneID, m)
	}
}
