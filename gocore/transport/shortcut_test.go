package transport

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// A small packet with nothing queued before it is written by the caller of Send while the
// send loop sleeps; a large one wakes the send loop.
func TestShortcut(t *testing.T) {
	overTCPAndShm(t, func(t *testing.T) {
		nodes := mesh(t, nil, 8, 9)
		server, worker := nodes[0], nodes[1]
		asleep := func() bool {
			worker.mu.Lock()
			defer worker.mu.Unlock()
			return worker.mu.conns.byPeer[8].writable && worker.mu.sendSleeps
		}
		var l ledger
		send := func(n int) {
			worker.Send(8, Outgoing{Header: contrib(1, 0), Data: fill(make([]byte, n), 9, 1), Owner: l.lend(nil)})
		}
		send(shortcutBytes + 1) // by the send loop: after it both loops know the connection
		server.h.untilArrived(t, 1)
		for end := time.Now().Add(deadline); l.released.Load() < 1 || !asleep(); runtime.Gosched() {
			if time.Now().After(end) {
				t.Fatal("the send loop does not sleep")
			}
		}
		before := worker.Stats().Wakeups
		for i := range 20 {
			send(shortcutBytes)
			if got := l.released.Load(); got != int64(i+2) {
				t.Fatalf("%d of %d packets are written when Send returns", got-1, i+1)
			}
		}
		server.h.untilArrived(t, 21)
		if woken := worker.Stats().Wakeups - before; woken != 0 {
			t.Errorf("the loops were woken %d times for small packets", woken)
		}
		send(shortcutBytes + 1)
		for _, a := range server.h.untilArrived(t, 22) {
			if err := checkContent(9, &a.header, a.payload); err != nil {
				t.Error(err)
			}
		}
		if woken := worker.Stats().Wakeups - before; woken != 1 {
			t.Errorf("the send loop was woken %d times for a large packet", woken)
		}
	})
}

// Many threads send small and large packets over a kernel that takes a few bytes at a time
// or none: all packets arrive complete.
func TestShortcutsOnManyThreads(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	nodes := mesh(t, func(n *node) {
		var mu sync.Mutex
		rng := rand.New(rand.NewPCG(seed, uint64(n.id)))
		n.sys.write = func(fd int, vector []unix.Iovec) (int, unix.Errno) {
			mu.Lock()
			none, limit := rng.IntN(8) == 0, 1+rng.IntN(1<<rng.UintN(15))
			mu.Unlock()
			if none {
				return 0, unix.EAGAIN
			}
			return writev(fd, cut(vector, limit))
		}
	}, 8, 9)
	server, worker := nodes[0], nodes[1]
	var l ledger
	var threads sync.WaitGroup
	const each = 300
	for thread := range uint32(4) {
		threads.Go(func() {
			for i := range uint32(each) {
				size := 1 + int(i*37)%shortcutBytes
				if i%10 == 0 {
					size = wire.PacketBytes + 1
				}
				tensor := thread*each + i
				worker.Send(8, Outgoing{Header: contrib(tensor, int32(i%3)), Data: fill(make([]byte, size), 9, tensor), Owner: l.lend(nil)})
			}
		})
	}
	threads.Wait()
	seen := map[[2]uint32]bool{}
	for _, a := range server.h.untilArrived(t, 4*(each+each/10)) {
		if err := checkContent(9, &a.header, a.payload); err != nil {
			t.Error(err)
		}
		at := [2]uint32{a.header.Tensor, a.header.Packet}
		if seen[at] {
			t.Errorf("tensor %d packet %d came twice", at[0], at[1])
		}
		seen[at] = true
	}
	worker.Close()
	l.check(t)
}
