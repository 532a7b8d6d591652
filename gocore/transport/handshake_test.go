package transport

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// connect opens a plain connection to n; reads on it end at the deadline.
func connect(t testing.TB, n *node) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", n.addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(deadline))
	return c.(*net.TCPConn)
}

func helloTo(n *node, id uint32) wire.Hello {
	h := wire.NewHello(id, incarnation(id), n.id, incarnation(n.id), token)
	if kitEndures {
		h.Purpose = wire.Endure
	}
	return h
}

// shake sends h and returns the answer, nil if accepted.
func shake(c *net.TCPConn, h wire.Hello) error {
	var b [wire.HelloBytes]byte
	h.Put(b[:])
	c.Write(b[:])
	_, err := readAnswer(c)
	return err
}

// puppet is a peer of n with the given id; the test controls its socket.
func puppet(t testing.TB, n *node, id uint32) *net.TCPConn {
	t.Helper()
	c := connect(t, n)
	if err := shake(c, helloTo(n, id)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := soon()
	defer cancel()
	if err := n.Await(ctx, []uint32{id}); err != nil {
		t.Fatal(err)
	}
	return c
}

// untilClosed reads until the node closes the connection.
func untilClosed(t testing.TB, c net.Conn) []byte {
	t.Helper()
	b, err := io.ReadAll(c)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the node did not hang up: %v", err)
	}
	return b
}

// exchange checks that two nodes can still exchange packets.
func exchange(t testing.TB, a, b *node) {
	t.Helper()
	for _, n := range []*node{a, b} {
		n.h.mu.Lock()
		n.h.arrivals = nil
		n.h.mu.Unlock()
	}
	a.Send(b.id, Outgoing{Header: contrib(1, 0), Data: fill(make([]byte, 99), a.id, 1)})
	b.Send(a.id, Outgoing{Header: contrib(2, 0), Data: fill(make([]byte, 77777), b.id, 2)})
	for _, got := range [][]arrival{b.h.untilArrived(t, 1), a.h.untilArrived(t, 3)} {
		for _, p := range got {
			if err := checkContent(p.peer, &p.header, p.payload); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	nodes := mesh(t, nil, 8, 9)
	server := nodes[0]
	for _, tc := range []struct {
		name   string
		change func(*wire.Hello)
		says   string
	}{
		{"token", func(h *wire.Hello) { h.Token[15]++ }, "wrong cluster token"},
		{"version", func(h *wire.Hello) { h.Version++ }, "version 2"},
		{"packet size", func(h *wire.Hello) { h.Packet = 1 << 20 }, "packets of 1048576 bytes"},
		{"lane", func(h *wire.Hello) { h.Lane = 1 }, "lane 1"},
		{"other node meant", func(h *wire.Hello) { h.To = 10 }, "this is server 0 (incarnation 1f47), not server 1"},
		{"former life meant", func(h *wire.Hello) { h.ToIncarnation-- }, "not server 0 (incarnation 1f46)"},
		{"unexpected node", func(h *wire.Hello) { h.ID = 15 }, "expects no connection from worker 3"},
		{"itself", func(h *wire.Hello) { h.ID = 8 }, "expects no connection from server 0"},
		{"other incarnation", func(h *wire.Hello) { h.Incarnation++ }, "incarnation 232f here, not 2330"},
		{"second connection", func(*wire.Hello) {}, "server 0 and worker 0 have a connection already"},
	} {
		c := connect(t, server)
		h := helloTo(server, 9)
		tc.change(&h)
		err := shake(c, h)
		var r *refusal
		if !errors.As(err, &r) || !strings.Contains(r.reason, tc.says) {
			t.Errorf("%s: answer %v, expected a refusal that says %q", tc.name, err, tc.says)
		}
		if rest := untilClosed(t, c); len(rest) != 0 {
			t.Errorf("%s: %q after the refusal", tc.name, rest)
		}
	}
	exchange(t, nodes[0], nodes[1])
	if n := server.Stats().Rejected; n != 10 {
		t.Errorf("%d handshakes rejected, expected 10", n)
	}
}

// The token is checked before any answer that reveals a fact about this node.
func TestStrangersLearnNothing(t *testing.T) {
	server := listen(t, 8, nil)
	server.start(9)
	h := helloTo(server, 15)
	h.To, h.ToIncarnation, h.Token = 1, 2, [wire.TokenBytes]byte{}
	err := shake(connect(t, server), h)
	if err == nil || err.Error() != "wrong cluster token: this node belongs to another cluster" {
		t.Errorf("answer %v", err)
	}
}

func TestDialReturnsTheReasonOfARefusal(t *testing.T) {
	server, worker := listen(t, 8, nil), listen(t, 9, nil)
	server.start(11)
	worker.start()
	ctx, cancel := soon()
	defer cancel()
	err := worker.Dial(ctx, 8, incarnation(8), server.addr())
	if err == nil || fault.CodeOf(err) != fault.Connect || ctx.Err() != nil ||
		!strings.Contains(err.Error(), "server 0 at "+server.addr()+" refuses") || !strings.Contains(err.Error(), "expects no connection from worker 0") {
		t.Errorf("error %v", err)
	}
}

func TestRubbishGetsNoAnswer(t *testing.T) {
	nodes := mesh(t, nil, 8, 9)
	server := nodes[0]
	damaged := make([]byte, wire.HelloBytes)
	hello := helloTo(server, 9)
	hello.Put(damaged)
	damaged[20] ^= 1
	header := packetBytes(contrib(1, 0), 0)
	rubbish := [][]byte{
		make([]byte, wire.HelloBytes), damaged, header,
		[]byte("GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: somebody's scanner 1.0\r\n\r\n"),
		[]byte(strings.Repeat("\xff", 100_000)),
	}
	for _, b := range rubbish {
		c := connect(t, server)
		go c.Write(b)
		if answer := untilClosed(t, c); len(answer) != 0 {
			t.Errorf("%.20q was answered: %q", b, answer)
		}
	}
	half := connect(t, server)
	half.Write(damaged[:30])
	half.CloseWrite()
	if answer := untilClosed(t, half); len(answer) != 0 {
		t.Errorf("half a handshake was answered: %q", answer)
	}
	exchange(t, nodes[0], nodes[1])
	if n := server.Stats().Rejected; n != uint64(len(rubbish)+1) {
		t.Errorf("%d handshakes rejected, expected %d", n, len(rubbish)+1)
	}
}

func TestHalfAHandshakeEndsAtTheDeadline(t *testing.T) {
	server := listen(t, 8, func(n *node) { n.handshakeTimeout = 20 * time.Millisecond })
	server.start(9)
	for _, bytes := range []int{0, 1, wire.HelloBytes - 1} {
		c := connect(t, server)
		b := make([]byte, wire.HelloBytes)
		hello := helloTo(server, 9)
		hello.Put(b)
		c.Write(b[:bytes])
		untilClosed(t, c)
	}
	if n := server.Stats().Rejected; n != 3 {
		t.Errorf("%d handshakes rejected, expected 3", n)
	}
}

// Silent connections take all places; a peer that sends its Hello still gets one.
func TestCrowdOfSilentConnections(t *testing.T) {
	server := listen(t, 8, func(n *node) { n.handshakeTimeout = 10 * deadline })
	worker := listen(t, 9, nil)
	server.start(9)
	worker.start()
	oldest := connect(t, server)
	for range 10 * maxPending {
		connect(t, server)
	}
	ctx, cancel := soon()
	defer cancel()
	if err := worker.Dial(ctx, 8, incarnation(8), server.addr()); err != nil {
		t.Fatal(err)
	}
	if err := server.Await(ctx, []uint32{9}); err != nil {
		t.Fatal(err)
	}
	server.accepting.mu.Lock()
	if n := len(server.accepting.conns); n > maxPending {
		t.Errorf("%d handshakes pending", n)
	}
	server.accepting.mu.Unlock()
	exchange(t, server, worker)
	untilClosed(t, oldest)
}

func TestThousandsOfConnectsDisturbNobody(t *testing.T) {
	nodes := mesh(t, nil, 8, 9)
	var flood sync.WaitGroup
	for range 4 {
		flood.Go(func() {
			for i := range 500 {
				c, err := net.Dial("tcp", nodes[0].addr())
				if err != nil {
					t.Error(err)
					return
				}
				c.Write(make([]byte, i%(2*wire.HelloBytes)))
				c.Close()
			}
		})
	}
	for range 20 {
		exchange(t, nodes[0], nodes[1])
	}
	flood.Wait()
	exchange(t, nodes[0], nodes[1])
}

// lines is a log handler that counts.
type lines struct {
	slog.Handler
	mu  sync.Mutex
	all []string
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Level >= slog.LevelWarn {
		l.all = append(l.all, r.Message)
	}
	return nil
}

func TestRefusalsAreLoggedOncePerHost(t *testing.T) {
	log := &lines{Handler: slog.DiscardHandler}
	server := listen(t, 8, func(n *node) { n.config.Log = slog.New(log) })
	server.start(9)
	for range 5 {
		c := connect(t, server)
		c.Write(make([]byte, wire.HelloBytes))
		untilClosed(t, c)
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if n := server.Stats().Rejected; n != 5 || len(log.all) != 1 {
		t.Errorf("%d rejected, logged %q", n, log.all)
	}
	var h hosts
	for i := range 2 * maxHosts {
		h.isFirst(&net.TCPAddr{IP: net.IPv4(10, 0, byte(i>>8), byte(i)), Port: i})
	}
	if len(h.seen) != maxHosts {
		t.Errorf("%d hosts are remembered", len(h.seen))
	}
}

func TestHandshakeWaitsForStart(t *testing.T) {
	server := listen(t, 8, nil)
	early := connect(t, server)
	early.Write([]byte("rubbish"))
	early.CloseWrite()
	c := connect(t, server)
	h := helloTo(server, 9)
	var b [wire.HelloBytes]byte
	h.Put(b[:])
	c.Write(b[:])
	server.start(9)
	if _, err := readAnswer(c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := soon()
	defer cancel()
	if err := server.Await(ctx, []uint32{9}); err != nil {
		t.Fatal(err)
	}
}

// A peer that hangs up without an answer, or does not listen, is tried again.
func TestDialTriesAgain(t *testing.T) {
	worker := listen(t, 9, nil)
	worker.start()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := soon()
	defer cancel()
	dialed := make(chan error, 1)
	go func() { dialed <- worker.Dial(ctx, 8, incarnation(8), l.Addr().String()) }()
	for attempt := range 3 {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		b := make([]byte, wire.HelloBytes)
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
		if attempt < 2 {
			c.Close()
			continue
		}
		var h wire.Hello
		if err := h.Get(b); err != nil || h != wire.NewHello(9, incarnation(9), 8, incarnation(8), token) {
			t.Errorf("hello %+v, error %v", h, err)
		}
		c.Write(wire.PutAnswer(""))
	}
	if err := <-dialed; err != nil {
		t.Error(err)
	}
}

func TestDialWithoutAListener(t *testing.T) {
	worker := listen(t, 9, nil)
	gone := listen(t, 8, nil)
	addr := gone.addr()
	gone.Close()
	silent := listen(t, 10, nil) // never started
	if err := worker.Dial(context.Background(), 8, 1, addr); err == nil || !strings.Contains(err.Error(), "not started") {
		t.Errorf("before Start: %v", err)
	}
	worker.start()
	for _, tc := range []struct{ addr, says string }{
		{addr, "refused"}, {silent.addr(), "deadline"}, {"nonsense", "missing port"},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		err := worker.Dial(ctx, 8, 1, tc.addr)
		cancel()
		if err == nil || fault.CodeOf(err) != fault.Connect || !strings.Contains(err.Error(), tc.says) ||
			!strings.Contains(err.Error(), "server 0") || !strings.Contains(err.Error(), tc.addr) {
			t.Errorf("%s: %v", tc.addr, err)
		}
	}
}

func TestCloseEndsADialThatWaits(t *testing.T) {
	worker, silent := listen(t, 9, nil), listen(t, 8, nil) // the second is never started
	worker.start()
	ctx, cancel := soon()
	defer cancel()
	dialed := make(chan error)
	go func() { dialed <- worker.Dial(ctx, 8, 1, silent.addr()) }()
	c, err := silent.listener.Accept() // as no other goroutine does
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, wire.HelloBytes)); err != nil {
		t.Fatal(err)
	}
	worker.Close()
	if err := <-dialed; fault.CodeOf(err) != fault.Closed || ctx.Err() != nil {
		t.Errorf("error %v", err)
	}
}

func TestDialOfSomethingElse(t *testing.T) {
	worker := listen(t, 9, nil)
	worker.start()
	for _, answer := range [][]byte{
		[]byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"), make([]byte, 1000),
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			c, err := l.Accept()
			if err == nil {
				c.Write(answer)
				io.Copy(io.Discard, c)
			}
		}()
		ctx, cancel := soon()
		defer cancel()
		err = worker.Dial(ctx, 8, 1, l.Addr().String())
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "not an fptps handshake's answer") {
			t.Errorf("error %v", err)
		}
	}
}

func TestAwaitNamesTheMissing(t *testing.T) {
	nodes := mesh(t, nil, 8, 9)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := nodes[0].Await(ctx, []uint32{9, 11, 1, 10})
	if err == nil || fault.CodeOf(err) != fault.Connect || !strings.Contains(err.Error(), "with worker 1, scheduler, server 1: ") {
		t.Errorf("error %v", err)
	}
	nodes[0].Close()
	if err := nodes[0].Await(context.Background(), []uint32{11}); fault.CodeOf(err) != fault.Closed {
		t.Errorf("after Close: %v", err)
	}
	if err := nodes[0].Dial(context.Background(), 11, 1, "127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), "closing") {
		t.Errorf("Dial after Close: %v", err)
	}
}

// TestVanishedHostsAreNoticed: connections with other hosts have the options for it, those within this host do not.
func TestVanishedHostsAreNoticed(t *testing.T) {
	for _, remote := range []bool{true, false} {
		nodes := mesh(t, func(n *node) { n.sys.isRemote = func(stream) bool { return remote } }, 8, 9)
		for _, n := range nodes {
			fd := n.fdOf(17 - n.id)
			for name, tc := range map[string]struct{ option, want int }{
				"milliseconds without acknowledgement": {unix.TCP_USER_TIMEOUT, vanishMs}, "seconds until a probe": {unix.TCP_KEEPIDLE, probeSeconds},
				"seconds between probes": {unix.TCP_KEEPINTVL, probeSeconds},
			} {
				if got, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, tc.option); err != nil || (got == tc.want) != remote {
					t.Errorf("remote %v, node %d: %s: %d, error %v", remote, n.id, name, got, err)
				}
			}
		}
	}
}

func TestSocketOptions(t *testing.T) {
	tr, err := Listen(Config{Host: "127.0.0.1", SendBuffer: 50_000, ReceiveBuffer: 60_000})
	if err != nil {
		t.Fatal(err)
	}
	server := &node{Transport: tr, id: 8, h: newRecorder(8)}
	defer server.Close()
	server.start(9)
	puppet(t, server, 9)
	server.mu.Lock()
	fd := server.mu.conns.byPeer[9].fd
	server.mu.Unlock()
	inherited, _ := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	inherited = strings.TrimRight(inherited, "\x00")
	for name, tc := range map[string]struct{ level, option, want int }{
		"no delay":       {syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1},
		"unsent":         {syscall.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentLocal},
		"send buffer":    {syscall.SOL_SOCKET, syscall.SO_SNDBUF, 100_000}, // the kernel doubles it
		"receive buffer": {syscall.SOL_SOCKET, syscall.SO_RCVBUF, 120_000},
	} {
		if got, err := syscall.GetsockoptInt(fd, tc.level, tc.option); err != nil || got != tc.want {
			t.Errorf("%s is %d, expected %d, error %v", name, got, tc.want, err)
		}
	}
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic"); err != nil {
		t.Skip("cubic is not allowed here")
	}
	if inherited != "cubic" {
		t.Errorf("congestion control %q", inherited)
	}
}
