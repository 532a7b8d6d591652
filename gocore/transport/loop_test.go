package transport

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// taken returns the length of vector, for a kernel that takes everything.
func taken(vector []unix.Iovec) (n int) {
	for _, v := range vector {
		n += int(v.Len)
	}
	return n
}

// fdOf returns the socket of n's connection with peer.
func (n *node) fdOf(peer uint32) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.conns.byPeer[peer].fd
}

// untilWritable waits until the loops have taken over every connection.
func (n *node) untilWritable() {
	for waits := true; waits; runtime.Gosched() {
		n.mu.Lock()
		waits = slices.ContainsFunc(n.mu.conns.order, func(c *conn) bool { return !c.writable })
		n.mu.Unlock()
	}
}

// together queues runs in one step, so that the send loop sees all of them at once.
func (n *node) together(to []uint32, m Outgoing) {
	n.mu.Lock()
	var wake *poller
	for _, peer := range to {
		n.pushRun(peer, &m)
		if w := n.wakeSender(); w != nil {
			wake = w
		}
	}
	n.mu.Unlock()
	n.wake(wake)
}

func TestEqualConnectionsAreServedInTurnAfterOwnID(t *testing.T) {
	fds := make(chan int, 6)
	nodes := mesh(t, func(n *node) {
		if n.id == 10 {
			n.sys.write = func(fd int, vector []unix.Iovec) (int, unix.Errno) {
				fds <- fd
				return taken(vector), 0
			}
		}
	}, 8, 9, 10, 11)
	middle := nodes[2]
	middle.untilWritable()
	middle.together([]uint32{8, 9, 11}, Outgoing{Header: contrib(1, 0), Data: make([]byte, batchBytes+1)})
	var got, want []int
	for range 6 {
		got = append(got, <-fds)
	}
	for _, peer := range []uint32{11, 8, 9, 11, 8, 9} {
		want = append(want, middle.fdOf(peer))
	}
	if !slices.Equal(got, want) {
		t.Errorf("written to sockets %v, expected %v", got, want)
	}
}

// While one connection is always writable, epoll is still polled for the others.
func TestBusyConnectionDoesNotHideAWritableOne(t *testing.T) {
	var full atomic.Int64 // the socket that is full once
	full.Store(-1)
	nodes := mesh(t, func(n *node) {
		if n.id == 8 {
			n.sys.write = func(fd int, vector []unix.Iovec) (int, unix.Errno) {
				if full.CompareAndSwap(int64(fd), -1) {
					return 0, unix.EAGAIN
				}
				return taken(vector), 0
			}
		}
	}, 8, 9, 11)
	server := nodes[0]
	full.Store(int64(server.fdOf(11)))
	through := make(chan struct{})
	var over atomic.Bool
	var more releaseFunc
	more = func() {
		if !over.Load() {
			server.Send(9, Outgoing{Header: contrib(1, 0), Data: make([]byte, 1), Owner: more})
		}
	}
	more()
	more() // so that one waits while the other is released
	server.Send(11, Outgoing{Header: contrib(2, 1), Owner: releaseFunc(func() { close(through) })})
	ctx, cancel := soon()
	defer cancel()
	select {
	case <-through:
	case <-ctx.Done():
		t.Error("the connection that was full once got no second turn")
	}
	over.Store(true)
}

// A full socket is not written until epoll reports it writable.
func TestFullSocketIsNotRetried(t *testing.T) {
	var vain atomic.Int64
	var l ledger
	nodes := mesh(t, func(n *node) {
		n.puppets = []uint32{11}
		if n.id == 8 {
			n.sys.write = func(fd int, vector []unix.Iovec) (int, unix.Errno) {
				written, errno := writev(fd, vector)
				if errno == unix.EAGAIN {
					vain.Add(1)
				}
				return written, errno
			}
		}
	}, 8, 9)
	server := nodes[0]
	puppet(t, server, 11)
	sendBulk(server, 11, &l)
	for range 500 {
		exchange(t, nodes[0], nodes[1])
	}
	if n := vain.Load(); n > 50 {
		t.Errorf("%d vain writes", n)
	}
}

// The end of a peer's stream is read once, even while this node cannot write its own
// Goodbye.
func TestEndOfStreamIsReadOnce(t *testing.T) {
	var l ledger
	server := listen(t, 8, nil)
	server.start(9)
	c := puppet(t, server, 9)
	sendBulk(server, 9, &l)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		server.Goodbye(ctx)
		close(done)
	}()
	server.untilLeaving()
	c.Write(goodbye)
	c.CloseWrite()
	ticks := 0
	server.h.until(t, "two ticks", func() bool { ticks = server.h.ticks; return ticks >= 2 })
	if n := server.Stats().Reads; n > 10 {
		t.Errorf("%d reads", n)
	}
	if server.h.ends[9] != nil || len(server.h.ends) != 0 {
		t.Errorf("the connection has ended: %v", server.h.ends)
	}
	cancel()
	<-done
	l.check(t)
}

func (n *node) untilLeaving() {
	for leaving := false; !leaving; runtime.Gosched() {
		n.mu.Lock()
		leaving = n.mu.leaving
		n.mu.Unlock()
	}
}

// A node's packets to itself are delivered before Goodbye returns, even without a peer.
func TestGoodbyeWithoutPeers(t *testing.T) {
	open := make(chan struct{})
	delivered := 0
	n := listen(t, 8, func(n *node) {
		n.h.arrived = func(arrival) error {
			<-open
			delivered++
			return nil
		}
	})
	n.start()
	for range 100 {
		n.Send(8, Outgoing{Header: contrib(1, 0), Data: make([]byte, 2*wire.PacketBytes)})
	}
	ctx, cancel := soon()
	defer cancel()
	done := make(chan struct{})
	go func() {
		n.Goodbye(ctx)
		close(done)
	}()
	n.untilLeaving()
	close(open)
	<-done
	if delivered != 200 || ctx.Err() != nil {
		t.Errorf("%d packets delivered, context %v", delivered, ctx.Err())
	}
}

func TestFailedWriteEndsTheConnection(t *testing.T) {
	var l ledger
	nodes := mesh(t, func(n *node) {
		if n.id == 8 {
			n.sys.write = func(int, []unix.Iovec) (int, unix.Errno) { return 0, unix.EPIPE }
		}
	}, 8, 9)
	nodes[0].Send(9, Outgoing{Header: contrib(1, 0), Owner: l.lend(nil)})
	if err := nodes[0].h.untilLost(t, 9); err == nil || !strings.Contains(err.Error(), "write: broken pipe") {
		t.Errorf("lost with %v", err)
	}
	l.check(t)
	nodes[1].h.untilLost(t, 8)
}

// All runs of a batch are released even if the first Release panics.
func TestPanicInTheFirstReleaseOfABatch(t *testing.T) {
	var l ledger
	nodes := mesh(t, nil, 8, 9)
	server := nodes[0]
	server.mu.Lock()
	for i := range 5 {
		then := func() {}
		if i == 0 {
			then = func() { panic("burst") }
		}
		m := Outgoing{Header: contrib(1, 0), Data: make([]byte, 10), Owner: l.lend(then)}
		server.pushRun(9, &m)
	}
	server.mu.sendSleeps = false
	server.mu.Unlock()
	server.wake(server.sender.poller)
	server.h.until(t, "Failed", func() bool { return server.h.failure != nil })
	l.check(t)
}

func TestReceiveLoopSleepsOnlyWithoutWork(t *testing.T) {
	n := listen(t, 8, nil)
	idle := func() bool { return n.receiver.trySleep() }
	if !idle() || !n.mu.receiveSleeps {
		t.Error("nothing to do, and no sleep")
	}
	n.mu.inbox = append(n.mu.inbox, &conn{})
	if idle() || n.mu.receiveSleeps {
		t.Error("sleeps before a full inbox")
	}
	n.mu.inbox = nil
	n.mu.local.push(n.newRun(&Outgoing{Header: contrib(1, 0)}))
	if idle() {
		t.Error("sleeps before a packet of its own")
	}
	n.mu.local = queue{}
	n.Close()
	if idle() {
		t.Error("sleeps at the end")
	}
}

// Runs are reused: later bursts take them from the free list.
func TestRunsAreReused(t *testing.T) {
	const burst = 500
	left := 0
	done := make(chan struct{})
	n := listen(t, 8, func(n *node) {
		n.h.arrived = func(arrival) error {
			if left--; left == 0 {
				done <- struct{}{}
			}
			return nil
		}
	})
	n.start()
	data := make([]byte, 10)
	allocations := testing.AllocsPerRun(20, func() {
		n.mu.Lock()
		left = burst
		n.mu.Unlock()
		for range burst {
			n.Send(8, Outgoing{Header: contrib(1, 0), Data: data})
		}
		<-done
	})
	if allocations > burst/10 {
		t.Errorf("%v allocations for %d runs", allocations, burst)
	}
}
