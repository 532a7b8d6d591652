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

// A small packet with nothing queued before it is written by the caller of Send while both
// loops sleep; a large one wakes the send loop.
func TestShortcut(t *testing.T) {
	overTCPAndShm(t, func(t *testing.T) {
		if kitEndures {
			return // Release comes with an acknowledgement, and does not show what is written
		}
		nodes := mesh(t, nil, 8, 9)
		server, worker := nodes[0], nodes[1]
		var l ledger
		sent := 0
		send := func(n int) (written bool) {
			sent++
			worker.Send(8, Outgoing{Header: contrib(1, 0), Data: fill(make([]byte, n), 9, 1), Owner: l.lend(nil)})
			return l.released.Load() == int64(sent)
		}
		// All that was sent has arrived, and both loops sleep. The receive loop may still wake at any
		// time: the server reports what it has read.
		settle := func() {
			server.h.untilArrived(t, sent)
			for end := time.Now().Add(deadline); ; runtime.Gosched() {
				worker.mu.Lock()
				asleep := worker.mu.conns.byPeer[8].writable && worker.mu.sendSleeps && !worker.mu.receiverFlushes
				worker.mu.Unlock()
				if asleep && l.released.Load() == int64(sent) {
					return
				}
				if time.Now().After(end) {
					t.Fatal("the loops do not sleep")
				}
			}
		}
		send(shortcutBytes + 1) // after it both loops know the connection
		settle()
		before, written := worker.Stats().Wakeups, 0
		for tries := 0; written < 20; tries++ {
			if tries == 1000 {
				t.Fatalf("%d of %d packets are written when Send returns", written, tries)
			}
			if send(shortcutBytes) {
				written++
			}
			settle()
		}
		if woken := worker.Stats().Wakeups - before; woken >= 20 {
			t.Errorf("the loops were woken %d times for small packets", woken)
		}
		before = worker.Stats().Wakeups
		send(shortcutBytes + 1)
		settle()
		for _, a := range server.h.untilArrived(t, sent) {
			if err := checkContent(9, &a.header, a.payload); err != nil {
				t.Error(err)
			}
		}
		if woken := worker.Stats().Wakeups - before; woken == 0 {
			t.Error("no loop was woken for a large packet")
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
