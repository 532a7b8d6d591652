package pybind

import (
	"slices"

	"fptps/gocore/fault"
	"fptps/gocore/kv"
)

// The results of Come.
const (
	passes    = iota // no worker waits to be admitted
	undecided        // the ticket ends when it is decided whether all workers meet here: then Come is called again
	meets            // all workers meet here: Arrive is next
)

// Come says that the program has come to the place where newcomers are admitted: see node.Come.
func Come(h, ticket int64) (result int64, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	due, waiting, err := found.node.Come()
	switch {
	case err != nil:
		return 0, err
	case due:
		return meets, nil
	case waiting != nil:
		_, err := found.number(waiting, ticket)
		return undecided, err
	}
	return passes, nil
}

// Arrive waits until newcomers are admitted; they get a copy of the state of size bytes.
func Arrive(h, ticket int64, state uintptr, size int64) (zero int64, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	waiting, err := found.node.Arrive(slices.Clone(memory[byte](state, size)))
	if err != nil {
		return 0, err
	}
	return found.number(waiting, ticket)
}

// Fetch has a newcomer that was admitted take over the state of a training from the worker of a rank.
func Fetch(h, ticket, rank int64) (zero int64, err error) {
	defer encodeError(&err)
	return operate(h, ticket, func(*kv.Worker) (*kv.Ticket, error) {
		found, err := find(h)
		if err != nil {
			return nil, err
		}
		return found.node.Fetch(int(rank))
	})
}

// StateSize is the size of the program's state that Fetch has brought.
func StateSize(h int64) (size int64, err error) {
	defer encodeError(&err)
	_, worker, err := workerOf(h)
	if err != nil {
		return 0, err
	}
	return int64(len(worker.ProgramState())), nil
}

// TakeState copies that state to memory of its size, and makes this worker a member: it contributes from now on.
func TakeState(h int64, state uintptr, size int64) (zero int64, err error) {
	defer encodeError(&err)
	found, worker, err := workerOf(h)
	if err != nil {
		return 0, err
	}
	if program := worker.ProgramState(); copy(memory[byte](state, size), program) < len(program) {
		return 0, fault.New(fault.Internal, "the state has %d bytes, the memory %d", len(program), size)
	}
	return 0, found.node.Fetched()
}
