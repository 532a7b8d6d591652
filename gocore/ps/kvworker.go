package ps

import (
	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// KVWorker is a customer that pushes values to the servers and pulls them, cut by the
// servers' ranges of keys. Keys and Lens are kept until the end of the request, values
// not beyond the return.
type KVWorker struct{ *Customer }

// Push sends values.
func (w KVWorker) Push(k KVs, end Ending, command, priority int32) (int32, error) {
	return w.exchange(true, false, k, end, command, priority)
}

// Pull asks for the values of keys.
func (w KVWorker) Pull(k KVs, end Ending, command, priority int32) (int32, error) {
	return w.exchange(false, true, k, end, command, priority)
}

// PushPull does both in one request.
func (w KVWorker) PushPull(k KVs, end Ending, command, priority int32) (int32, error) {
	return w.exchange(true, true, k, end, command, priority)
}

func (w KVWorker) exchange(push, pull bool, k KVs, end Ending, command, priority int32) (int32, error) {
	if err := k.check(push); err != nil {
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
	ts, err := w.start(pull, asked, end, k.DType)
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
