package transport

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"fptps/gocore/wire"
)

const (
	ms      = time.Millisecond
	gigabit = 119.55e6
)

// In no interval does a pace allow more than its rate, the credit and the last write,
// whatever the times and sizes of writes; a prompt writer gets the full rate.
func TestPaceKeepsToItsRate(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p := pace{rate: 1e4 * math.Exp(12*rng.Float64())}
		late := time.Duration(rng.IntN(5)) * ms
		now, total := time.Duration(0), 0
		for range 2000 {
			now = max(now, p.ready)
			if late > 0 {
				now += time.Duration(rng.Int64N(int64(late)))
			}
			n := 1 + rng.IntN(2*wire.PacketBytes)
			p.spend(now, n)
			total += n
			if most := p.rate*(now+creditTime).Seconds() + float64(n) + 1; float64(total) > most {
				t.Fatalf("seed %d: %d bytes after %v, at most %.0f", seed, total, now, most)
			}
		}
		if late <= creditTime && late.Seconds()*p.rate < wire.PacketBytes/2 { // by less than a write takes: all is caught up
			if least := 0.99 * p.rate * (p.ready - creditTime).Seconds(); float64(total) < least {
				t.Errorf("seed %d: %d bytes after %v, at least %.0f", seed, total, p.ready, least)
			}
		}
	}
	var free pace
	free.spend(5, 1<<30)
	if free.ready != 0 {
		t.Errorf("a pace without a rate waits until %v", free.ready)
	}
}

func TestCommitPackets(t *testing.T) {
	const kb = 1 << 10
	for _, tc := range []struct {
		windows     int
		rate        float64
		connections int
		want        int
	}{
		{minWindow, 0, 1, 1},
		{128 * kb, 0, 1, 1},
		{128 * kb, 0, 2, 2},
		{128 * kb, 0, 3, 3},
		{128 * kb, 0, 8, 3},
		{64 * kb, 0, 3, 2},
		{32 * kb, 0, 3, 1},
		{1280 * kb, 0, 1, 10},
		{maxWindow, 0, 3, batchBytes / wire.PacketBytes},
		{maxWindow, gigabit, 1, 1},
		{maxWindow, gigabit, 2, 2},
		{maxWindow, gigabit, 3, 3},
		{maxWindow, gigabit / 10, 3, 1},
	} {
		if got := commitPackets(tc.windows, tc.rate, tc.connections); got != tc.want {
			t.Errorf("%+v: %d packets", tc, got)
		}
	}
}

// Connections with other hosts wait for the pace of the link, those within the host do not.
func TestChooseWaitsForThePace(t *testing.T) {
	var tb connSet
	near, a, b := &conn{peer: 1, writable: true}, &conn{peer: 2, writable: true, remote: true}, &conn{peer: 3, writable: true, remote: true}
	for _, c := range []*conn{near, a, b} {
		tb.add(c)
	}
	queue := func(c *conn, priority int32) {
		r := new(run)
		r.init(&Outgoing{Header: contrib(1, priority)}, 1, ByPacket)
		c.queue.push(r)
	}
	expect := func(now time.Duration, c *conn, due time.Duration) {
		t.Helper()
		if got := tb.choose(now); got.conn != c || got.due != due {
			t.Errorf("at %v: chose %+v", now, got)
		}
	}
	expect(0, nil, never)
	queue(a, 5)
	queue(b, 6)
	tb.link.ready = 30 * ms
	expect(25*ms, nil, 30*ms)
	queue(near, -1)
	expect(25*ms, near, 30*ms)
	expect(30*ms, b, never)
}

// One write holds a part of the windows, or what a link of a known rate carries; within a
// host it is a whole batch.
func TestPacketsOfAWrite(t *testing.T) {
	for _, tc := range []struct {
		name    string
		remote  bool
		windows []int // of the connections that have packets
		rate    float64
		packets int
	}{
		{"at the beginning", true, []int{firstWindow}, 0, 1},
		{"two", true, []int{firstWindow, firstWindow}, 0, 2},
		{"a fast path", true, []int{1 << 20}, 0, 8},
		{"a slow path", true, []int{minWindow, minWindow, minWindow, minWindow}, 0, 1},
		{"a known rate bounds it", true, []int{1 << 20}, gigabit, 1},
		{"within the host", false, []int{firstWindow}, gigabit, 8},
	} {
		w := writer{t: &Transport{}}
		tb := &w.t.mu.conns
		tb.link.rate = tc.rate
		for i, size := range tc.windows {
			c := &conn{peer: uint32(8 + i), remote: tc.remote, writable: true, window: window{size: size}}
			r := new(run)
			r.init(&Outgoing{Header: contrib(1, 0), Data: make([]byte, 8*wire.PacketBytes)}, 1, ByPacket)
			c.queue.push(r)
			tb.add(c)
		}
		w.take(tb.choose(0).conn)
		if bound := 1 + w.batch.packets[0].ahead; bound != tc.packets {
			t.Errorf("%s: %d packets are bound, expected %d", tc.name, bound, tc.packets)
		}
	}
}
