package transport

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"fptps/gocore/wire"
)

const (
	ms      = time.Millisecond
	gigabit = 119.55e6
)

// TestPaceKeepsToItsRate: whenever and however much is written, no stretch of time
// carries more than its rate, the credit and the last write; a prompt writer gets
// all of the rate.
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
	if free.ready != 0 || free.commit(0) != batchBytes {
		t.Errorf("a pace without a rate waits until %v, commits %d", free.ready, free.commit(0))
	}
}

func TestCommit(t *testing.T) {
	for _, tc := range []struct {
		rate   float64
		behind time.Duration
		want   int
	}{
		{gigabit, 0, 15541},
		{gigabit, 500 * time.Microsecond, 59775},
		{gigabit, time.Second, 119550},
		{10 * gigabit, 0, 155415},
		{100 * gigabit, 0, batchBytes},
	} {
		p := pace{rate: tc.rate, ready: time.Minute}
		if got := p.commit(time.Minute + tc.behind); got != tc.want {
			t.Errorf("%.3g bytes/s, %v behind: %d bytes, expected %d", tc.rate, tc.behind, got, tc.want)
		}
	}
}

// TestOutflow: what a connection may send, by its share, by what it was told, and by
// what its path takes.
func TestOutflow(t *testing.T) {
	f := outflow{fair: 100}
	for _, tc := range []struct {
		told, path, want float64
		idle             time.Duration
	}{
		{0, 0, 100, 0},
		{250, 0, 250, 0},
		{250, 30, 30, 0},
		{0, 130, 100, 0},
		{250, 0, 250, fallBackTime},
		{250, 0, 100, fallBackTime + 1},
	} {
		f.told, f.path.limit, f.last = tc.told, tc.path, time.Minute
		f.spend(time.Minute+tc.idle, 1, 0)
		if f.rate != tc.want {
			t.Errorf("%+v: %v bytes/s", tc, f.rate)
		}
	}
	unknown := outflow{path: follow{limit: 7}}
	if got := unknown.allowed(); got != 7 {
		t.Errorf("a path's limit alone: %v", got)
	}
}

// TestChooseWaitsForThePace: a connection that has used up its rate is left out until
// it is due, but for what is more urgent than its last packet; all wait for the link,
// but those within the host.
func TestChooseWaitsForThePace(t *testing.T) {
	var tb table
	near, a, b := &conn{peer: 1, writable: true}, &conn{peer: 2, writable: true, far: true}, &conn{peer: 3, writable: true, far: true}
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
	queue(b, 5)
	a.out.ready, b.out.ready = 10*ms, 20*ms
	a.out.urgent, b.out.urgent = urgency(&wire.Header{Priority: 5}), urgency(&wire.Header{Priority: 5})
	expect(5*ms, nil, 10*ms)
	expect(10*ms, a, 20*ms)
	queue(b, 6)
	expect(5*ms, b, 10*ms)
	tb.link.ready = 30 * ms
	expect(25*ms, nil, 30*ms)
	queue(near, -1)
	expect(25*ms, near, 30*ms)
	expect(30*ms, b, never)
}

// TestDivide: shares by weight over the active flows; senders are told of changes.
func TestDivide(t *testing.T) {
	var told []float64
	flows := []*inflow{{weight: 1}, {weight: 1}, {weight: 2}}
	step := func(now time.Duration, bytes ...int) []float64 {
		for i, n := range bytes {
			if n > 0 {
				flows[i].took(now, n)
			}
		}
		told = make([]float64, len(flows))
		divide(now, 120, flows, func(i int) { told[i] = flows[i].told })
		return told
	}
	for _, tc := range []struct {
		name  string
		at    time.Duration
		bytes []int
		want  []float64
	}{
		{"nobody", 1000 * ms, []int{0, 0, 0}, []float64{0, 0, 0}},
		{"too little to count", 1000 * ms, []int{activeBytes - 1, 0, 0}, []float64{0, 0, 0}},
		{"alone", 1001 * ms, []int{1, 0, 0}, []float64{120, 0, 0}},
		{"told already", 1002 * ms, []int{1, 0, 0}, []float64{0, 0, 0}},
		{"two", 1003 * ms, []int{1, activeBytes, 0}, []float64{60, 60, 0}},
		{"by weight", 1004 * ms, []int{1, 1, activeBytes}, []float64{30, 30, 60}},
		{"the last is silent", 1009 * ms, []int{1, 1, 0}, []float64{0, 0, 0}},
		{"and is left out", 1010 * ms, []int{1, 1, 0}, []float64{60, 60, 0}},
		{"it comes back, first with little", 1011 * ms, []int{1, 1, 9}, []float64{0, 0, 0}},
		{"then in earnest", 1012 * ms, []int{1, 1, activeBytes}, []float64{30, 30, 60}},
	} {
		if got := step(tc.at, tc.bytes...); !slices.Equal(got, tc.want) {
			t.Errorf("%s: told %v, expected %v", tc.name, got, tc.want)
		}
	}
}

// line is a dumb model of a link: what is sent above its rate queues up before it.
type line struct {
	rate  float64
	queue float64
	acked uint64
}

// send has a sender run at some rate for followEvery, and tells what the kernel would.
func (l *line) send(rate float64) (p path, filled bool) {
	seconds := followEvery.Seconds()
	l.queue += rate * seconds
	through := min(l.queue, l.rate*seconds)
	l.queue -= through
	l.acked += uint64(through)
	const socket = 512 << 10 // more than this the kernel does not take
	filled = l.queue > socket
	l.queue = min(l.queue, socket)
	return path{delay: time.Duration(l.queue / l.rate * 1e9), acked: l.acked}, filled
}

// TestFollow: a link that falls to a tenth of its rate is followed within a second and
// is not flooded any more; when it is itself again, all of it is used again.
func TestFollow(t *testing.T) {
	f := follow{}
	l := &line{rate: gigabit}
	now := time.Duration(0)
	sent := func() float64 {
		if f.limit > 0 {
			return min(f.limit, 0.99*gigabit)
		}
		return 0.99 * gigabit
	}
	run := func(steps int) (slowed int, used float64) {
		first := l.acked
		for range steps {
			p, filled := l.send(sent())
			now += followEvery
			f.filled = f.filled || filled
			if f.step(now, p, 0.99*gigabit) {
				slowed++
			}
		}
		return slowed, float64(l.acked-first) / (l.rate * followEvery.Seconds() * float64(steps))
	}
	if slowed, used := run(100); slowed != 0 || used < 0.98 {
		t.Errorf("a good link: slowed %d times, used %.2f", slowed, used)
	}
	l.rate = gigabit / 10
	if slowed, _ := run(100); slowed == 0 {
		t.Error("a link of a tenth was not noticed")
	}
	worst := 0.0
	for range 20 {
		_, used := run(10)
		if used < 0.8 {
			t.Errorf("a tenth: used %.2f of it", used)
		}
		worst = max(worst, l.queue/l.rate)
	}
	if worst > 0.05 {
		t.Errorf("a queue of %.0f ms stands before the link", 1e3*worst)
	}
	l.rate = gigabit
	run(50)
	if _, used := run(50); used < 0.98 || f.limit != 0 {
		t.Errorf("the link is itself again: used %.2f, limit %v", used, f.limit)
	}
}

// TestFollowIgnoresNoise: one sign alone, or both for a moment, changes nothing.
func TestFollowIgnoresNoise(t *testing.T) {
	f := follow{}
	acked := uint64(0)
	for i := range 1000 {
		acked += 1e6
		f.filled = i%2 == 0 || i%9 == 0
		if f.step(time.Duration(i)*followEvery, path{delay: time.Duration(i%3) * 50 * ms, acked: acked}, gigabit) {
			t.Fatalf("slowed at step %d", i)
		}
	}
	f = follow{}
	for i := range 100 { // full all the time, but next to nothing was sent: delayed acknowledgements
		f.filled = true
		if f.step(time.Duration(i)*followEvery, path{delay: 40 * ms, acked: uint64(i) * 100}, gigabit) {
			t.Fatalf("slowed at step %d", i)
		}
	}
}

// TestReceiverTellsItsSenders: bytes that come over a link are answered by a rate,
// which their sender keeps to; within a host nobody is told anything.
func TestReceiverTellsItsSenders(t *testing.T) {
	for _, far := range []bool{true, false} {
		nodes := mesh(t, func(n *node) {
			n.rates = Rates{In: 7e7}
			n.sys.far = func(stream) bool { return far }
		}, 8, 9)
		server, worker := nodes[0], nodes[1]
		told := func() float64 {
			worker.mu.Lock()
			defer worker.mu.Unlock()
			return worker.mu.table.conns[8].out.told
		}
		end := time.Now().Add(deadline)
		sent := 0
		for far && told() != 7e7 && time.Now().Before(end) || !far && sent < 10 {
			sent++
			worker.Send(8, Outgoing{Header: contrib(1, 0), Data: make([]byte, 8*wire.PacketBytes)})
			server.h.untilArrived(t, 8)
		}
		if want := map[bool]float64{true: 7e7}[far]; told() != want {
			t.Errorf("far %v: told %v, expected %v", far, told(), want)
		}
	}
}

// TestToldNonsense: a peer cannot bring a connection to a standstill.
func TestToldNonsense(t *testing.T) {
	nodes := mesh(t, nil, 8, 9)
	worker := nodes[1]
	worker.told(8, 0)
	worker.told(12345, 1) // nobody
	worker.mu.Lock()
	defer worker.mu.Unlock()
	if got := worker.mu.table.conns[8].out.told; got != leastRate {
		t.Errorf("told 0: %v", got)
	}
}

// A flow that has all of the link takes one packet at a time, one that has a part of it several.
func TestASharedFlowTakesPacketsTogether(t *testing.T) {
	const link = 119e6
	for _, tc := range []struct {
		rate, link float64
		packets    int
	}{
		{link, link, 1},
		{0.7 * link, link, 1},
		{0.6 * link, link, 2},
		{link / 3, link, 3},
		{link / 8, link, 3},
		{0, link, 1}, // nothing is known of the receiver
	} {
		w := writer{t: &Transport{}}
		w.t.mu.table.link.rate = tc.link
		c := &conn{far: true, out: outflow{pace: pace{rate: tc.rate}}}
		r := new(run)
		r.init(&Outgoing{Header: contrib(1, 0), Data: make([]byte, 9*wire.PacketBytes)}, 1, ByPacket)
		c.queue.push(r)
		w.take(c)
		if w.batch.n != tc.packets {
			t.Errorf("%.0f of %.0f bytes/s: %d packets, expected %d", tc.rate, tc.link, w.batch.n, tc.packets)
		}
		if bound := 1 + w.batch.packets[0].ahead; bound != tc.packets {
			t.Errorf("%.0f of %.0f bytes/s: %d packets are bound, expected %d", tc.rate, tc.link, bound, tc.packets)
		}
	}
}
