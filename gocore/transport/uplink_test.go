package transport

import (
	"math"
	"math/rand/v2"
	"slices"
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
	conn  *conn
	held  float64 // bytes that are not acknowledged
	path  path
	waits [recentPackets]time.Duration
	next  int
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
			p.flow.waits[p.flow.next] = waited
			p.flow.next = (p.flow.next + 1) % recentPackets
			p.flow.path.mean += (p.flow.path.shortest + waited - p.flow.path.mean) / 8 // as TCP does
			if p.flow.path.wait = slices.Min(p.flow.waits[:]); len(h.flows) == 1 {
				p.flow.path.wait = p.flow.path.mean - p.flow.path.shortest
			}
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
				if got := h.set.uplink.known / rate; math.Abs(got-1) > 0.03 && !h.set.uplink.trying {
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
			if got := h.set.uplink.known / h.rate; math.Abs(got-1) > 0.03 && !h.set.uplink.trying {
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

// waits is a path before whose link packets wait.
func waits(acked uint64, wait time.Duration) path { return path{acked: acked, mean: wait} }

// sends lets a flow have packets to send, or not, for a while, of which all that the limit allows pass.
func (u *uplink) sends(now, d time.Duration, f *flow, rate float64, wait time.Duration, waiting bool) time.Duration {
	for end := now + d; now < end; now += ms {
		if limit := u.limit(); limit > 0 {
			rate = min(rate, limit)
		}
		u.observe(now, f, waits(f.acked+uint64(rate*ms.Seconds()), wait), waiting)
	}
	return now
}

// Only a queue that all flows have is before this host's link.
func TestUplinkOfFlowsThatDoNotWait(t *testing.T) {
	fast, slow, later := new(flow), new(flow), new(flow)
	var u uplink
	for i := range 1000 {
		for f, wait := range map[*flow]time.Duration{fast: 0, slow: 5 * ms, later: 5 * ms} {
			u.observe(time.Duration(i)*ms, f, waits(f.acked+wire.PacketBytes, wait), f != later || i < 500)
		}
	}
	if u.known != 0 || len(u.capacity.last) > 0 {
		t.Errorf("learned %v from %v", u.known, u.capacity.last)
	}
	if len(u.active) != 2 {
		t.Errorf("%d flows are active, one of three has nothing to send", len(u.active))
	}
	u.sends(time.Second, 100*ms, slow, 1e8, 5*ms, true)
	if len(u.active) != 1 {
		t.Errorf("%d flows are active, only one has sent for 100 ms", len(u.active))
	}
}

// After a measurement the queue is emptied, then there is none; now and then the link is tried.
func TestUplinkLimits(t *testing.T) {
	const rate = 1e8
	f := new(flow)
	var u uplink
	expect := func(name string, gain float64) {
		t.Helper()
		if got := u.limit() / u.known; math.Abs(got-gain) > 0.001 {
			t.Errorf("%s: the limit is %.3f of what is known, expected %.3f", name, got, gain)
		}
	}
	now := time.Duration(0)
	for u.known == 0 {
		now = u.sends(now, ms, f, rate, 2*ms, true)
	}
	expect("a queue of 2 ms", drainGain)
	now = u.sends(now, 22*ms, f, rate, 0, true)
	expect("the queue is gone", singleGain)
	other := new(flow)
	u.sends(now, ms, other, 0, 0, true)
	expect("two peers", cruiseGain)
	now = u.sends(now, cruiseTime+ms, f, rate, 0, true)
	expect("after a second", tryGain)
	before := u.known
	now = u.sends(now, 2*tryTime, f, 2*rate, 0, true)
	if u.known != before*raiseGain {
		t.Errorf("no queue: %.3g is known after %.3g", u.known, before)
	}
	u.sends(now, cruiseTime/2, f, rate, 0, true)
	if u.known != before*raiseGain || u.trying {
		t.Errorf("too little to send: %.3g is known after %.3g", u.known, before)
	}
}

// With pauses a burst may pass at once, which is not what the link carries.
func TestUplinkIsNotRaisedByBursts(t *testing.T) {
	const rate = 25e6
	f := new(flow)
	u := uplink{capacity: capacity{known: rate}}
	now := time.Second
	for range 200 {
		f.acked += 8 * wire.PacketBytes
		now = u.sends(now, 40*ms, f, rate, 0, true)
		now = u.sends(now, 5*ms, f, 0, 0, false)
	}
	if u.known != rate {
		t.Errorf("%.3g is known, the link carries %.3g", u.known, rate)
	}
}

// Packets that wait elsewhere, such as for a slow process of the peer, do not make the rate fall and fall.
func TestUplinkIsNotLimitedByItsOwnLimit(t *testing.T) {
	const rate = 1e8
	f := new(flow)
	u := uplink{capacity: capacity{known: rate}}
	for now := ms; now < 10*time.Second; {
		now = u.sends(now, ms, f, rate, ms, true)
		if u.known < 0.95*rate {
			t.Fatalf("after %v: %.3g of %.3g bytes/s", now, u.known, rate)
		}
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
			s.uplink.known = tc.learned
		}
		s.learn(ms, c, path{shortest: ms, mean: ms}, true)
		if math.Abs(s.link.rate-tc.want) > 0.01 {
			t.Errorf("%+v: the limit is %v", tc, s.link.rate)
		}
	}
}

// Where the plan gives peers unequal parts flows wait for each other, and nothing is limited.
func TestUplinkOfUnequalParts(t *testing.T) {
	const rate = 1e8
	for _, tc := range []struct {
		name  string
		parts map[uint32]float64
		want  float64
	}{
		{"no plan", nil, cruiseGain * rate},
		{"equal parts", map[uint32]float64{8: 5, 9: 5}, cruiseGain * rate},
		{"a little less", map[uint32]float64{8: 45, 9: 55}, cruiseGain * rate},
		{"unequal parts", map[uint32]float64{8: 1, 9: 2}, 0},
	} {
		tr := new(Transport)
		u := &tr.mu.conns.uplink
		u.known, u.active = rate, []*flow{{}, {}}
		tr.Weigh(map[uint32]float64{8: 1, 9: 9})
		if tr.Weigh(tc.parts); u.limit() != tc.want {
			t.Errorf("%s: the limit is %.3g, expected %.3g", tc.name, u.limit(), tc.want)
		}
		if u.active = u.active[:1]; u.limit() != singleGain*rate {
			t.Errorf("%s, a single peer: the limit is %.3g", tc.name, u.limit())
		}
	}
}
