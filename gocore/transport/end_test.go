package transport

import (
	"context"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// sendBulk queues several runs for peer, more than its socket takes.
func sendBulk(n *node, peer uint32, l *ledger) {
	data := make([]byte, 16<<20)
	for i := range 4 {
		n.Send(peer, Outgoing{Header: contrib(uint32(i), 0), Data: data, Owner: l.lend(nil)})
	}
}

var goodbye = packetBytes(wire.Header{Kind: wire.Goodbye}, 0)

// hugeLength is a header with a valid checksum that announces 4 GB.
func hugeLength() []byte {
	h := contrib(1, 0)
	h.RawLen, h.WireLen = 1<<32-1, 1<<32-1
	b := make([]byte, wire.HeaderBytes)
	h.Put(b)
	return b
}

// However a connection ends, Lost is called once, after its queue was released, and other
// connections stay.
func TestLost(t *testing.T) { overTCPAndShm(t, testLost) }

func testLost(t *testing.T) {
	part := packetBytes(contrib(1, 0), 1000)[:500]
	for _, tc := range []struct {
		name      string
		last      []byte // what the peer sends before it goes
		leave     func(c *net.TCPConn)
		says      string // "" is an end in good order
		malformed uint64
	}{
		{"closed", nil, func(c *net.TCPConn) { c.Close() }, "worker 1 at 127.0.0.1", 0},
		{"reset", nil, func(c *net.TCPConn) { c.SetLinger(0); c.Close() }, "worker 1 at 127.0.0.1", 0},
		{"half closed", nil, func(c *net.TCPConn) { c.CloseWrite() }, "closed by the peer without a goodbye", 0},
		{"closed within a payload", part, func(c *net.TCPConn) { c.CloseWrite() }, "closed by the peer without a goodbye", 0},
		{"goodbye", goodbye, func(c *net.TCPConn) { c.CloseWrite() }, "", 0},
		{"rubbish", []byte(strings.Repeat("rubbish ", 8)), func(*net.TCPConn) {}, "not an fptps packet", 1},
		{"huge length", hugeLength(), func(*net.TCPConn) {}, "at most", 1},
		{"after the goodbye", append(slices.Clone(goodbye), part...), func(*net.TCPConn) {}, "after the goodbye", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var l ledger
			nodes := mesh(t, func(n *node) {
				n.puppets = []uint32{11}
				n.h.lost = func(peer uint32, err error) {
					if peer == 11 {
						l.check(t)
					}
				}
			}, 8, 9)
			server := nodes[0]
			c := puppet(t, server, 11)
			sendBulk(server, 11, &l)
			c.Write(tc.last)
			tc.leave(c)
			err := server.h.untilLost(t, 11)
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("lost with %v, expected %q", err, tc.says)
			}
			server.Send(11, Outgoing{Header: contrib(9, 0), Owner: l.lend(nil)})
			l.check(t)
			exchange(t, nodes[0], nodes[1])
			server.Close()
			server.h.places.check(t)
			if s := server.Stats(); s.Malformed != tc.malformed || s.Dropped != 5 {
				t.Errorf("counted %+v", s)
			}
			if len(server.h.ends) != 1 {
				t.Errorf("lost %v", server.h.ends)
			}
		})
	}
}

func TestLostPeerMayReconnect(t *testing.T) { overTCPAndShm(t, testLostPeerMayReconnect) }

func testLostPeerMayReconnect(t *testing.T) {
	server := listen(t, 8, nil)
	server.start(9)
	puppet(t, server, 9).Close()
	server.h.untilLost(t, 9)
	for end, done := time.Now().Add(deadline), false; !done; runtime.Gosched() { // the handshake and Lost have returned
		if time.Now().After(end) {
			t.Fatal("the first connection does not end")
		}
		server.mu.Lock()
		done = !server.mu.reserved[9] && !server.mu.ending[9]
		server.mu.Unlock()
	}
	c := puppet(t, server, 9)
	c.Write(packetBytes(contrib(7, 0), 10))
	if a := server.h.untilArrived(t, 1)[0]; a.header.Tensor != 7 {
		t.Errorf("arrived %+v", a)
	}
}

func TestHandlerRefusesAPacket(t *testing.T) { overTCPAndShm(t, testHandlerRefusesAPacket) }

func testHandlerRefusesAPacket(t *testing.T) {
	for _, where := range []string{"place", "arrived"} {
		nodes := mesh(t, func(n *node) { n.puppets = []uint32{11} }, 8, 9)
		server := nodes[0]
		c := puppet(t, server, 11)
		refuse := &refusal{"what is this"}
		h := contrib(666, 0)
		server.h.note(func() {
			if where == "place" {
				server.h.badPlace = refuse
			} else {
				server.h.badArrival = refuse
			}
		})
		c.Write(packetBytes(h, 10))
		if err := server.h.untilLost(t, 11); err == nil || !strings.Contains(err.Error(), "what is this") {
			t.Errorf("lost with %v", err)
		}
		server.h.note(func() { server.h.badPlace, server.h.badArrival = nil, nil })
		exchange(t, nodes[0], nodes[1])
		if n := server.Stats().Malformed; n != 1 {
			t.Errorf("%d connections counted as malformed", n)
		}
	}
}

// bulkPackets is the number of packets of sendBulk.
const bulkPackets = 4 * (16 << 20) / wire.PacketBytes

// A peer that has stopped reading does not delay others. Its packets stay in the sender's
// memory, except for what fits in the socket or ring; when it reads again, it receives all.
func TestStoppedPeerBlocksNobody(t *testing.T) { overTCPAndShm(t, testStoppedPeerBlocksNobody) }

func testStoppedPeerBlocksNobody(t *testing.T) {
	var l ledger
	stopped := make(chan struct{})
	release := sync.OnceFunc(func() { close(stopped) })
	nodes := mesh(t, func(n *node) {
		if n.id == 11 {
			n.h.place = func(_ uint32, h *wire.Header) (Destination, error) {
				<-stopped
				return Destination{Bytes: make([]byte, h.WireLen)}, nil
			}
		}
	}, 8, 9, 11)
	t.Cleanup(release)
	server := nodes[0]
	sendBulk(server, 11, &l)
	sendBulk(server, 9, &l)
	nodes[1].h.untilArrived(t, bulkPackets)
	exchange(t, nodes[0], nodes[1])
	left := int(server.Stats().BytesSent) - bulkPackets*wire.PacketBytes
	if most := bulkPackets * wire.PacketBytes / 2; left > most || kitSharedMemory == SharedMemoryAlways && left > ringBytes {
		t.Errorf("%d bytes have left for a peer that does not read", left)
	}
	release()
	nodes[2].h.untilArrived(t, bulkPackets)
	server.Close()
	l.check(t)
}

// A peer that reads slowly does not delay others: they finish long before it.
func TestSlowPeerSlowsNobody(t *testing.T) { overTCPAndShm(t, testSlowPeerSlowsNobody) }

func testSlowPeerSlowsNobody(t *testing.T) {
	const lag = 100 // packets that the quick one gets for one of the slow one
	var l ledger
	got := map[uint32]*int{9: new(int), 11: new(int)} // guarded by the handlers
	pass := make(chan struct{}, bulkPackets)
	through := sync.OnceFunc(func() { close(pass) })
	nodes := mesh(t, func(n *node) {
		n.h.arrived = func(arrival) error {
			if n.id == 11 {
				<-pass
			}
			n.h.note(func() { *got[n.id]++ })
			if n.id == 9 && *got[9]%lag == 0 {
				pass <- struct{}{}
			}
			return nil
		}
	}, 8, 9, 11)
	t.Cleanup(through)
	sendBulk(nodes[0], 11, &l)
	sendBulk(nodes[0], 9, &l)
	nodes[1].h.until(t, "all packets", func() bool { return *got[9] == bulkPackets })
	through()
	nodes[2].h.until(t, "all packets", func() bool { return *got[11] == bulkPackets })
	nodes[0].Close()
	l.check(t)
}

// Both sides leave at the same time with full queues: everything still arrives.
func TestGoodbyeFlushes(t *testing.T) {
	for _, fragments := range []bool{false, true} {
		var l ledger
		open := make(chan struct{}) // nothing is written before all are leaving
		nodes := mesh(t, func(n *node) {
			if fragments {
				fragmented(n, 5)
			}
			write := n.sys.write
			n.sys.write = func(fd int, vector []unix.Iovec) (int, unix.Errno) {
				<-open
				return write(fd, vector)
			}
		}, 8, 9, 11)
		ctx, cancel := soon()
		defer cancel()
		const runs, size = 5, 10*wire.PacketBytes + 1
		ended := make(chan *node)
		for _, n := range nodes {
			for _, to := range nodes {
				for tensor := range uint32(runs) {
					n.Send(to.id, Outgoing{Header: contrib(tensor, int32(tensor)), Data: fill(make([]byte, size), n.id, tensor), Owner: l.lend(nil)})
				}
			}
			go func() {
				n.Goodbye(ctx)
				ended <- n
			}()
		}
		for _, n := range nodes {
			n.untilLeaving()
			for _, to := range nodes {
				n.Send(to.id, Outgoing{Header: contrib(1, 0), Owner: l.lend(nil)}) // too late
			}
		}
		close(open)
		for range nodes {
			<-ended
		}
		l.check(t)
		for _, n := range nodes {
			if len(n.h.arrivals) != 3*runs*11 || len(n.h.ends) != 2 || n.h.failure != nil {
				t.Errorf("node %d got %d packets, ends %v, failure %v", n.id, len(n.h.arrivals), n.h.ends, n.h.failure)
			}
			for peer, err := range n.h.ends {
				if err != nil {
					t.Errorf("node %d lost %d with %v", n.id, peer, err)
				}
			}
			for _, a := range n.h.arrivals {
				if err := checkContent(a.peer, &a.header, a.payload); err != nil {
					t.Error(err)
				}
			}
			n.h.places.check(t)
		}
		if ctx.Err() != nil {
			t.Error("the goodbyes took until the deadline")
		}
	}
}

// A leaving node sends its queue, a Goodbye, and the end of the stream.
func TestGoodbyeOnTheWire(t *testing.T) {
	server := listen(t, 8, nil)
	server.start(9)
	c := puppet(t, server, 9)
	server.Send(9, Outgoing{Header: contrib(1, -1<<31), Data: fill(make([]byte, wire.PacketBytes+1), 1, 1)})
	done := make(chan struct{})
	go func() {
		ctx, cancel := soon()
		defer cancel()
		server.Goodbye(ctx)
		close(done)
	}()
	packets, parted, err := dumbParse(untilClosed(t, c))
	if len(packets) != 2 || !parted || err != nil {
		t.Errorf("%d packets, goodbye %v, error %v", len(packets), parted, err)
	}
	select {
	case <-done:
		t.Error("it did not wait for the peer's end")
	default:
	}
	c.Close()
	<-done
	if err, ok := server.h.ends[9]; !ok || err != nil {
		t.Errorf("lost %v with %v", ok, err)
	}
}

func TestGoodbyeToAStoppedPeerEndsWithItsContext(t *testing.T) {
	var l ledger
	server := listen(t, 8, nil)
	server.start(9)
	puppet(t, server, 9)
	sendBulk(server, 9, &l)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	server.Goodbye(ctx)
	l.check(t)
	server.Goodbye(context.Background()) // again, and alone
	listen(t, 10, nil).Goodbye(context.Background())
}

func TestSockets(t *testing.T) {
	nodes := mesh(t, nil, 8, 9, 11)
	server := nodes[0]
	silent := connect(t, server)
	fds := server.Sockets()
	if kinds := describeFds(t, fds); kinds["tcp listening"] != 1 || kinds["tcp"] < 2 || kinds["[eventpoll]"] != 2 || kinds["[eventfd]"] != 2 {
		t.Errorf("sockets %v", kinds)
	}
	silent.Close()
	server.Close()
	if fds := server.Sockets(); len(fds) != 0 {
		t.Errorf("after Close: %v", fds)
	}
}

func describeFds(t *testing.T, fds []int) map[string]int {
	kinds := map[string]int{}
	for _, fd := range fds {
		var link [64]byte
		n, err := unix.Readlink("/proc/self/fd/"+strconv.Itoa(fd), link[:])
		if err != nil {
			t.Errorf("file descriptor %d: %v", fd, err)
			continue
		}
		kind := strings.TrimPrefix(string(link[:n]), "anon_inode:")
		if strings.HasPrefix(kind, "socket:") {
			kind = "tcp"
			if v, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); v == 1 {
				kind = "tcp listening"
			}
		}
		kinds[kind]++
	}
	return kinds
}

func TestTick(t *testing.T) {
	n := listen(t, 8, nil)
	n.start()
	n.h.until(t, "a tick", func() bool { return n.h.ticks > 0 })
}
