package kv

import (
	"slices"
	"unsafe"

	"fptps/gocore/fault"
)

// flights knows which memory of the caller is in use by operations that have not
// ended. Ranges never overlap, with one exception that is safe: the pull of a
// tensor may land in the array whose push it waits for, because a packet's sum
// cannot arrive before its contribution has left.
type flights struct {
	list []flight // by address
}

type flight struct {
	from, to uintptr
	key      uint64
	users    int
	push     *operation // the push that reads the range, until it has ended
}

// take notes that an operation on key uses memory; pulls names the push whose sum
// the operation wants, nil where it is no pull. Overlap is a Busy error.
func (f *flights) take(key uint64, memory []byte, op, pulls *operation) error {
	from := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	to := from + uintptr(len(memory))
	i := f.search(from)
	for _, near := range []int{i - 1, i} {
		if near < 0 || near >= len(f.list) || f.list[near].to <= from || f.list[near].from >= to {
			continue
		}
		same := &f.list[near]
		if pulls != nil && same.push == pulls && same.from == from && same.to == to && same.users == 1 {
			same.users++
			return nil
		}
		return fault.New(fault.Busy, "key %d: the array is still in flight with key %d: wait for that ticket first, or use another array",
			key, same.key)
	}
	f.list = slices.Insert(f.list, i, flight{from: from, to: to, key: key, users: 1, push: op})
	return nil
}

// leave ends one use of memory: op's, nil where it is a pull's.
func (f *flights) leave(memory []byte, op *operation) {
	i := f.search(uintptr(unsafe.Pointer(unsafe.SliceData(memory))))
	if f.list[i].users--; f.list[i].users == 0 {
		f.list = slices.Delete(f.list, i, i+1)
	} else if op != nil {
		f.list[i].push = nil
	}
}

// search finds the first range that does not start below from.
func (f *flights) search(from uintptr) int {
	i, _ := slices.BinarySearchFunc(f.list, from, func(fl flight, from uintptr) int {
		switch {
		case fl.from < from:
			return -1
		case fl.from > from:
			return 1
		}
		return 0
	})
	return i
}
