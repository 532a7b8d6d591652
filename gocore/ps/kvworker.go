package ps

import (
	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// KVWorker is a customer that pushes values to the servers and pulls them, divided by
// the servers' key ranges. Keys and Lens are used until the end of the request; Vals are
// not used after a call returns.
type KVWorker struct{ *Customer }

// Push sends values.
func (w KVWorker) Push(k KVs, completion Completion, command, priority int32) (int32, error) {
	return w.exchange(true, false, k, completion, command, priority)
}

// Pull asks for the values of keys.
func (w KVWorker) Pull(k KVs, completion Completion, command, priority int32) (int32, error) {
	return w.exchange(false, true, k, completion, command, priority)
}

// PushPull pushes and pulls in one request.
func (w KVWorker) PushPull(k KVs, completion Completion, command, priority int32) (int32, error) {
	return w.exchange(true, true, k, completion, command, priority)
}

func (w KVWorker) exchange(push, pull bool, k KVs, completion Completion, command, priority int32) (int32, error) {
	if err := k.validate(push); err != nil {
		return 0, fault.New(fault.Value, "%v", err)
	}
	servers := w.office.servers()
	if servers == 0 {
		return 0, fault.New(fault.Value, "this cluster has no servers to push to or pull from")
	}
	parts, err := Slice(&k, Bounds(servers))
	if err != nil {
		return 0, err
	}
	asked := map[int][]uint64{}
	for rank, part := range parts {
		if len(part.Keys) > 0 {
			asked[wire.ServerID(rank)] = part.Keys
		}
	}
	ts, err := w.start(pull, asked, completion, k.DType)
	if err != nil {
		return 0, err
	}
	for rank, part := range parts {
		if len(part.Keys) > 0 {
			w.send(&Message{Peer: wire.ServerID(rank), App: w.App, Customer: w.ID, Timestamp: ts, Head: command,
				Request: true, Push: push, Pull: pull, Priority: priority, KVs: part})
		}
	}
	return ts, nil
}
