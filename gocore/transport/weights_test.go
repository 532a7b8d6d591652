package transport

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"fptps/gocore/wire"
)

// backlog adds a connection with another host that always has packets of one priority to send.
func (t *connSet) backlog(peer uint32, weight float64, priority int32) *conn {
	c := &conn{peer: peer, remote: true, writable: true}
	r := new(run)
	r.init(&Outgoing{Header: contrib(1, priority)}, 1, ByPacket)
	c.queue.push(r)
	if t.weights == nil {
		t.weights = map[uint32]float64{}
	}
	t.weights[peer] = weight
	t.add(c)
	return c
}

// Flows of equal priority get bytes in proportion to their weights, whatever the sizes of
// their writes, to within one write of each.
func TestFlowsGetTheirWeights(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		tb := connSet{lastServed: uint32(random.IntN(20))}
		got := map[uint32]float64{}
		for peer := range uint32(2 + random.IntN(6)) {
			tb.backlog(peer, 0.1+10*random.Float64(), 0)
		}
		const most = 256 << 10
		for range 2000 {
			c := tb.choose(0).conn
			bytes := 1 + random.IntN(most)
			got[c.peer] += float64(bytes)
			tb.charge(0, c, bytes)
		}
		for _, a := range tb.order {
			for _, b := range tb.order {
				if ahead := got[a.peer]/tb.weight(a) - got[b.peer]/tb.weight(b); ahead > most/tb.weight(a)+most/tb.weight(b) {
					t.Fatalf("seed %d: of weights %.2f and %.2f one is %.0f bytes ahead", seed, tb.weight(a), tb.weight(b), ahead)
				}
			}
		}
	}
}

// An urgent packet is sent first however small its weight, and its flow is charged only its
// bytes.
func TestWeightsDoNotAffectPriorities(t *testing.T) {
	var tb connSet
	urgent := tb.backlog(8, 0.001, 1)
	tb.backlog(10, 1000, 0)
	for range 100 {
		c := tb.choose(0).conn
		if c != urgent {
			t.Fatal("bulk goes before what is urgent")
		}
		tb.charge(0, c, wire.PacketBytes)
	}
}

// A flow that had no packets gets its part from then on, and no credit for that time.
func TestIdleFlowGetsNoCredit(t *testing.T) {
	var tb connSet
	a, b := tb.backlog(8, 1, 0), tb.backlog(10, 1, 0)
	queue := b.queue
	b.queue = queueOf()
	for range 1000 {
		tb.charge(0, tb.choose(0).conn, 1000)
	}
	b.queue = queue
	served := map[*conn]int{}
	for range 100 {
		c := tb.choose(0).conn
		served[c]++
		tb.charge(0, c, 1000)
	}
	if served[a] < 49 || served[b] < 49 {
		t.Errorf("after its absence: %d writes, the other %d", served[b], served[a])
	}
}

func queueOf(runs ...*run) (q queue) {
	for _, r := range runs {
		q.push(r)
	}
	return q
}

// A flow that could not send catches up, unless it has stalled.
func TestBlockedFlowCatchesUp(t *testing.T) {
	for blocked, want := range map[time.Duration]int{stallTime - 1: 100, stallTime: 0} {
		var tb connSet
		a, b := tb.backlog(8, 1, 0), tb.backlog(10, 1, 0)
		b.writable = false
		for range 100 {
			tb.charge(0, tb.choose(0).conn, 1000)
		}
		b.writable = true
		served := map[*conn]int{}
		for range 200 {
			c := tb.choose(blocked).conn
			served[c]++
			tb.charge(blocked, c, 1000)
		}
		if ahead := served[b] - served[a]; ahead < want-2 || ahead > want+2 {
			t.Errorf("blocked for %v: %d writes, the other %d", blocked, served[b], served[a])
		}
	}
}

// Among flows that were idle, the order of ids decides, not how long each was idle.
func TestIdleTimeGivesNoPrecedence(t *testing.T) {
	tb := connSet{lastServed: 9, virtualTime: 10}
	for peer, tag := range map[uint32]float64{8: 1, 10: 7, 12: 3} {
		tb.backlog(peer, 1, 0).service.finish = tag
	}
	for _, want := range []uint32{10, 12, 8} {
		c := tb.choose(0).conn
		if c.peer != want {
			t.Errorf("%d is served, expected %d", c.peer, want)
		}
		c.queue.pop()
	}
}

// small and large are flows of which large accepts nothing more, after some writes.
func smallAndLarge() (tb *connSet, small, large *conn) {
	tb = &connSet{}
	small, large = tb.backlog(8, 0.5, 0), tb.backlog(10, 1.5, 0)
	for range 8 {
		c := tb.choose(0).conn
		tb.charge(0, c, wire.PacketBytes)
	}
	large.writable = false
	return tb, small, large
}

// ahead is the bytes that c may send, packet by packet, until it is held; at most 100 packets.
func ahead(tb *connSet, c *conn, now time.Duration) (bytes int) {
	for ; bytes < 100*wire.PacketBytes && tb.choose(now).conn == c; bytes += wire.PacketBytes {
		tb.charge(now, c, wire.PacketBytes)
	}
	return bytes
}

// A flow of less than an equal part gets leadBytes ahead of one that does not accept more, by the plan's measure. Then it waits,
// and the thread that writes learns until when.
func TestSmallFlowWaits(t *testing.T) {
	tb, small, large := smallAndLarge()
	if got := ahead(tb, small, 0); got < leadBytes/2-2*wire.PacketBytes || got > leadBytes/2+2*wire.PacketBytes {
		t.Errorf("%d bytes ahead", got)
	}
	if c := tb.choose(1); c.conn != nil || !c.blocked || c.due != stallTime {
		t.Errorf("held: %+v", c)
	}
	large.writable = true
	if c := tb.choose(1); c.conn != large {
		t.Errorf("then the other is next: %+v", c)
	}
	tb.charge(1, large, 20*leadBytes)
	large.writable = false
	if c := tb.choose(1); c.conn != small {
		t.Errorf("and after it the small one: %+v", c)
	}
}

// What a small flow does not wait for.
func TestSmallFlowDoesNotWait(t *testing.T) {
	for name, change := range map[string]func(tb *connSet, small, large *conn){
		"the other has nothing to send": func(tb *connSet, small, large *conn) { large.queue = queueOf() },
		"the other is less urgent":      func(tb *connSet, small, large *conn) { small.queue.heap[0].urgency++ },
		"the other is on this host":     func(tb *connSet, small, large *conn) { large.remote = false },
		"it is on this host itself":     func(tb *connSet, small, large *conn) { small.remote = false },
		"the other is being written":    func(tb *connSet, small, large *conn) { large.writing = true },
		"it has an equal part":          func(tb *connSet, small, large *conn) { tb.weights[8] = 1 },
		"there is no plan":              func(tb *connSet, small, large *conn) { tb.weights = nil },
	} {
		tb, small, large := smallAndLarge()
		change(tb, small, large)
		if got := ahead(tb, small, 0); got < 100*wire.PacketBytes {
			t.Errorf("%s: it waits after %d bytes", name, got)
		}
	}
}

// A peer that takes nothing for stallTime holds nobody, until it does.
func TestStalledFlowHoldsNobody(t *testing.T) {
	tb, small, large := smallAndLarge()
	ahead(tb, small, 0)
	if got := ahead(tb, small, stallTime-1); got != 0 {
		t.Errorf("%d bytes while it is held", got)
	}
	if got := ahead(tb, small, stallTime); got < 100*wire.PacketBytes {
		t.Errorf("%d bytes then", got)
	}
	large.writable = true
	tb.charge(stallTime, large, wire.PacketBytes)
	large.writable = false
	if got := ahead(tb, small, stallTime); got > leadBytes {
		t.Errorf("%d bytes after the other's write", got)
	}
}

// Traffic becomes weights relative to an equal part; peers without traffic have an equal part. All lanes, and connections
// made later, have them.
func TestWeigh(t *testing.T) {
	nodes := mesh(t, nil, 8, 9)
	worker := nodes[1]
	if err := worker.Divide(2); err != nil {
		t.Fatal(err)
	}
	worker.Weigh(map[uint32]float64{8: 6, 10: 2, 12: 0, 14: -1, 16: math.NaN(), 18: math.Inf(1)})
	for lane := range 2 {
		l := worker.Lane(lane)
		l.mu.Lock()
		for peer, want := range map[uint32]float64{8: 1.5, 10: 0.5, 12: 1, 14: 1, 16: 1, 18: 1, 20: 1} {
			if got := l.mu.conns.weight(&conn{peer: peer}); got != want {
				t.Errorf("lane %d: the weight of %d is %g", lane, peer, got)
			}
		}
		l.mu.Unlock()
	}
	worker.Weigh(nil)
	if got := worker.mu.conns.weight(&conn{peer: 8}); got != 1 {
		t.Errorf("without traffic: %g", got)
	}
}
