package pybind

import (
	"fptps/gocore/fault"
	"fptps/gocore/kv"
)

// Clock brings the rounds of each worker that are applied to key, uint64 each.
func Clock(h, key int64, pointer uintptr, bytes int64) (ticket int64, err error) {
	defer failed(&err)
	return operate(h, key, func(w *kv.Worker) (*kv.Ticket, error) { return w.Clock(uint64(key), memory[byte](pointer, bytes)) })
}

// Resume has the clock of key go on from the one that is given.
func Resume(h, key int64, pointer uintptr, bytes int64) (ticket int64, err error) {
	defer failed(&err)
	return operate(h, key, func(w *kv.Worker) (*kv.Ticket, error) { return w.Resume(uint64(key), memory[byte](pointer, bytes)) })
}

// State brings an array of the state (gocore/store) of so many packets of key.
func State(h, key, array, first, count int64, pointer uintptr, bytes int64) (ticket int64, err error) {
	defer failed(&err)
	return stretch(h, key, array, first, count, pointer, bytes, (*kv.Worker).State)
}

// Restore sets what State gives.
func Restore(h, key, array, first, count int64, pointer uintptr, bytes int64) (ticket int64, err error) {
	defer failed(&err)
	return stretch(h, key, array, first, count, pointer, bytes, (*kv.Worker).Restore)
}

func stretch(h, key, array, first, count int64, pointer uintptr, bytes int64,
	f func(w *kv.Worker, key uint64, array int, first, count uint32, memory []byte) (*kv.Ticket, error)) (int64, error) {
	if first != int64(uint32(first)) || count != int64(uint32(count)) {
		return 0, fault.New(fault.Value, "key %d: no %d packets from %d", key, count, first)
	}
	return operate(h, key, func(w *kv.Worker) (*kv.Ticket, error) {
		return f(w, uint64(key), int(array), uint32(first), uint32(count), memory[byte](pointer, bytes))
	})
}

// Keep makes an array what Pull gives.
func Keep(h, key, dtype int64, pointer uintptr, bytes int64) (zero int64, err error) {
	defer failed(&err)
	worker, err := workerOf(h)
	if err != nil {
		return 0, err
	}
	return 0, worker.Keep(uint64(key), dtypeOf(dtype), memory[byte](pointer, bytes))
}
