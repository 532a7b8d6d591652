package pybind

import "fptps/gocore/kv"

// PushRows contributes count rows to the next round of a table.
func PushRows(h, ticket, key, dtype int64, rows uintptr, count int64, pointer uintptr, bytes, priority int64) (zero int64, err error) {
	defer encodeError(&err)
	_, p, err := checkOpPriority(0, priority)
	if err != nil {
		return 0, err
	}
	return operate(h, ticket, func(w *kv.Worker) (*kv.Ticket, error) {
		return w.PushRows(uint64(key), dtypeOf(dtype), memory[int64](rows, count), memory[byte](pointer, bytes), p)
	})
}

// PullRows receives count rows of a table into an array.
func PullRows(h, ticket, key, dtype int64, rows uintptr, count int64, pointer uintptr, bytes, priority int64) (zero int64, err error) {
	defer encodeError(&err)
	_, p, err := checkOpPriority(0, priority)
	if err != nil {
		return 0, err
	}
	return operate(h, ticket, func(w *kv.Worker) (*kv.Ticket, error) {
		return w.PullRows(uint64(key), dtypeOf(dtype), memory[int64](rows, count), memory[byte](pointer, bytes), p)
	})
}
