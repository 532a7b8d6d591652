package node

import (
	"fptps/gocore/aggregate"
	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/plan"
	"fptps/gocore/transport/mem"
	"fptps/gocore/wire"
)

// aloneID is the node id of a worker without a cluster: rank 0.
var aloneID = uint32(wire.WorkerID(0))

// runAlone makes a worker that is its own only aggregator, so that a train.py runs unchanged
// on a laptop.
func (n *Node) runAlone() error {
	shares, err := plan.New([]plan.Share{{Node: aloneID, Share: 1}})
	if err != nil {
		return err
	}
	network := mem.New(nil)
	plane := network.Join(aloneID)
	var tensors uint32
	worker := kv.NewWorker(kv.WorkerConfig{
		Observe: n.latency.Observer(),
		Workers: []int{0},
		Plan:    shares, Lanes: []kv.DataPlane{plane}, Tickets: n.Tickets, Log: n.log, Trace: n.tracer, Deterministic: n.config.Deterministic,
		Name: func(node uint32) string { return wire.NodeName(int(node)) },
		Declare: func(list []kv.Declaration) {
			for _, d := range list {
				n.mu.Lock()
				id := tensors
				tensors++
				n.mu.Unlock()
				if id >= wire.MaxTensors {
					d.Done(0, fault.New(fault.Value, "more than %d tensors", wire.MaxTensors))
				} else {
					d.Done(id, nil)
				}
			}
		},
	})
	plane.Attach(&kv.Handler{
		Self: aloneID, Worker: worker, Aggregator: kv.NewAggregator(aloneID, aggregate.NewMembers(1), plane, false, n.log),
		OnLost: func(uint32, error) {}, OnFailed: n.onDataPlaneFailed,
	})
	if err := n.setIfOpen(func() { n.mu.alone, n.mu.worker, n.mu.state, n.mu.hasJoined = network, worker, joined, true }); err != nil {
		network.Close()
		return err
	}
	n.endLife(nil)
	return nil
}
