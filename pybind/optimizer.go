package pybind

import (
	"encoding/json"

	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/store"
)

// CheckOptimizer returns the error that SetOptimizer would, without an effect.
func CheckOptimizer(h int64, keys, rule string) (zero int64, err error) {
	defer encodeError(&err)
	worker, list, err := workerAndKeys(h, keys)
	if err != nil {
		return 0, err
	}
	if _, err := store.ParseRule([]byte(rule)); err != nil {
		return 0, err
	}
	return 0, worker.MayRule(list)
}

// SetOptimizer sets the optimiser of keys on their aggregators. keys is a JSON array, or "null" for all keys; rule is a
// store.Rule as JSON.
func SetOptimizer(h, ticket int64, keys, rule string) (zero int64, err error) {
	defer encodeError(&err)
	parsed, err := store.ParseRule([]byte(rule))
	if err != nil {
		return 0, err
	}
	list, err := keysOf(keys)
	if err != nil {
		return 0, err
	}
	return operate(h, ticket, func(w *kv.Worker) (*kv.Ticket, error) { return w.SetRule(list, parsed) })
}

// SetLearningRate sets the learning rate of keys (as in SetOptimizer) from rank 0's next push on.
func SetLearningRate(h int64, keys string, rate float64) (zero int64, err error) {
	defer encodeError(&err)
	worker, list, err := workerAndKeys(h, keys)
	if err != nil {
		return 0, err
	}
	return 0, worker.SetLearningRate(list, rate)
}

func workerAndKeys(h int64, keys string) (*kv.Worker, []uint64, error) {
	_, worker, err := workerOf(h)
	if err != nil {
		return nil, nil, err
	}
	list, err := keysOf(keys)
	return worker, list, err
}

// keysOf parses a JSON array of keys; nil for "null".
func keysOf(keys string) ([]uint64, error) {
	var numbers []int64 // as in the other calls: a uint64, bit by bit
	if err := json.Unmarshal([]byte(keys), &numbers); err != nil {
		return nil, fault.New(fault.Value, "keys %s: a list of keys is expected", keys)
	}
	var list []uint64
	if numbers != nil {
		list = make([]uint64, len(numbers))
	}
	for i, number := range numbers {
		list[i] = uint64(number)
	}
	return list, nil
}
