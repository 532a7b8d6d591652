package transport

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"fptps/gocore/wire"
)

// host is a model of a host that sends to several others over its link: a token bucket, so
// that bursts pass faster, with a queue before it. Every flow always has packets unless idle.
type host struct {
	rate   float64 // bytes per second
	bucket float64 // bytes
	tokens float64
	random *rand.Rand
	now    time.Duration
	set    connSet
	flows  []*modelFlow
	queue  []modelPacket
	queued float64
	sent   float64
	idle   bool
	late   time.Duration // by which the sender wakes too late at most
	wakes  time.Duration
}

type modelFlow struct {
	conn *conn
	held float64 // bytes that are not acknowledged
	path path
}

type modelPacket struct {
	flow  *modelFlow
	bytes float64
	begun time.Duration
}

const modelPacketBytes = wire.HeaderBytes + wire.PacketBytes

func newHost(rate, bucket float64, flows int, seed uint64) *host {
	h := &host{rate: rate, bucket: bucket, random: rand.New(rand.NewPCG(seed, 2))}
	for i := range flows {
		f := &modelFlow{conn: &conn{peer: uint32(i), remote: true, window: window{size: firstWindow}}}
		f.path = path{shortest: ms / 5, mean: ms / 5, waitKnown: true}
		h.flows = append(h.flows, f)
	}
	return h
}

// run returns the part of the link that was used and the mean wait of packets.
func (h *host) run(d time.Duration) (used float64, wait time.Duration) {
	begin, waits, packets := h.sent, time.Duration(0), 0
	for end := h.now + d; h.now < end; h.now += step {
		h.tokens = min(h.bucket, h.tokens+h.rate*step.Seconds())
		for len(h.queue) > 0 && h.tokens >= h.queue[0].bytes {
			p := h.queue[0]
			h.queue = h.queue[1:]
			h.tokens -= p.bytes
			h.queued, h.sent, p.flow.held = h.queued-p.bytes, h.sent+p.bytes, p.flow.held-p.bytes
			waited := max(0, h.now-p.begun-time.Duration(p.bytes/h.rate*1e9)) // until its header arrives
			waits, packets = waits+waited, packets+1
			p.flow.path.acked += uint64(p.bytes)
			p.flow.path.wait += (waited - p.flow.path.wait) / waitGain
			p.flow.path.mean = p.flow.path.shortest + p.flow.path.wait
		}
		h.send()
	}
	if packets > 0 {
		wait = waits / time.Duration(packets)
	}
	return (h.sent - begin) / (h.rate * d.Seconds()), wait
}

// send writes what windows and pace allow, one packet of each flow after the other.
func (h *host) send() {
	if h.idle || h.now < h.wakes || h.now < h.set.link.ready {
		return
	}
	for range h.flows {
		f := h.flows[0]
		h.flows = append(h.flows[1:], f)
		due := f.conn.window.due(h.now)
		if f.held < float64(f.conn.window.bound()) {
			f.held, h.queued = f.held+modelPacketBytes, h.queued+modelPacketBytes
			h.queue = append(h.queue, modelPacket{f, modelPacketBytes, h.now})
			h.set.link.spend(h.now, modelPacketBytes)
		} else {
			f.conn.window.refused = true
		}
		if due {
			h.set.learn(h.now, f.conn, f.path, true)
		}
		if h.set.link.ready > h.now {
			break
		}
	}
	if h.late > 0 {
		h.wakes = h.now + time.Duration(h.random.Int64N(int64(h.late)))
	}
}

// A host learns its link's rate, whatever that, its bucket and the number of peers. With a single one packets hardly wait then;
// the link is used with all.
func TestUplinkLearnsItsRate(t *testing.T) {
	for _, rate := range []float64{gigabit / 10, gigabit / 5, gigabit} {
		for _, bucket := range []float64{32 << 10, 256 << 10} {
			for _, flows := range []int{1, 3, 8} {
				h := newHost(rate, bucket, flows, 1)
				h.run(2 * time.Second)
				used, wait := h.run(5 * time.Second)
				if got := h.set.uplink.rate / rate; math.Abs(got-1) > 0.03 && !h.set.uplink.trying {
					t.Errorf("%.3g bytes/s, bucket %g, %d flows: learned %.3f of it", rate, bucket, flows, got)
				}
				if used < 0.97 || flows == 1 && wait > ms/2 {
					t.Errorf("%.3g bytes/s, bucket %g, %d flows: %.3f used, packets wait %v", rate, bucket, flows, used, wait)
				}
			}
		}
	}
}

// A link that becomes slower has no long queue after 100 ms, and one that becomes faster is used again
// within a second. Both rates are learned.
func TestUplinkFollowsItsLink(t *testing.T) {
	for _, flows := range []int{1, 4} {
		h := newHost(gigabit, 64<<10, flows, 2)
		learns := func(name string) {
			h.run(2 * time.Second)
			if got := h.set.uplink.rate / h.rate; math.Abs(got-1) > 0.03 && !h.set.uplink.trying {
				t.Errorf("%d flows, %s: learned %.3f of the rate", flows, name, got)
			}
		}
		learns("at first")
		h.rate = gigabit / 4
		h.run(100 * ms)
		if used, wait := h.run(400 * ms); used < 0.97 || wait > 4*ms {
			t.Errorf("%d flows, a fourth: %.3f used, packets wait %v", flows, used, wait)
		}
		learns("a fourth")
		h.rate = gigabit
		h.run(time.Second + 200*ms)
		if used, wait := h.run(400 * ms); used < 0.95 || wait > 4*ms {
			t.Errorf("%d flows, as before: %.3f used, packets wait %v", flows, used, wait)
		}
		learns("as before")
	}
}

// A process that wakes late does not make the link seem slow.
func TestUplinkOfALateSender(t *testing.T) {
	for seed := range uint64(5) {
		h := newHost(gigabit, 64<<10, 1, seed)
		h.late = 4 * ms
		h.run(3 * time.Second)
		before, _ := h.run(3 * time.Second)
		h.late = 0
		h.run(time.Second)
		if used, _ := h.run(2 * time.Second); used < 0.95 {
			t.Errorf("seed %d: %.3f used, %.3f while it was late", seed, used, before)
		}
	}
}

// Measurements that differ are no rate.
func TestUplinkNeedsAgreement(t *testing.T) {
	for _, tc := range []struct {
		rates []float64
		want  float64
	}{
		{[]float64{100}, 0},
		{[]float64{100, 99}, 0},
		{[]float64{100, 99, 97}, 100},
		{[]float64{100, 99, 95}, 0},
		{[]float64{50, 100, 99, 97}, 100},
		{[]float64{100, 99, 97, 50, 50}, 0},
		{[]float64{100, 99, 97, 50, 50, 51}, 51},
	} {
		u := uplink{active: []*flow{{wait: ms}}}
		for _, rate := range tc.rates {
			u.settle(time.Second, rate)
		}
		if u.rate != tc.want {
			t.Errorf("%v: %v, expected %v", tc.rates, u.rate, tc.want)
		}
	}
}

// Only a queue that all flows have is before this host's link.
func TestUplinkOfFlowsThatDoNotWait(t *testing.T) {
	fast, slow, later := &flow{wait: 0}, &flow{wait: 5 * ms}, &flow{wait: 5 * ms}
	var u uplink
	for i := range 1000 {
		for _, f := range []*flow{fast, slow, later} {
			f.acked += wire.PacketBytes
			u.observe(time.Duration(i)*ms, f, f != later || i < 500)
		}
	}
	if u.rate != 0 || len(u.rates) > 0 {
		t.Errorf("learned %v", u.rates)
	}
	if len(u.active) != 2 {
		t.Errorf("%d flows are active, one of three has nothing to send", len(u.active))
	}
	for i := range 100 {
		slow.acked += wire.PacketBytes
		u.observe(time.Second+time.Duration(i)*ms, slow, true)
	}
	if len(u.active) != 1 {
		t.Errorf("%d flows are active, only one has sent for 100 ms", len(u.active))
	}
}

// After a measurement the queue is emptied, then there is none; now and then the link is tried.
func TestUplinkLimits(t *testing.T) {
	f := &flow{wait: 2 * ms}
	u := uplink{active: []*flow{f}, rates: []float64{100, 100}}
	u.last = time.Second
	u.settle(time.Second, 100)
	expect := func(name string, want float64) {
		t.Helper()
		if got := u.limit(); math.Abs(got-want) > 0.01 {
			t.Errorf("%s: %v, expected %v", name, got, want)
		}
	}
	expect("a queue of 2 ms", 90)
	f.wait = 0
	now := time.Second
	run := func(d time.Duration, waiting bool) {
		for end := now + d; now < end; {
			now += ms
			u.observe(now, f, waiting)
		}
	}
	run(21*ms, true)
	expect("the queue is gone", 98)
	run(time.Second, true)
	expect("after a second", 110)
	run(tryTime, true)
	expect("no queue", 125*tryGain)
	run(time.Minute, false)
	expect("nothing to send, so no peer", 0)
}

// Packets that wait elsewhere, such as for a slow process of the peer, do not make the rate fall and fall.
func TestUplinkIsNotLimitedByItsOwnLimit(t *testing.T) {
	const rate = 1e8
	f := &flow{wait: ms}
	u := uplink{active: []*flow{f}, rates: []float64{rate, rate}}
	u.settle(0, rate)
	for now := ms; now < 10*time.Second; now += ms {
		f.acked += uint64(min(u.limit(), rate) * ms.Seconds())
		u.observe(now, f, true)
		if u.rate < 0.95*rate {
			t.Fatalf("after %v: %.3g of %.3g bytes/s", now, u.rate, rate)
		}
	}
}

// A measurement adds up flows that are observed at different times, and some of them once.
func TestUplinkMeasures(t *testing.T) {
	mb := func(n float64) uint64 { return uint64(n * (1 << 20)) }
	whole := &flow{markAt: 0, at: 100 * ms, acked: mb(10)}
	half := &flow{markAt: 50 * ms, at: 100 * ms, markAcked: mb(1), acked: mb(6)}
	once := &flow{markAt: 90 * ms, at: 90 * ms, markAcked: mb(5), acked: mb(5)}
	late := &flow{markAt: 90 * ms, at: 100 * ms, acked: mb(1)}
	before := &flow{measurement: -1, acked: mb(1000)}
	for _, tc := range []struct {
		name  string
		flows []*flow
		want  uint64
	}{
		{"all the time", []*flow{whole}, mb(100)},
		{"half of it", []*flow{whole, half}, mb(200)},
		{"observed once", []*flow{whole, once}, mb(100)},
		{"at the end", []*flow{whole, late}, mb(110)},
		{"not at all", []*flow{whole, before}, mb(100)},
	} {
		u := uplink{active: tc.flows}
		if rate, ok := u.measured(100 * ms); !ok || math.Abs(rate/float64(tc.want)-1) > 0.001 {
			t.Errorf("%s: %.4g, %v, expected %.4g", tc.name, rate, ok, float64(tc.want))
		}
		if _, ok := u.measured(measureTime - 1); ok {
			t.Errorf("%s: measured too early", tc.name)
		}
	}
	few := uplink{active: []*flow{{at: 100 * ms, acked: measureBytes - 1}}}
	if _, ok := few.measured(100 * ms); ok {
		t.Error("measured by too few bytes")
	}
}

// What a user has said is the most, whatever is learned.
func TestLearnedRateAndBound(t *testing.T) {
	for _, tc := range []struct{ bound, learned, want float64 }{
		{0, 0, 0}, {50, 0, 50}, {0, 100, 98}, {50, 100, 50}, {200, 100, 98},
	} {
		c := &conn{remote: true}
		s := connSet{bound: tc.bound}
		if tc.learned > 0 {
			s.uplink.rate, s.uplink.rates = tc.learned, []float64{tc.learned}
		}
		s.learn(ms, c, path{shortest: ms, mean: ms}, true)
		if math.Abs(s.link.rate-tc.want) > 0.01 {
			t.Errorf("%+v: the limit is %v", tc, s.link.rate)
		}
	}
}
