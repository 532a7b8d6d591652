package pybind

import "fptps/gocore/kv"

// InitTable declares a key as a table of rows of so many bytes, and gives it rank 0's values.
func InitTable(h, key, dtype, policy, row int64, pointer uintptr, bytes int64) (ticket int64, err error) {
	defer failed(&err)
	return operate(h, key, func(w *kv.Worker) (*kv.Ticket, error) {
		return w.InitTable(uint64(key), dtypeOf(dtype), policyOf(policy), int(row), memory[byte](pointer, bytes))
	})
}

// PushRows contributes count rows to the next round of a table.
func PushRows(h, key, dtype int64, rows uintptr, count int64, pointer uintptr, bytes, priority int64) (ticket int64, err error) {
	defer failed(&err)
	_, p, err := asked(0, priority)
	if err != nil {
		return 0, err
	}
	return operate(h, key, func(w *kv.Worker) (*kv.Ticket, error) {
		return w.PushRows(uint64(key), dtypeOf(dtype), memory[int64](rows, count), memory[byte](pointer, bytes), p)
	})
}

// PullRows brings count rows of a table to an array.
func PullRows(h, key, dtype int64, rows uintptr, count int64, pointer uintptr, bytes, priority int64) (ticket int64, err error) {
	defer failed(&err)
	_, p, err := asked(0, priority)
	if err != nil {
		return 0, err
	}
	return operate(h, key, func(w *kv.Worker) (*kv.Ticket, error) {
		return w.PullRows(uint64(key), dtypeOf(dtype), memory[int64](rows, count), memory[byte](pointer, bytes), p)
	})
}
