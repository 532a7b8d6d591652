package transport

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// overLinks gives the nodes of a test links: as if each were on a host of its own.
func overLinks(n *node) { n.sys.isRemote = func(stream) bool { return true } }

// probePackets is a peer's part of a probe that sends so many packets.
func probePackets(n int) int { return n * (wire.HeaderBytes + wire.PacketBytes) }

// untilProbed waits until a node has sent so many packets of a probe.
func (n *node) untilProbed(t *testing.T, packets uint64) {
	t.Helper()
	for end := time.Now().Add(deadline); n.Stats().ProbeBytes < packets*wire.PacketBytes; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("node %d has sent %d bytes", n.id, n.Stats().ProbeBytes)
		}
	}
}

// A probe sends what it may and no more; it reaches no handler, and no counter but its own.
func TestProbeSendsItsBytes(t *testing.T) {
	nodes := mesh(t, overLinks, 8, 9, 11)
	for _, n := range nodes {
		bytes := map[uint32]int{}
		for _, peer := range nodes {
			if peer != n {
				bytes[peer.id] = probePackets(20) + 100
			}
		}
		n.probe(bytes, time.Hour)
	}
	for _, n := range nodes {
		n.untilProbed(t, 40)
		if !n.Probing() {
			t.Error("it is over before its time")
		}
	}
	nodes[1].Send(8, Outgoing{Header: contrib(1, 0), Data: make([]byte, 3)})
	nodes[0].h.untilArrived(t, 1) // behind all probes of that connection
	if nodes[1].Probing() {
		t.Error("it goes on although there are other packets")
	}
	for _, n := range nodes {
		s := n.Stats()
		if s.ProbeBytes != 40*wire.PacketBytes || n != nodes[1] && s.PacketsSent+s.BytesSent > 0 || n != nodes[0] && s.PacketsReceived > 0 || s.Malformed+s.Dropped > 0 {
			t.Errorf("node %d: %+v", n.id, s)
		}
	}
}

// The first packet for another host ends a probe; those that were queued then leave after it.
func TestProbeEndsWithTheFirstPacket(t *testing.T) {
	var order []wire.Kind
	gate, held := make(chan struct{}), make(chan struct{}, 1)
	nodes := mesh(t, func(n *node) {
		overLinks(n)
		if n.id == 9 {
			n.sys.write = func(_ int, vector []unix.Iovec) (int, unix.Errno) {
				select {
				case held <- struct{}{}:
				default:
				}
				<-gate
				var h wire.Header
				if len(vector) != 1 && len(vector) != 2 || h.Get(unsafe.Slice(vector[0].Base, vector[0].Len)) != nil {
					t.Errorf("a write of %d parts: a probe leaves alone", len(vector))
				}
				order = append(order, h.Kind)
				return taken(vector), 0
			}
		}
	}, 8, 9)
	worker := nodes[1]
	worker.untilWritable()
	worker.probe(map[uint32]int{8: probePackets(1000)}, time.Hour)
	<-held // the first one is being written
	done := make(chan struct{})
	worker.Send(8, Outgoing{Header: contrib(1, -5), Data: make([]byte, wire.PacketBytes), Owner: releaseFunc(func() { close(done) })})
	close(gate)
	<-done
	worker.untilProbed(t, probeAhead)
	worker.Close()
	if want := []wire.Kind{wire.Probe, wire.Contrib, wire.Probe}; !slices.Equal(order, want) {
		t.Errorf("written kinds %v, expected %v", order, want)
	}
}

// A peer that reads nothing has a few packets queued, and nothing hangs at the end.
func TestProbeOfAPeerThatStandsStill(t *testing.T) {
	nodes := mesh(t, func(n *node) {
		overLinks(n)
		if n.id == 9 {
			n.sys.write = func(int, []unix.Iovec) (int, unix.Errno) { return 0, unix.EAGAIN }
		}
	}, 8, 9)
	worker := nodes[1]
	worker.probe(map[uint32]int{8: ProbeBytes, 10: ProbeBytes}, time.Hour) // 10 has no connection
	worker.mu.Lock()
	if n := len(worker.mu.conns.byPeer[8].queue.heap); n > probeAhead {
		t.Errorf("%d packets are queued", n)
	}
	worker.mu.Unlock()
	nodes[0].Close()
	worker.h.untilLost(t, 8)
	worker.Close()
}

// Without a link there is nothing to probe; neither is there on a data plane with lanes.
func TestNoProbeWithinAHost(t *testing.T) {
	for name, prepare := range map[string]func(*node){"a host": nil, "lanes": func(n *node) {
		overLinks(n)
		if err := n.Divide(2); err != nil {
			t.Fatal(err)
		}
	}} {
		n := mesh(t, nil, 8, 9)[1]
		if name == "lanes" {
			n = listen(t, 9, prepare)
		}
		n.Probe(map[uint32]int{8: ProbeBytes})
		n.mu.Lock()
		if c := n.mu.conns.byPeer[8]; c != nil && !c.queue.empty() || c == nil && n.mu.probe.until > 0 {
			t.Errorf("%s: a probe is sent", name)
		}
		n.mu.Unlock()
	}
}

// A node of this host that sends a probe is disconnected: it uses no link.
func TestProbeOfThisHostIsRefused(t *testing.T) {
	nodes := mesh(t, nil, 8, 9)
	nodes[1].Send(8, Outgoing{Header: wire.Header{Kind: wire.Probe, Run: 1}, Data: make([]byte, 5)})
	err := nodes[0].h.untilLost(t, 9)
	if err == nil || !strings.Contains(err.Error(), "a probe of a link from a node of this host") || nodes[0].Stats().Malformed != 1 {
		t.Errorf("lost for %v", errors.Unwrap(err))
	}
}
