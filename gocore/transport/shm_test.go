package transport

import (
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// Whether two nodes of one host use shared memory depends on the settings of both.
func TestSharedMemorySettings(t *testing.T) {
	for _, tc := range []struct {
		dials, accepts SharedMemory
		local, fails   bool
	}{
		{SharedMemoryAuto, SharedMemoryAuto, true, false},
		{SharedMemoryAuto, SharedMemoryNever, false, false},
		{SharedMemoryNever, SharedMemoryAuto, false, false},
		{SharedMemoryAlways, SharedMemoryAuto, true, false},
		{SharedMemoryAlways, SharedMemoryNever, false, true},
	} {
		kitSharedMemory = tc.accepts
		server := listen(t, 8, nil)
		kitSharedMemory = tc.dials
		worker := listen(t, 9, nil)
		kitSharedMemory = SharedMemoryNever
		server.start(9)
		worker.start()
		ctx, cancel := soon()
		if tc.fails {
			cancel() // after one attempt
		}
		err := worker.Dial(ctx, 8, incarnation(8), server.addr())
		cancel()
		if (err != nil) != tc.fails {
			t.Errorf("%+v: %v", tc, err)
		}
		if tc.fails {
			continue
		}
		worker.mu.Lock()
		local := worker.mu.conns.byPeer[8].shm != nil
		worker.mu.Unlock()
		if local != tc.local {
			t.Errorf("%+v: shared memory is %v", tc, local)
		}
	}
}

func TestSharedMemoryWithAnotherHostIsRefused(t *testing.T) {
	kitSharedMemory = SharedMemoryAlways
	defer func() { kitSharedMemory = SharedMemoryNever }()
	worker := listen(t, 9, nil)
	worker.start()
	ctx, cancel := soon()
	defer cancel()
	err := worker.Dial(ctx, 8, incarnation(8), "203.0.113.7:9")
	if fault.CodeOf(err) != fault.Connect || !strings.Contains(err.Error(), "FPTPS_VAN=shm") {
		t.Errorf("error %v", err)
	}
}

// nearPuppet is a peer on shared memory that the test controls.
func nearPuppet(t *testing.T, server *node, id uint32, fds ...int) *rights {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: shmName(portOf(server))})
	if err != nil {
		t.Fatal(err)
	}
	r := &rights{UnixConn: c}
	t.Cleanup(func() {
		r.drop()
		c.Close()
	})
	hello := wire.NewHello(id, incarnation(id), server.id, incarnation(server.id), token)
	var b [wire.HelloBytes]byte
	hello.Put(b[:])
	if err := r.send(b[:], fds...); err != nil {
		t.Fatal(err)
	}
	return r
}

func portOf(n *node) string {
	_, port, _ := net.SplitHostPort(n.addr())
	return port
}

// An invalid offer of memory is refused, and its descriptors are closed.
func TestInvalidOffers(t *testing.T) {
	kitSharedMemory = SharedMemoryAuto
	defer func() { kitSharedMemory = SharedMemoryNever }()
	server := listen(t, 8, nil)
	server.start(9)
	memory := func(size int64, seals int) int {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		unix.Ftruncate(fd, size)
		unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	bell, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(bell)
	good := memory(shmBytes, unix.F_SEAL_SHRINK)
	before := openDescriptors(t)
	for name, fds := range map[string][]int{
		"nothing":      nil,
		"no bells":     {good},
		"one bell":     {good, bell},
		"may shrink":   {memory(shmBytes, 0), bell, bell},
		"too small":    {memory(shmBytes-1, unix.F_SEAL_SHRINK), bell, bell},
		"too large":    {memory(shmBytes+1, unix.F_SEAL_SHRINK), bell, bell},
		"no memory":    {bell, bell, bell},
		"a file":       {int(os.Stderr.Fd()), bell, bell},
		"one too many": {good, bell, bell, bell},
	} {
		r := nearPuppet(t, server, 9, fds...)
		if rest := untilClosed(t, r.UnixConn); len(rest) != 0 {
			t.Errorf("%s: answered by %d bytes", name, len(rest))
		}
		r.Close()
	}
	if got := server.Stats().Rejected; got != 9 {
		t.Errorf("%d offers were rejected, expected 9", got)
	}
	for len(server.accepting.fds()) > 0 {
		<-server.accepting.freed
	}
	if after := openDescriptors(t); after > before+3 { // the memories made above
		t.Errorf("%d descriptors are open, %d before", after, before)
	}
}

func openDescriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// A peer that writes invalid data into the memory, or bytes into the socket beside it, loses
// its connection; other connections continue.
func TestInvalidSharedMemory(t *testing.T) {
	for name, lie := range map[string]func(r *rights, s *shm){
		"head":    func(_ *rights, s *shm) { s.out.head.Store(1 << 50) },
		"rubbish": func(_ *rights, s *shm) { s.write(vectorOf(make([]byte, 1000))) },
		"socket":  func(r *rights, _ *shm) { r.Write([]byte("hello")) },
	} {
		t.Run(name, func(t *testing.T) {
			kitSharedMemory = SharedMemoryAuto
			defer func() { kitSharedMemory = SharedMemoryNever }()
			nodes := mesh(t, func(n *node) {
				if n.id == 8 {
					n.puppets = []uint32{11}
				}
			}, 8, 9)
			server := nodes[0]
			o, err := newOffer()
			if err != nil {
				t.Fatal(err)
			}
			defer o.close()
			bell, err := unix.Eventfd(0, unix.EFD_NONBLOCK)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(bell)
			r := nearPuppet(t, server, 11, o.fd, bell, bell)
			if _, err := readAnswer(r); err != nil {
				t.Fatal(err)
			}
			s, err := o.accepted(r)
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			ctx, cancel := soon()
			defer cancel()
			if err := server.Await(ctx, []uint32{11}); err != nil {
				t.Fatal(err)
			}
			lie(r, s)
			unix.Write(s.wakeFds[0], one)
			if err := server.h.untilLost(t, 11); err == nil {
				t.Error("the connection ended in good order")
			}
			nodes[1].Send(8, Outgoing{Header: contrib(1, 0), Data: fill(make([]byte, 50_000), 9, 1)})
			for _, a := range server.h.untilArrived(t, 4) {
				if err := checkContent(9, &a.header, a.payload); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestFloodOfDescriptors: a peer that sends descriptors with every byte is cut off at the first too many, and all are closed.
func TestFloodOfDescriptors(t *testing.T) {
	kitSharedMemory = SharedMemoryAuto
	defer func() { kitSharedMemory = SharedMemoryNever }()
	server := listen(t, 8, nil)
	server.start(9)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	before := openDescriptors(t)
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: shmName(portOf(server))})
	if err != nil {
		t.Fatal(err)
	}
	r := &rights{UnixConn: c}
	fd, sent := int(null.Fd()), 0
	for ; sent < wire.HelloBytes; sent++ {
		if r.send([]byte{0}, fd, fd) != nil {
			break
		}
	}
	if sent == wire.HelloBytes {
		untilClosed(t, r.UnixConn)
	}
	c.Close()
	for len(server.accepting.fds()) > 0 {
		<-server.accepting.freed
	}
	if after := openDescriptors(t); after > before {
		t.Errorf("%d descriptors are open, %d before", after, before)
	}
	if got := server.Stats().Rejected; got != 1 {
		t.Errorf("%d handshakes were rejected, expected 1", got)
	}
}

// TestOtherUsersShareNoMemory: a connection by another user of this host is closed before a byte of it is read.
func TestOtherUsersShareNoMemory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	kitSharedMemory = SharedMemoryAuto
	defer func() { kitSharedMemory = SharedMemoryNever }()
	server := listen(t, 8, nil)
	server.start(9)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	become := func(user int) { // this thread alone
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(user), ^uintptr(0)); errno != 0 {
			t.Fatal(errno)
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	become(65534)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: shmName(portOf(server))})
	become(0)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Read(fd, make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("%d bytes, error %v, expected the end", n, err)
	}
	if got := server.Stats().Rejected; got != 1 {
		t.Errorf("%d handshakes were rejected, expected 1", got)
	}
}
