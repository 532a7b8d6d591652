// Package latch is an event that happens once and that threads wait for. A thread
// sleeps in the kernel, by a futex, not as a goroutine: the one that opens the latch
// wakes it directly. A goroutine that a Python thread has called into is bound to that
// thread, and Go's scheduler would wake another thread first to hand it over.
package latch

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	closed  = iota // at first
	awaited        // and somebody may sleep
	open
)

// Of linux/futex.h, for memory of this process alone.
const (
	futexWait = 0 | 128
	futexWake = 1 | 128
)

// Latch is closed until Open. The zero value is closed; a Latch is not to be copied.
type Latch struct{ state atomic.Uint32 }

// Open opens the latch and wakes all who wait. It never sleeps.
func (l *Latch) Open() {
	if l.state.Swap(open) == awaited {
		unix.RawSyscall6(unix.SYS_FUTEX, l.address(), futexWake, math.MaxInt32, 0, 0, 0)
	}
}

// Opened tells whether the latch is open.
func (l *Latch) Opened() bool { return l.state.Load() == open }

// Wait waits until the latch is open, at most timeout, and tells whether it is.
func (l *Latch) Wait(timeout time.Duration) bool {
	if l.Opened() || timeout <= 0 {
		return l.Opened()
	}
	l.state.CompareAndSwap(closed, awaited)
	for end := time.Now().Add(timeout); ; {
		left := unix.NsecToTimespec(int64(timeout))
		// Whatever it returns, the state tells; it returns at once where the state is no longer awaited.
		unix.Syscall6(unix.SYS_FUTEX, l.address(), futexWait, awaited,
			uintptr(unsafe.Pointer(&left)), 0, 0)
		if timeout = time.Until(end); l.Opened() || timeout <= 0 {
			return l.Opened()
		}
	}
}

// address is good as long as l is alive: Go's heap does not move.
func (l *Latch) address() uintptr { return uintptr(unsafe.Pointer(&l.state)) }
