// Package latch provides a one-shot event that threads wait for. A waiting thread sleeps
// in the kernel, on a futex, so that Open wakes it directly. A channel would be slower: a
// goroutine that serves a Python thread is bound to that thread, and Go's scheduler would
// first wake another thread to hand the goroutine over.
package latch

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	closed  = iota // the zero value
	awaited        // closed, and a thread may sleep
	open
)

// FUTEX_WAIT and FUTEX_WAKE of linux/futex.h, with FUTEX_PRIVATE_FLAG: no other process waits.
const (
	futexWait = 0 | 128
	futexWake = 1 | 128
)

// Latch is closed until Open. The zero value is closed; a Latch must not be copied.
type Latch struct{ state atomic.Uint32 }

// Open opens the latch and wakes all waiters. It does not block.
func (l *Latch) Open() {
	if l.state.Swap(open) == awaited {
		unix.RawSyscall6(unix.SYS_FUTEX, l.address(), futexWake, math.MaxInt32, 0, 0, 0)
	}
}

// Opened reports whether the latch is open.
func (l *Latch) Opened() bool { return l.state.Load() == open }

// Wait waits for Open, at most for timeout, and reports whether the latch is open.
func (l *Latch) Wait(timeout time.Duration) bool {
	if l.Opened() || timeout <= 0 {
		return l.Opened()
	}
	l.state.CompareAndSwap(closed, awaited)
	for end := time.Now().Add(timeout); ; {
		left := unix.NsecToTimespec(int64(timeout))
		// The result does not matter: the loop reads the state again. The call returns at once if the state is no longer awaited.
		unix.Syscall6(unix.SYS_FUTEX, l.address(), futexWait, awaited,
			uintptr(unsafe.Pointer(&left)), 0, 0)
		if timeout = time.Until(end); l.Opened() || timeout <= 0 {
			return l.Opened()
		}
	}
}

// address stays valid as long as l is alive: Go's heap does not move objects.
func (l *Latch) address() uintptr { return uintptr(unsafe.Pointer(&l.state)) }
