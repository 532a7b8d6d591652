package pybind

import (
	"encoding/json"

	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/store"
)

// CheckOptimizer raises what SetOptimizer would, and does nothing.
func CheckOptimizer(h int64, keys, rule string) (zero int64, err error) {
	defer failed(&err)
	worker, list, err := workerAndKeys(h, keys)
	if err != nil {
		return 0, err
	}
	if _, err := store.ParseRule([]byte(rule)); err != nil {
		return 0, err
	}
	return 0, worker.MayRule(list)
}

// SetOptimizer gives the aggregators of keys, a JSON array or "null" for all, an optimiser (store.Rule as JSON).
func SetOptimizer(h int64, keys, rule string) (ticket int64, err error) {
	defer failed(&err)
	worker, list, err := workerAndKeys(h, keys)
	if err != nil {
		return 0, err
	}
	parsed, err := store.ParseRule([]byte(rule))
	if err != nil {
		return 0, err
	}
	set, err := worker.SetRule(list, parsed)
	if err != nil {
		return 0, err
	}
	return set.ID, nil
}

// SetLearningRate changes the learning rate of keys, as for SetOptimizer, from rank 0's next push on.
func SetLearningRate(h int64, keys string, rate float64) (zero int64, err error) {
	defer failed(&err)
	worker, list, err := workerAndKeys(h, keys)
	if err != nil {
		return 0, err
	}
	return 0, worker.SetLearningRate(list, rate)
}

func workerAndKeys(h int64, keys string) (*kv.Worker, []uint64, error) {
	worker, err := workerOf(h)
	if err != nil {
		return nil, nil, err
	}
	var list []uint64
	if err := json.Unmarshal([]byte(keys), &list); err != nil {
		return nil, nil, fault.New(fault.Value, "keys %s: a list of keys is expected", keys)
	}
	return worker, list, nil
}
