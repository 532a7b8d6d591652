package transport

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// Two nodes of one host connect over a Unix socket instead of TCP; its name contains the
// port of the listener. Over it they exchange the descriptors of shared memory, in which a
// ring for each direction replaces the stream. The socket stays open without traffic; when
// it closes, the peer has ended. Nothing outlives the processes, because nothing has a name
// in a file system: the socket's name is abstract, the memory is a memfd.

// shm is the shared memory of one connection: a ring for each direction.
type shm struct {
	memory  []byte
	in, out ring
	wakeFds [2]int // eventfds of the peer's loops: [0] receives, [1] sends
}

// SharedMemory is the setting that says which connections use shared memory.
type SharedMemory uint8

// The values of SharedMemory.
const (
	SharedMemoryAuto   SharedMemory = iota // those within this host, if the peer agrees
	SharedMemoryNever                      // none
	SharedMemoryAlways                     // all; a peer on another host is an error
)

// shmName is the abstract socket name at which a node with this data port listens.
func shmName(port string) string { return "@fptps-" + port }

// wakeFds are the eventfds with which peers that write into shared memory wake this node's loops.
func (t *Transport) wakeFds() []int {
	return []int{t.receiver.poller.wake.eventfd(), t.sender.poller.wake.eventfd()}
}

// offer is the memory that the dialing side offers.
type offer struct {
	fd     int
	memory []byte
}

func newOffer() (*offer, error) {
	fd, err := unix.MemfdCreate("fptps", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	if err := unix.Ftruncate(fd, shmBytes); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("memory of %d bytes: %w", shmBytes, err)
	}
	// Sealed, so that neither side can shrink the memory while the other uses it.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("seals: %w", err)
	}
	memory, err := mapShm(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &offer{fd, memory}, nil
}

// accepted returns the memory that the peer agreed to; its bells came with the answer.
func (o *offer) accepted(r *rights) (*shm, error) {
	fds, err := r.take(2)
	if err != nil {
		return nil, err
	}
	memory := o.memory
	o.memory = nil
	return newShm(memory, true, [2]int{fds[0], fds[1]}), nil
}

func (o *offer) close() {
	unix.Close(o.fd)
	if o.memory != nil {
		unix.Munmap(o.memory)
	}
}

func mapShm(fd int) ([]byte, error) {
	memory, err := unix.Mmap(fd, 0, shmBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return memory, nil
}

// mapOffer maps the memory that a peer offers, after checking its size and seals.
func mapOffer(fd int) ([]byte, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("the offered memory is not sealed against shrinking")
	}
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil || s.Size != shmBytes {
		return nil, fmt.Errorf("memory of %d bytes offered, expected %d", s.Size, shmBytes)
	}
	return mapShm(fd)
}

// newShm is one side's view of the memory: the side that dialed writes ring 0.
func newShm(memory []byte, dialed bool, wakeFds [2]int) *shm {
	s := &shm{memory: memory, wakeFds: wakeFds, in: newRing(memory, 0), out: newRing(memory, 1)}
	if dialed {
		s.in, s.out = s.out, s.in
	}
	return s
}

// write and read do what a socket's do, on the rings; each wakes the peer if it sleeps.
func (s *shm) write(vector []unix.Iovec) (int, unix.Errno) {
	n, errno := s.out.write(vector)
	if n > 0 && s.out.wakeReader() {
		unix.Write(s.wakeFds[0], one)
	}
	return n, errno
}

func (s *shm) read(vector []unix.Iovec) (int, unix.Errno) {
	n, errno := s.in.read(vector)
	if n > 0 && s.in.wakeWriter() {
		unix.Write(s.wakeFds[1], one)
	}
	return n, errno
}

func (s *shm) close() {
	unix.Munmap(s.memory)
	unix.Close(s.wakeFds[0])
	unix.Close(s.wakeFds[1])
}

// rights is a Unix socket that collects the file descriptors received with its bytes.
type rights struct {
	*net.UnixConn
	fds []int
}

// maxRights is the largest number of descriptors that either side sends.
const maxRights = 3

func (r *rights) Read(b []byte) (int, error) {
	var control [64]byte // for maxRights; the kernel closes descriptors beyond it
	n, k, _, _, err := r.ReadMsgUnix(b, control[:])
	if messages, e := unix.ParseSocketControlMessage(control[:k]); e == nil {
		for _, m := range messages {
			fds, _ := unix.ParseUnixRights(&m)
			r.fds = append(r.fds, fds...)
		}
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	for _, fd := range r.fds {
		unix.CloseOnExec(fd)
	}
	if len(r.fds) > maxRights { // a peer can send some with each byte
		r.drop()
		return 0, fmt.Errorf("more than %d file descriptors came", maxRights)
	}
	return n, err
}

// checkUser refuses a peer of another user: the abstract name of the listener has no permissions.
func (r *rights) checkUser() error {
	raw, err := r.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	if e := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil || err != nil {
		return errors.Join(e, err)
	}
	if int(peer.Uid) != unix.Geteuid() {
		return fmt.Errorf("shared memory with a process of user %d, this one is of user %d", peer.Uid, unix.Geteuid())
	}
	return nil
}

// send writes b with descriptors.
func (r *rights) send(b []byte, fds ...int) error {
	n, _, err := r.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return err
}

// accept maps the memory that a peer offered.
func (r *rights) accept() (*shm, error) {
	fds, err := r.take(maxRights)
	if err != nil {
		return nil, err
	}
	memory, err := mapOffer(fds[0])
	unix.Close(fds[0])
	if err != nil {
		unix.Close(fds[1])
		unix.Close(fds[2])
		return nil, err
	}
	return newShm(memory, false, [2]int{fds[1], fds[2]}), nil
}

// take returns the descriptors if there are n of them, else it closes them.
func (r *rights) take(n int) ([]int, error) {
	fds := r.fds
	if len(fds) != n {
		r.drop()
		return nil, fmt.Errorf("%d file descriptors received, expected %d", len(fds), n)
	}
	r.fds = nil
	return fds, nil
}

func (r *rights) drop() {
	for _, fd := range r.fds {
		unix.Close(fd)
	}
	r.fds = nil
}
