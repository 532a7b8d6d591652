package transport

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// fragmented makes n's system calls transfer a few bytes at a time, or none.
func fragmented(n *node, seed uint64) {
	shim := func(call func(int, []unix.Iovec) (int, unix.Errno), rng *rand.Rand) func(int, []unix.Iovec) (int, unix.Errno) {
		var mu sync.Mutex // both loops write, on different connections at the same time
		draw := func() (refused bool, limit int) {
			mu.Lock()
			defer mu.Unlock()
			return rng.IntN(8) == 0, 1 + rng.IntN(1<<rng.UintN(17))
		}
		return func(fd int, vector []unix.Iovec) (int, unix.Errno) {
			refused, limit := draw()
			if refused {
				return 0, unix.EAGAIN
			}
			return call(fd, cut(vector, limit))
		}
	}
	n.sys = system{isRemote: leavesHost,
		read:  shim(readv, rand.New(rand.NewPCG(seed, uint64(n.id)))),
		write: shim(writev, rand.New(rand.NewPCG(seed+1, uint64(n.id)))),
	}
}

// cut returns the first limit bytes of vector.
func cut(vector []unix.Iovec, limit int) (short []unix.Iovec) {
	for _, v := range vector {
		if limit == 0 {
			break
		}
		v.SetLen(min(limit, int(v.Len)))
		limit -= int(v.Len)
		short = append(short, v)
	}
	return short
}

// inspector checks the packets of one node: every packet of every tensor arrives once, with
// the right bytes, and for each sender in the order that Send guarantees.
type inspector struct {
	mu     sync.Mutex
	counts map[string]int // by sender, tensor and packet
	seqs   map[string]uint32
	errs   []error
}

func (in *inspector) arrived(a arrival) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.counts[fmt.Sprint(a.peer, " ", a.header.Tensor, " ", a.header.Packet)]++
	if err := checkContent(a.peer, &a.header, a.payload); err != nil {
		in.errs = append(in.errs, err)
	}
	// A sender numbers its tensors in the order of its Sends, so among equals of
	// one sender (tensor, packet) only grows.
	class := fmt.Sprint(a.peer, " ", urgency(&a.header))
	if place := a.header.Tensor<<8 | a.header.Packet; place < in.seqs[class] {
		in.errs = append(in.errs, fmt.Errorf("node %d, priority %d: tensor %d packet %d came late",
			a.peer, a.header.Priority, a.header.Tensor, a.header.Packet))
	} else {
		in.seqs[class] = place
	}
	return nil
}

// Every node sends many runs to every node, itself included, concurrently.
func TestEveryByteArrivesOnce(t *testing.T) { overTCPAndShm(t, testEveryByteArrivesOnce) }

func testEveryByteArrivesOnce(t *testing.T) {
	for _, tc := range exchanges {
		if tc.fragments && kitSharedMemory == SharedMemoryAlways {
			continue // there is no kernel to cut them
		}
		t.Run(tc.name, func(t *testing.T) { tc.run(t, nil) })
	}
}

// exchanges are what nodes send each other to test that it arrives.
var exchanges = []traffic{
	{"pair", []uint32{8, 9}, 60, 22, false},
	{"pair in fragments", []uint32{8, 9}, 80, 19, true},
	{"six", []uint32{1, 8, 10, 9, 11, 13}, 60, 19, false},
	{"six in fragments", []uint32{1, 8, 10, 9, 11, 13}, 40, 17, true},
	{"thousands of small ones", []uint32{8, 9, 11}, 4000, 6, false},
}

type traffic struct {
	name       string
	ids        []uint32
	runs, bits int
	fragments  bool
}

// run has nodes exchange all of it, and checks what arrives. prepare may change the nodes.
func (tc *traffic) run(t *testing.T, prepare func(n *node, rng *rand.Rand)) (nodes []*node) {
	seed := rand.Uint64()
	rng := seeded(t, seed)
	inspectors := map[uint32]*inspector{}
	nodes = mesh(t, func(n *node) {
		in := &inspector{counts: map[string]int{}, seqs: map[string]uint32{}}
		inspectors[n.id] = in
		n.h.arrived = func(a arrival) error {
			err := in.arrived(a)
			n.h.note(func() {})
			return err
		}
		if tc.fragments {
			fragmented(n, seed)
		}
		if prepare != nil {
			prepare(n, rng)
		}
	}, tc.ids...)

	var l ledger
	wanted := map[uint32]int{}
	var sends sync.WaitGroup
	for _, n := range nodes {
		plan := make([]Outgoing, tc.runs*len(nodes))
		for i := range plan {
			plan[i] = Outgoing{Header: contrib(uint32(i+1), int32(rng.IntN(3))), Owner: l.lend(nil)}
			h := &plan[i].Header
			switch rng.IntN(8) {
			case 0:
				h.Kind, h.RawLen = wire.Empty, 1
			case 1:
				h.Kind, h.RawLen = wire.Sum, 8
			case 2:
				h.Kind = wire.Sum
			}
			if h.RawLen == 0 {
				plan[i].Data = fill(make([]byte, 1+rng.IntN(1<<rng.IntN(tc.bits+1))), n.id, h.Tensor)
			}
			to := nodes[i%len(nodes)]
			wanted[to.id] += max(1, int(wire.Packets(uint64(len(plan[i].Data)))))
		}
		sends.Go(func() {
			for i, m := range plan {
				n.Send(nodes[i%len(nodes)].id, m)
			}
		})
	}
	sends.Wait()
	for _, n := range nodes {
		in := inspectors[n.id]
		n.h.until(t, fmt.Sprint(wanted[n.id], " packets"), func() bool {
			in.mu.Lock()
			defer in.mu.Unlock()
			return len(in.counts) >= wanted[n.id]
		})
	}
	for _, n := range nodes {
		n.h.note(func() {
			if len(n.h.ends) > 0 || n.h.failure != nil {
				t.Errorf("node %d lost %v, failure %v", n.id, n.h.ends, n.h.failure)
			}
		})
	}
	for _, n := range nodes {
		n.Close()
		in := inspectors[n.id]
		for packet, count := range in.counts {
			if count != 1 {
				t.Errorf("node %d got %s %d times", n.id, packet, count)
			}
		}
		if len(in.counts) != wanted[n.id] || len(in.errs) > 0 {
			t.Errorf("node %d got %d packets of %d; %v", n.id, len(in.counts), wanted[n.id], in.errs)
		}
		n.h.places.check(t)
	}
	l.check(t)
	return nodes
}

// gate blocks a node's first write until it is opened, so that packets sent meanwhile are
// queued together. The kernel takes limit bytes of the first write.
type gate struct {
	limit   int
	reached chan struct{}
	open    chan struct{}
	writes  int
}

func gated(n *node, limit int) *gate {
	g := &gate{limit: limit, reached: make(chan struct{}), open: make(chan struct{})}
	n.sys.write = func(fd int, vector []unix.Iovec) (int, unix.Errno) {
		g.writes++
		if g.writes > 1 {
			return writev(fd, vector)
		}
		close(g.reached)
		<-g.open
		return writev(fd, cut(vector, g.limit))
	}
	return g
}

func TestUrgentPacketsOvertakeQueuedOnes(t *testing.T) {
	var g *gate
	nodes := mesh(t, func(n *node) {
		if n.id == 9 {
			g = gated(n, 50_000)
		}
	}, 8, 9)
	server, worker := nodes[0], nodes[1]
	send := func(tensor uint32, kind wire.Kind, priority int32, packets int) {
		h := contrib(tensor, priority)
		h.Kind = kind
		worker.Send(8, Outgoing{Header: h, Data: fill(make([]byte, packets*wire.PacketBytes), 9, tensor)})
	}
	send(1, wire.Contrib, 0, 20)
	<-g.reached
	send(2, wire.Contrib, 0, 2)
	send(3, wire.Contrib, -5, 1)
	send(4, wire.Sum, 0, 2)
	send(5, wire.Contrib, 7, 2)
	close(g.open)

	// 50 000 bytes are three packets and a part of the fourth, which goes on, with the
	// four that the first one has announced besides.
	want := []uint32{1, 1, 1, 1, 1, 1, 1, 1, 5, 5, 4, 4}
	for range 12 {
		want = append(want, 1)
	}
	want = append(want, 2, 2, 3)
	for i, a := range server.h.untilArrived(t, len(want)) {
		if a.header.Tensor != want[i] {
			t.Errorf("place %d has tensor %d, expected %d", i, a.header.Tensor, want[i])
		}
		if err := checkContent(9, &a.header, a.payload); err != nil {
			t.Error(err)
		}
	}
}

// System calls are counted with a kernel that takes everything.
func TestWritesPerPacket(t *testing.T) {
	for _, tc := range []struct {
		name           string
		runs, size     int
		packets, calls int
	}{
		{"large", 1, 256 * wire.PacketBytes, 256, 16},
		{"several runs", 16, 4 * wire.PacketBytes, 64, 4},
		{"small", 1280, 4, 1280, 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			first := make(chan struct{})
			open := make(chan struct{})
			done := make(chan struct{}, tc.runs+1)
			calls, bytes := 0, 0
			nodes := mesh(t, func(n *node) {
				if n.id != 9 {
					return
				}
				n.sys.write = func(_ int, vector []unix.Iovec) (total int, _ unix.Errno) {
					if calls++; calls == 1 {
						close(first)
						<-open
					}
					for _, v := range vector {
						total += int(v.Len)
					}
					bytes += total
					return total, 0
				}
			}, 8, 9)
			owner := releaseFunc(func() { done <- struct{}{} })
			nodes[1].Send(8, Outgoing{Header: contrib(1, 0), Data: make([]byte, shortcutBytes+1), Owner: owner})
			<-first
			for range tc.runs {
				nodes[1].Send(8, Outgoing{Header: contrib(2, 0), Data: make([]byte, tc.size), Owner: owner})
			}
			close(open)
			for range tc.runs + 1 {
				<-done
			}
			nodes[1].Close()
			if want := tc.runs*tc.size + shortcutBytes + 1 + (tc.packets+1)*wire.HeaderBytes; calls-1 != tc.calls || bytes != want {
				t.Errorf("%d writes of %d bytes, expected %d of %d", calls-1, bytes, tc.calls, want)
			}
			if s := nodes[1].Stats(); int(s.Writes) != calls || int(s.PacketsSent) != tc.packets+1 || int(s.BytesSent) != tc.runs*tc.size+shortcutBytes+1 {
				t.Errorf("counted %+v", s)
			}
		})
	}
}

type releaseFunc func()

func (f releaseFunc) Release() { f() }

// echo sends a packet back and forth between two nodes n times, with memory allocated at the
// start; done is closed at the end. Sent and received packets use separate memory.
type echo struct {
	node  *node
	peer  uint32
	left  int
	place []byte
	data  []byte
	done  chan struct{}
}

func (e *echo) attach() {
	e.node.h.place = func(_ uint32, h *wire.Header) (Destination, error) {
		return Destination{Bytes: e.place[:h.WireLen]}, nil
	}
	e.node.h.arrived = func(a arrival) error {
		if e.left--; e.left == 0 {
			close(e.done)
			return nil
		}
		e.node.Send(e.peer, Outgoing{Header: contrib(1, 0), Data: e.data})
		return nil
	}
}

// echoes prepares two nodes for n packets in all, of size bytes.
func echoes(t testing.TB, n, size int) (start func(), done chan struct{}, nodes []*node) {
	done = make(chan struct{})
	nodes = mesh(t, func(node *node) {
		left := -1 // the second node never ends it
		if node.id == 8 {
			left = (n + 1) / 2
		}
		(&echo{node: node, peer: 8 + 9 - node.id, left: left, place: make([]byte, size), data: make([]byte, size), done: done}).attach()
	}, 8, 9)
	return func() { nodes[1].Send(8, Outgoing{Header: contrib(1, 0), Data: make([]byte, size)}) }, done, nodes
}

func TestNothingIsAllocatedPerPacket(t *testing.T) { overTCPAndShm(t, testNothingIsAllocatedPerPacket) }

func testNothingIsAllocatedPerPacket(t *testing.T) {
	const packets = 4000
	for _, size := range []int{4, 4096, wire.PacketBytes} {
		start, done, _ := echoes(t, packets, size)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start()
		<-done
		runtime.ReadMemStats(&after)
		if n := after.Mallocs - before.Mallocs; n > packets/50 {
			t.Errorf("%d allocations for %d packets of %d bytes", n, packets, size)
		}
	}
}

func TestSystemCallsOnARealKernel(t *testing.T) {
	const packets = 2000
	start, done, nodes := echoes(t, packets, wire.PacketBytes)
	start()
	<-done
	s := nodes[0].Stats()
	// The receive loop answers by itself: no thread is woken.
	if s.Writes > 3*packets || s.Reads > 12*packets || s.Wakeups > packets/20 {
		t.Errorf("%+v for %d packets", s, packets)
	}
	t.Logf("%+v for %d packets each way", s, packets/2)
}

// Headers announce the packets that follow, so that one read takes many packets of a large tensor.
func TestOneReadTakesManyPackets(t *testing.T) {
	const packets = 4096
	left, done := packets, make(chan struct{})
	nodes := mesh(t, func(n *node) {
		n.h.arrived = func(arrival) error {
			if left--; left == 0 {
				close(done)
			}
			return nil
		}
	}, 8, 9)
	nodes[1].Send(8, Outgoing{Header: contrib(1, 0), Data: make([]byte, packets*wire.PacketBytes)})
	<-done
	if s := nodes[0].Stats(); s.Reads > packets/2 {
		t.Errorf("%d reads for %d packets", s.Reads, packets)
	}
}
