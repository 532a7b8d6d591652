package transport

import (
	"fmt"
	"math"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// system is what the kernel does and knows; tests put their own in its place. The
// calls that move data do not block.
type system struct {
	far   func(c stream) bool // c leaves this host
	read  func(fd int, vector []unix.Iovec) (int, unix.Errno)
	write func(fd int, vector []unix.Iovec) (int, unix.Errno)
}

var kernel = system{far: overLink, read: readv, write: writev}

// readv reads what is there. It never sleeps, so it may go past the scheduler of Go
// (RawSyscall), which saves a good part of its cost.
func readv(fd int, vector []unix.Iovec) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&vector[0])), uintptr(len(vector)))
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// writev writes what fits. It is sendmsg for the sake of MSG_NOSIGNAL: inside a
// program that is not Go's own, SIGPIPE may do anything.
func writev(fd int, vector []unix.Iovec) (int, unix.Errno) {
	m := unix.Msghdr{Iov: &vector[0]}
	m.SetIovlen(len(vector))
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// poller is one loop's epoll and the eventfd that wakes the loop out of it.
type poller struct {
	epoll  int
	wake   waker
	events [64]unix.EpollEvent
	count  [8]byte // what the eventfd held, of no interest
}

// wakeMark in an event's Pad tells the eventfd from connections, whose events carry
// the peer's id in Fd.
const wakeMark = 1

func newPoller() (*poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create: %w", err)
	}
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	p := &poller{epoll: epoll, wake: waker{fd: fd}}
	if err := p.control(unix.EPOLL_CTL_ADD, fd, unix.EpollEvent{Events: unix.EPOLLIN, Pad: wakeMark}); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *poller) control(op, fd int, e unix.EpollEvent) error {
	if err := unix.EpollCtl(p.epoll, op, fd, &e); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

// watch adds a connection, unwatch removes it. A removal is never left to close: a
// forked child may hold the socket open, and its events would never end.
func (p *poller) watch(c *conn, events uint32) error {
	return p.control(unix.EPOLL_CTL_ADD, c.fd, unix.EpollEvent{Events: events, Fd: int32(c.peer)})
}

// rearm asks for one event when c takes more; the peer that empties shared memory
// tells unasked.
func (p *poller) rearm(c *conn) error {
	if c.near != nil {
		return nil
	}
	return p.control(unix.EPOLL_CTL_MOD, c.fd, unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLONESHOT, Fd: int32(c.peer)})
}

func (p *poller) unwatch(c *conn) {
	unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, c.fd, nil)
}

// poll gives the events that are there.
func (p *poller) poll() ([]unix.EpollEvent, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epoll),
		uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)), 0, 0, 0)
	if errno != 0 && errno != unix.EINTR {
		return nil, fmt.Errorf("epoll_wait: %w", errno)
	}
	if errno != 0 {
		n = 0
	}
	return p.events[:n], nil
}

// napTime is the longest sleep in which a loop keeps its place in Go's scheduler.
// Giving it up and finding one again is a good part of what a wake-up costs. Go's
// garbage collector may have to wait for so long.
const napTime = time.Millisecond

// wait sleeps until there are events or d is over. Unless it is short, it goes through
// Go's scheduler, so that others run meanwhile. A kernel before 5.11 has no
// epoll_pwait2 and rounds d up to a millisecond.
func (p *poller) wait(d time.Duration) ([]unix.EpollEvent, error) {
	limit := unix.NsecToTimespec(int64(max(d, 0)))
	events, room, until := unsafe.Pointer(&p.events[0]), uintptr(len(p.events)), unsafe.Pointer(&limit)
	var n uintptr
	var errno unix.Errno
	if d <= napTime {
		n, _, errno = unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.epoll), uintptr(events), room, uintptr(until), 0, 0)
	} else {
		n, _, errno = unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.epoll), uintptr(events), room, uintptr(until), 0, 0)
	}
	if errno == unix.ENOSYS {
		n, _, errno = unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epoll), uintptr(events), room,
			uintptr(min((d+time.Millisecond-1)/time.Millisecond, math.MaxInt32)), 0, 0)
	}
	if errno == unix.EINTR {
		return nil, nil
	}
	if errno != 0 {
		return nil, fmt.Errorf("epoll_wait: %w", errno)
	}
	return p.events[:n], nil
}

// forever is as good as: the loops are woken for whatever happens.
const forever = 24 * time.Hour

// prompt makes this thread run when it is due: its sleeps do not end up to 50 us late,
// as is the kernel's default, and, where that is permitted, it goes before threads
// that compute.
func prompt() {
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	unix.Setpriority(unix.PRIO_PROCESS, 0, -20)
}

// drain makes the eventfd quiet where it is among events, and gives the others.
func (p *poller) drain(events []unix.EpollEvent) []unix.EpollEvent {
	for i := range events {
		if events[i].Pad == wakeMark {
			unix.Read(p.wake.fd, p.count[:])
			last := len(events) - 1
			events[i] = events[last]
			return events[:last]
		}
	}
	return events
}

func (p *poller) close() {
	p.wake.close()
	unix.Close(p.epoll)
}

// waker is an eventfd that any thread may write to, also while it is being closed.
type waker struct {
	mu sync.Mutex
	fd int // -1 when closed
}

// one is what a wake adds to the eventfd, in either byte order.
var one = []byte{1, 0, 0, 0, 0, 0, 0, 1}

func (w *waker) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd >= 0 {
		unix.Write(w.fd, one) // EAGAIN: as many wakes as fit are pending
	}
}

// number is the eventfd, for a peer that shares memory.
func (w *waker) number() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fd
}

func (w *waker) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	unix.Close(w.fd)
	w.fd = -1
}
