package pybind

import (
	"fptps/gocore/fault"
	"fptps/gocore/kv"
)

// Clock receives the number of applied rounds of each worker for key, as uint64s.
func Clock(h, ticket, key int64, pointer uintptr, bytes int64) (zero int64, err error) {
	defer encodeError(&err)
	return operate(h, ticket, func(w *kv.Worker) (*kv.Ticket, error) { return w.Clock(uint64(key), memory[byte](pointer, bytes)) })
}

// Resume sets the clock of key.
func Resume(h, ticket, key int64, pointer uintptr, bytes int64) (zero int64, err error) {
	defer encodeError(&err)
	return operate(h, ticket, func(w *kv.Worker) (*kv.Ticket, error) { return w.Resume(uint64(key), memory[byte](pointer, bytes)) })
}

// State receives an array of the state (gocore/store) of count packets of key.
func State(h, ticket, key, array, first, count int64, pointer uintptr, bytes int64) (zero int64, err error) {
	defer encodeError(&err)
	return packetRange(h, ticket, key, array, first, count, pointer, bytes, (*kv.Worker).State)
}

// Restore sets an array of the state, as State returns it.
func Restore(h, ticket, key, array, first, count int64, pointer uintptr, bytes int64) (zero int64, err error) {
	defer encodeError(&err)
	return packetRange(h, ticket, key, array, first, count, pointer, bytes, (*kv.Worker).Restore)
}

func packetRange(h, ticket, key, array, first, count int64, pointer uintptr, bytes int64,
	f func(w *kv.Worker, key uint64, array int, first, count uint32, memory []byte) (*kv.Ticket, error)) (int64, error) {
	if first != int64(uint32(first)) || count != int64(uint32(count)) {
		return 0, fault.New(fault.Value, "no %d packets from %d", count, first)
	}
	return operate(h, ticket, func(w *kv.Worker) (*kv.Ticket, error) {
		return f(w, uint64(key), int(array), uint32(first), uint32(count), memory[byte](pointer, bytes))
	})
}

// Keep sets the result of the next Pulls to an array.
func Keep(h, key, dtype int64, pointer uintptr, bytes int64) (zero int64, err error) {
	defer encodeError(&err)
	_, worker, err := workerOf(h)
	if err != nil {
		return 0, err
	}
	return 0, worker.Keep(uint64(key), dtypeOf(dtype), memory[byte](pointer, bytes))
}
