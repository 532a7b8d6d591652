package transport

import (
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// Two nodes of one host connect by a Unix socket in place of TCP, whose name is the
// port of the listener, and hand each other memory over it: a ring each way takes
// the place of the stream. The socket stays, silent, and its end is the peer's end.
// Nothing has a name in a file system, so nothing outlives the processes: the name
// is an abstract one, the memory a memfd.

// share is the memory of one connection and who to wake.
type share struct {
	memory  []byte
	in, out ring
	bells   [2]int // eventfds of the peer's loops: [0] receives, [1] sends
}

// Share says which connections go by shared memory.
type Share uint8

// The choices of Share.
const (
	ShareAuto   Share = iota // those within this host, where the peer is willing
	ShareNever               // none
	ShareAlways              // all; a peer on another host is an error
)

// shareName is the abstract name that a node with this data port listens at.
func shareName(port string) string { return "@fptps-" + port }

// bells are what the peers of shared memory wake this node's loops by.
func (t *Transport) bells() []int {
	return []int{t.receiver.poller.wake.number(), t.sender.poller.wake.number()}
}

// offer is memory for a connection that is being dialed.
type offer struct {
	fd     int
	memory []byte
}

func newOffer() (*offer, error) {
	fd, err := unix.MemfdCreate("fptps", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	if err := unix.Ftruncate(fd, shareBytes); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("memory of %d bytes: %w", shareBytes, err)
	}
	// Sealed, so that neither side can take memory away from under the other.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("seals: %w", err)
	}
	memory, err := mapShare(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &offer{fd, memory}, nil
}

// accepted is the share that the peer agreed to; its bells came with the answer.
func (o *offer) accepted(r *rights) (*share, error) {
	fds, err := r.take(2)
	if err != nil {
		return nil, err
	}
	memory := o.memory
	o.memory = nil
	return newShare(memory, true, [2]int{fds[0], fds[1]}), nil
}

func (o *offer) close() {
	unix.Close(o.fd)
	if o.memory != nil {
		unix.Munmap(o.memory)
	}
}

func mapShare(fd int) ([]byte, error) {
	memory, err := unix.Mmap(fd, 0, shareBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return memory, nil
}

// mapOffer maps what a peer offers, if it is what newOffer makes.
func mapOffer(fd int) ([]byte, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("the memory offered could be taken away")
	}
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil || s.Size != shareBytes {
		return nil, fmt.Errorf("memory of %d bytes offered, expected %d", s.Size, shareBytes)
	}
	return mapShare(fd)
}

// newShare is one side's view of the memory: the side that dialed writes ring 0.
func newShare(memory []byte, dialed bool, bells [2]int) *share {
	s := &share{memory: memory, bells: bells, in: newRing(memory, 0), out: newRing(memory, 1)}
	if dialed {
		s.in, s.out = s.out, s.in
	}
	return s
}

// write and read are a socket's, by the rings; each wakes the peer where it sleeps.
func (s *share) write(vector []unix.Iovec) (int, unix.Errno) {
	n, errno := s.out.write(vector)
	if n > 0 && s.out.wakeReader() {
		unix.Write(s.bells[0], one)
	}
	return n, errno
}

func (s *share) read(vector []unix.Iovec) (int, unix.Errno) {
	n, errno := s.in.read(vector)
	if n > 0 && s.in.wakeWriter() {
		unix.Write(s.bells[1], one)
	}
	return n, errno
}

func (s *share) close() {
	unix.Munmap(s.memory)
	unix.Close(s.bells[0])
	unix.Close(s.bells[1])
}

// rights is a Unix socket that gathers the file descriptors that come with the bytes.
type rights struct {
	*net.UnixConn
	fds []int
}

// maxRights is the most descriptors that either side sends.
const maxRights = 3

func (r *rights) Read(b []byte) (int, error) {
	var control [64]byte // room for maxRights; the kernel closes what does not fit
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
	return n, err
}

// send writes b with descriptors.
func (r *rights) send(b []byte, fds ...int) error {
	n, _, err := r.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return err
}

// accept takes what a peer's offer came with.
func (r *rights) accept() (*share, error) {
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
	return newShare(memory, false, [2]int{fds[1], fds[2]}), nil
}

// take gives the descriptors if they are so many, else closes them.
func (r *rights) take(n int) ([]int, error) {
	fds := r.fds
	if len(fds) != n {
		r.drop()
		return nil, fmt.Errorf("%d file descriptors came, expected %d", len(fds), n)
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
