package transport

import (
	"math"
	"math/rand/v2"
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// backlog is a connection that always has packets of one priority to send.
func backlog(peer uint32, weight float64, priority int32) *conn {
	c := &conn{peer: peer, writable: true, weight: weight}
	r := new(run)
	r.init(&Outgoing{Header: contrib(1, priority)}, 1, ByPacket)
	c.queue.push(r)
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
			tb.add(backlog(peer, 0.1+10*random.Float64(), 0))
		}
		const most = 256 << 10
		for range 2000 {
			c := tb.choose(0).conn
			bytes := 1 + random.IntN(most)
			got[c.peer] += float64(bytes)
			tb.charge(c, bytes)
		}
		for _, a := range tb.order {
			for _, b := range tb.order {
				if ahead := got[a.peer]/a.weight - got[b.peer]/b.weight; ahead > most/a.weight+most/b.weight {
					t.Fatalf("seed %d: of weights %.2f and %.2f one is %.0f bytes ahead", seed, a.weight, b.weight, ahead)
				}
			}
		}
	}
}

// An urgent packet is sent first however small its weight, and its flow is charged only its
// bytes.
func TestWeightsDoNotAffectPriorities(t *testing.T) {
	var tb connSet
	urgent, bulk := backlog(8, 0.001, 1), backlog(10, 1000, 0)
	tb.add(urgent)
	tb.add(bulk)
	for range 100 {
		c := tb.choose(0).conn
		if c != urgent {
			t.Fatal("bulk goes before what is urgent")
		}
		tb.charge(c, wire.PacketBytes)
	}
}

// A flow that was idle gets its part from then on, and no credit for the idle time.
func TestIdleFlowGetsNoCredit(t *testing.T) {
	var tb connSet
	a, b := backlog(8, 1, 0), backlog(10, 1, 0)
	tb.add(a)
	tb.add(b)
	b.writable = false
	for range 1000 {
		tb.charge(tb.choose(0).conn, 1000)
	}
	b.writable = true
	served := map[*conn]int{}
	for range 100 {
		c := tb.choose(0).conn
		served[c]++
		tb.charge(c, 1000)
	}
	if served[a] < 49 || served[b] < 49 {
		t.Errorf("after its absence: %d writes, the other %d", served[b], served[a])
	}
}

// Weigh sets the weight of one connection; an invalid weight changes nothing.
func TestWeigh(t *testing.T) {
	nodes := mesh(t, nil, 8, 9)
	worker := nodes[1]
	if err := worker.Weigh(8, 3); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		peer   uint32
		weight float64
	}{{8, 0}, {8, -1}, {8, math.NaN()}, {8, math.Inf(1)}, {12345, 1}} {
		if err := worker.Weigh(tc.peer, tc.weight); fault.CodeOf(err) != fault.Value {
			t.Errorf("%+v: %v", tc, err)
		}
	}
	worker.mu.Lock()
	defer worker.mu.Unlock()
	if c := worker.mu.conns.byPeer[8]; c.weight != 3 {
		t.Errorf("weight %v", c.weight)
	}
}

// Among flows that were idle, the order of ids decides, not how long each was idle.
func TestIdleTimeGivesNoPrecedence(t *testing.T) {
	tb := connSet{lastServed: 9, virtualTime: 10}
	for peer, tag := range map[uint32]float64{8: 1, 10: 7, 12: 3} {
		c := backlog(peer, 1, 0)
		c.finishTag = tag
		tb.add(c)
	}
	for _, want := range []uint32{10, 12, 8} {
		c := tb.choose(0).conn
		if c.peer != want {
			t.Errorf("%d is served, expected %d", c.peer, want)
		}
		c.queue.pop()
	}
}
