package kv

import (
	"slices"
	"unsafe"

	"fptps/gocore/fault"
)

// flights holds the ranges of the callers' memory that operations under way use.
// Ranges never overlap, with one exception: a pull may write to the array of the
// push whose sum it waits for. That is safe, because a packet's sum cannot arrive
// before its contribution has left.
type flights struct {
	list  []flight // by address
	name  func(key uint64) string
	about func(key uint64) fault.About
}

type flight struct {
	from, to uintptr
	key      uint64
	users    int
	push     *operation // the push that reads the range, until it has ended
}

// take records that an operation on key uses memory. op is the push that reads it, nil
// for a pull; pulls is the push whose sum a pull waits for, else nil. Overlap is a Busy error.
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
		return fault.New(fault.Busy, "%s: the array is still in flight with %s: wait for that ticket first, or use another array",
			f.name(key), f.name(same.key)).With(f.about(key))
	}
	f.list = slices.Insert(f.list, i, flight{from: from, to: to, key: key, users: 1, push: op})
	return nil
}

// leave ends one use of memory: that of the push op, or of a pull if op is nil.
func (f *flights) leave(memory []byte, op *operation) {
	i := f.search(uintptr(unsafe.Pointer(unsafe.SliceData(memory))))
	if f.list[i].users--; f.list[i].users == 0 {
		f.list = slices.Delete(f.list, i, i+1)
	} else if op != nil {
		f.list[i].push = nil
	}
}

// search returns the index of the first range that does not start below from.
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
