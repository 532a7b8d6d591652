package transport

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// thread is the operating system's thread of a loop.
type thread struct{ id atomic.Int32 }

var errNoThread = errors.New("the loop has not begun")

// begin makes the calling goroutine keep its thread. It lowers the latency of the thread's wake-ups: it sets a timer slack of 1 ns
// instead of the kernel's 50 us and, if permitted, the highest priority.
func (t *thread) begin() {
	runtime.LockOSThread()
	t.id.Store(int32(unix.Gettid()))
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	unix.Setpriority(unix.PRIO_PROCESS, 0, -20)
}

// busy is the time for which the thread has run, or could have run and waited for a processor: because others ran, or because its
// control group had used up its quota.
func (t *thread) busy() (time.Duration, error) {
	id := t.id.Load()
	if id == 0 {
		return 0, errNoThread
	}
	fd, err := unix.Open("/proc/self/task/"+strconv.Itoa(int(id))+"/schedstat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var text [64]byte // "ran waited turns", in ns
	n, err := unix.Read(fd, text[:])
	if err != nil {
		return 0, err
	}
	numbers := strings.Fields(string(text[:n]))
	if len(numbers) < 2 {
		return 0, fmt.Errorf("schedstat is %q", text[:n])
	}
	ran, ranErr := strconv.ParseInt(numbers[0], 10, 64)
	waited, waitedErr := strconv.ParseInt(numbers[1], 10, 64)
	return time.Duration(ran + waited), errors.Join(ranErr, waitedErr)
}
