package transport

import (
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// TestWhoSharesMemory: how two nodes of this host connect, by what each of them wants.
func TestWhoSharesMemory(t *testing.T) {
	for _, tc := range []struct {
		dials, accepts Share
		near, fails    bool
	}{
		{ShareAuto, ShareAuto, true, false},
		{ShareAuto, ShareNever, false, false},
		{ShareNever, ShareAuto, false, false},
		{ShareAlways, ShareAuto, true, false},
		{ShareAlways, ShareNever, false, true},
	} {
		kitShare = tc.accepts
		server := listen(t, 8, nil)
		kitShare = tc.dials
		worker := listen(t, 9, nil)
		kitShare = ShareNever
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
		near := worker.mu.table.conns[8].near != nil
		worker.mu.Unlock()
		if near != tc.near {
			t.Errorf("%+v: shares memory %v", tc, near)
		}
	}
}

func TestSharingWithAnotherHostIsRefused(t *testing.T) {
	kitShare = ShareAlways
	defer func() { kitShare = ShareNever }()
	worker := listen(t, 9, nil)
	worker.start()
	ctx, cancel := soon()
	defer cancel()
	err := worker.Dial(ctx, 8, incarnation(8), "203.0.113.7:9")
	if fault.CodeOf(err) != fault.Connect || !strings.Contains(err.Error(), "FPTPS_VAN=shm") {
		t.Errorf("error %v", err)
	}
}

// nearPuppet is a peer of server that the test plays, with memory of its own making.
func nearPuppet(t *testing.T, server *node, id uint32, fds ...int) *rights {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: shareName(portOf(server))})
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

// TestBadOffers: what is no memory to share is refused, and its descriptors closed.
func TestBadOffers(t *testing.T) {
	kitShare = ShareAuto
	defer func() { kitShare = ShareNever }()
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
	good := memory(shareBytes, unix.F_SEAL_SHRINK)
	before := openDescriptors(t)
	for name, fds := range map[string][]int{
		"nothing":      nil,
		"no bells":     {good},
		"one bell":     {good, bell},
		"may shrink":   {memory(shareBytes, 0), bell, bell},
		"too small":    {memory(shareBytes-1, unix.F_SEAL_SHRINK), bell, bell},
		"too large":    {memory(shareBytes+1, unix.F_SEAL_SHRINK), bell, bell},
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
		<-server.accepting.left
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

// TestLiarInSharedMemory: a peer that writes nonsense into the memory, or bytes into
// the socket beside it, loses its connection, and another one goes on.
func TestLiarInSharedMemory(t *testing.T) {
	for name, lie := range map[string]func(r *rights, s *share){
		"head":    func(_ *rights, s *share) { s.out.head.Store(1 << 50) },
		"rubbish": func(_ *rights, s *share) { s.write(vectorOf(make([]byte, 1000))) },
		"socket":  func(r *rights, _ *share) { r.Write([]byte("hello")) },
	} {
		t.Run(name, func(t *testing.T) {
			kitShare = ShareAuto
			defer func() { kitShare = ShareNever }()
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
			if err := answerOf(r); err != nil {
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
			unix.Write(s.bells[0], one)
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
