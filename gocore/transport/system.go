package transport

import (
	"fmt"
	"math"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// system holds the system calls that tests replace. The calls that transfer data do not
// block.
type system struct {
	isRemote func(c stream) bool // whether the peer is on another host
	read     func(fd int, vector []unix.Iovec) (int, unix.Errno)
	write    func(fd int, vector []unix.Iovec) (int, unix.Errno)
}

var kernel = system{isRemote: leavesHost, read: readv, write: writev}

// readv reads the available bytes. It never sleeps, so it may bypass Go's scheduler
// (RawSyscall), which saves much of its cost.
func readv(fd int, vector []unix.Iovec) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&vector[0])), uintptr(len(vector)))
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// writev writes as much as fits. It uses sendmsg because of MSG_NOSIGNAL: in a program that
// is not Go's, SIGPIPE may kill the process.
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

// poller is the epoll of one loop, with the eventfd that wakes the loop.
type poller struct {
	epoll  int
	wake   waker
	events [64]unix.EpollEvent
	count  [8]byte // buffer for reading the eventfd
}

// wakeMark in an event's Pad distinguishes the eventfd from connections, whose events have
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

// watch adds a connection, unwatch removes it. Closing the socket would not remove it if a
// forked child holds a copy, and its events would never end.
func (p *poller) watch(c *conn, events uint32) error {
	return p.control(unix.EPOLL_CTL_ADD, c.fd, unix.EpollEvent{Events: events, Fd: int32(c.peer)})
}

// rearm requests one event for when c becomes writable. With shared memory the reading peer
// wakes the send loop without that.
func (p *poller) rearm(c *conn) error {
	if c.shm != nil {
		return nil
	}
	return p.control(unix.EPOLL_CTL_MOD, c.fd, unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLONESHOT, Fd: int32(c.peer)})
}

func (p *poller) unwatch(fd int) {
	unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, fd, nil)
}

// poll returns pending events without waiting.
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

// napTime is the longest sleep in which a loop keeps its place in Go's scheduler: giving it
// up and getting one again is much of the cost of a wake-up. Go's garbage collector may have
// to wait that long.
const napTime = time.Millisecond

// wait sleeps until there are events or d has passed. Unless d is short, it goes through Go's
// scheduler, so that other goroutines run meanwhile. Without epoll_pwait2 (before Linux 5.11,
// or under a seccomp filter) d is rounded up to a millisecond.
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
	if errno == unix.ENOSYS || errno == unix.EPERM { // EPERM: a seccomp filter that does not know the call
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

// forever is long enough: the loops are woken for every event.
const forever = 24 * time.Hour

// drainWake reads the eventfd if it is among events, and returns the other events.
func (p *poller) drainWake(events []unix.EpollEvent) []unix.EpollEvent {
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

// waker is an eventfd that any thread may write, even while it is being closed.
type waker struct {
	mu sync.Mutex
	fd int // -1 when closed
}

// one is the value that a wake adds to the eventfd; it is not 0 in either byte order.
var one = []byte{1, 0, 0, 0, 0, 0, 0, 1}

func (w *waker) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd >= 0 {
		unix.Write(w.fd, one) // EAGAIN means that the counter is full, so a wake is pending
	}
}

// eventfd returns the file descriptor, for a peer on shared memory.
func (w *waker) eventfd() int {
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
