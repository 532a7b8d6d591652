package pybind

import (
	"encoding/json"
	"unsafe"

	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/wire"
)

// workerOf returns a handle's node and the store of its worker.
func workerOf(h int64) (*handle, *kv.Worker, error) {
	found, err := find(h)
	if err != nil {
		return nil, nil, err
	}
	worker, err := found.node.Worker()
	return found, worker, err
}

// operate runs an operation of a worker's store and assigns the number ticket to its ticket.
func operate(h, ticket int64, f func(*kv.Worker) (*kv.Ticket, error)) (int64, error) {
	return operateAll(h, func(w *kv.Worker) ([]*kv.Ticket, error) {
		begun, err := f(w)
		return []*kv.Ticket{begun}, err
	}, func(int) int64 { return ticket })
}

// operateAll runs operations of a worker's store; number(i) is the number for the ticket of the i-th.
func operateAll(h int64, f func(*kv.Worker) ([]*kv.Ticket, error), number func(i int) int64) (int64, error) {
	found, worker, err := workerOf(h)
	if err != nil {
		return 0, err
	}
	begun, err := f(worker)
	if err != nil {
		return 0, err
	}
	for i, ticket := range begun {
		if _, err := found.number(ticket, number(i)); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// memory is the caller's array of count elements. Python keeps it alive until the call
// returns, or until its ticket ends.
func memory[T any](pointer uintptr, count int64) []T {
	if pointer == 0 || count <= 0 {
		return nil
	}
	// The address is numpy's, not of Go's heap, so Go's garbage collector ignores it.
	return unsafe.Slice((*T)(*(*unsafe.Pointer)(unsafe.Pointer(&pointer))), count)
}

// dtypeOf converts an element type from Python. A number out of range becomes an invalid
// type, which every operation refuses.
func dtypeOf(dtype int64) wire.DType {
	if dtype != int64(uint8(dtype)) {
		return 0
	}
	return wire.DType(dtype)
}

// policyOf converts a consistency from Python. A number out of range becomes an invalid policy, which every operation refuses.
func policyOf(policy int64) wire.Policy {
	if policy != int64(uint16(policy)) {
		return wire.Bounded(wire.MaxDelay + 1)
	}
	return wire.Policy(policy)
}

// checkOpPriority converts and checks an operation and a priority from Python.
func checkOpPriority(op, priority int64) (wire.Op, int32, error) {
	if op != int64(wire.OpSum) && op != int64(wire.OpMean) {
		return 0, 0, fault.New(fault.Value, "operation %d: 0 (sum) or 1 (mean) is expected", op)
	}
	if priority != int64(int32(priority)) {
		return 0, 0, fault.New(fault.Value, "priority %d: 32 bits are expected, -2147483648 to 2147483647", priority)
	}
	return wire.Op(op), int32(priority), nil
}

// declaration is one tensor of Init's list.
type declaration struct {
	Ticket  int64   `json:"ticket"`
	Key     int64   `json:"key"`
	Name    string  `json:"name"`
	Shape   string  `json:"shape"`
	DType   int64   `json:"dtype"`
	Policy  int64   `json:"policy"`
	Row     int64   `json:"row"` // bytes of a row, of a table; 0: it is no table
	Address uintptr `json:"address"`
	Bytes   int64   `json:"bytes"`
	Zeros   bool    `json:"zeros"` // rank 0's values are zeros, and are not read
}

// Init declares keys, all of them or none, and gives every worker rank 0's values: a JSON list of declarations.
func Init(h int64, list string) (zero int64, err error) {
	defer encodeError(&err)
	var declarations []declaration
	if err := json.Unmarshal([]byte(list), &declarations); err != nil {
		return 0, fault.New(fault.Internal, "a list of declarations: %v", err)
	}
	inits := make([]kv.Init, len(declarations))
	for i, d := range declarations {
		inits[i] = kv.Init{
			Key: uint64(d.Key), Name: d.Name, Shape: d.Shape, DType: dtypeOf(d.DType), Policy: policyOf(d.Policy), Row: int(d.Row),
			Memory: memory[byte](d.Address, d.Bytes), Zeros: d.Zeros,
		}
	}
	return operateAll(h, func(w *kv.Worker) ([]*kv.Ticket, error) { return w.InitAll(inits) },
		func(i int) int64 { return declarations[i].Ticket })
}

// exchangeWords are the words of an exchange in PushPullAll's list: ticket, key, dtype, pointer, bytes, out, op, priority.
const exchangeWords = 8

// PushPullAll contributes count arrays and brings their sums, for all or none: a list of exchangeWords words each.
func PushPullAll(h int64, list uintptr, count int64) (zero int64, err error) {
	defer encodeError(&err)
	words := memory[int64](list, count*exchangeWords)
	exchanges := make([]kv.Exchange, count)
	for i := range exchanges {
		x := words[i*exchangeWords:][:exchangeWords]
		op, priority, err := checkOpPriority(x[6], x[7])
		if err != nil {
			return 0, err
		}
		exchanges[i] = kv.Exchange{
			Key: uint64(x[1]), DType: dtypeOf(x[2]), Memory: memory[byte](uintptr(x[3]), x[4]), Out: memory[byte](uintptr(x[5]), x[4]),
			Op: op, Priority: priority,
		}
	}
	return operateAll(h, func(w *kv.Worker) ([]*kv.Ticket, error) { return w.PushPullAll(exchanges) },
		func(i int) int64 { return words[i*exchangeWords] })
}

// Push contributes an array to the next round of key.
func Push(h, ticket, key, dtype int64, pointer uintptr, bytes, op, priority int64) (zero int64, err error) {
	defer encodeError(&err)
	o, p, err := checkOpPriority(op, priority)
	if err != nil {
		return 0, err
	}
	return operate(h, ticket, func(w *kv.Worker) (*kv.Ticket, error) {
		return w.Push(uint64(key), dtypeOf(dtype), memory[byte](pointer, bytes), o, p)
	})
}

// Pull copies the sum of the last push of key to an array.
func Pull(h, ticket, key, dtype int64, pointer uintptr, bytes int64) (zero int64, err error) {
	defer encodeError(&err)
	return operate(h, ticket, func(w *kv.Worker) (*kv.Ticket, error) {
		return w.Pull(uint64(key), dtypeOf(dtype), memory[byte](pointer, bytes))
	})
}

// PushPull contributes an array and receives the sum into out, which may be the same array.
func PushPull(h, ticket, key, dtype int64, pointer uintptr, bytes int64, out uintptr, op, priority int64) (zero int64, err error) {
	defer encodeError(&err)
	o, p, err := checkOpPriority(op, priority)
	if err != nil {
		return 0, err
	}
	return operate(h, ticket, func(w *kv.Worker) (*kv.Ticket, error) {
		return w.PushPull(uint64(key), dtypeOf(dtype), memory[byte](pointer, bytes), memory[byte](out, bytes), o, p)
	})
}

// Skip contributes zeros to the next round of key.
func Skip(h, ticket, key int64) (zero int64, err error) {
	defer encodeError(&err)
	return operate(h, ticket, func(w *kv.Worker) (*kv.Ticket, error) { return w.Skip(uint64(key)) })
}

// TensorInfo describes a key, as JSON (kv.TensorInfo).
func TensorInfo(h, key int64) (info string, err error) {
	defer encodeError(&err)
	_, worker, err := workerOf(h)
	if err != nil {
		return "", err
	}
	tensor, err := worker.TensorInfo(uint64(key))
	if err != nil {
		return "", err
	}
	return marshal(tensor)
}

// SetTensorCount sets the number of pushes in a step of the training loop.
func SetTensorCount(h, n int64) (zero int64, err error) {
	defer encodeError(&err)
	_, worker, err := workerOf(h)
	if err != nil {
		return 0, err
	}
	return 0, worker.SetTensorCount(n)
}
