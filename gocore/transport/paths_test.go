package transport

import (
	"maps"
	"math"
	"testing"
	"time"
)

// source is a model of a host that sends to a receiver: a window of bytes, which are in the queues before its link, on the path and
// before the receiver's link.
type source struct {
	link, path float64       // bytes per second
	only       bool          // it sends to nobody else, so that it cannot tell its link from the path
	every      time.Duration // it has packets to send in the first half of this time; 0: always
	queued     [3]float64
	sent       float64
}

const modelWindow = 32 << 10

// playPaths lets hosts send to a receiver, whose link has a rate, and returns what it learns of their paths.
func playPaths(d time.Duration, down float64, senders ...*source) map[uint32]float64 {
	r := &receiver{t: &Transport{}, conns: map[uint32]*conn{}}
	for i := range senders {
		c := &conn{peer: uint32(i), remote: true}
		r.conns[c.peer] = c
		r.t.mu.conns.add(c)
	}
	const step = ms / 10
	for now := time.Duration(step); now < d; now += step {
		before := 0.0 // the receiver's link
		for _, s := range senders {
			before += s.queued[2]
		}
		for i, s := range senders {
			pass := min(s.queued[2], down*step.Seconds()*s.queued[2]/max(1, before))
			path := min(s.queued[1], s.path*step.Seconds())
			link := min(s.queued[0], s.link*step.Seconds())
			s.queued = [3]float64{s.queued[0] - link, s.queued[1] + link - path, s.queued[2] + path - pass}
			s.sent += pass
			if s.every == 0 || now%s.every < s.every/2 {
				s.queued[0] += max(0, modelWindow-s.queued[0]-s.queued[1]-s.queued[2])
			}
			if pass == 0 {
				continue
			}
			c, seconds := r.conns[uint32(i)], func(t float64) time.Duration { return time.Duration(t * float64(time.Second)) }
			own := seconds(s.queued[0] / s.link)
			wait := own + seconds(s.queued[1]/s.path+before/down)
			if s.only {
				own = wait
			}
			c.least.set(now, wait)
			c.uplink.set(now, own)
			r.linked += uint64(s.sent) - c.linked
			c.linked = uint64(s.sent)
			r.compare(now, c, false)
		}
	}
	return r.t.mu.conns.paths()
}

func TestSlowPathsAreFound(t *testing.T) {
	const fast = 25e6
	quick := func() *source { return &source{link: fast, path: 10 * fast} }
	sometimes := func() *source { return &source{link: fast, path: 10 * fast, every: time.Second} }
	for name, tc := range map[string]struct {
		down    float64
		senders []*source
		want    float64 // of the first one; 0: no path is slow
	}{
		"a slow path":                       {fast, []*source{{link: fast, path: fast / 8}, sometimes(), sometimes()}, fast / 8},
		"a very slow path":                  {fast, []*source{{link: fast, path: fast / 100}, {link: fast, path: 10 * fast, every: 20 * time.Second}}, fast / 100},
		"a slow path in bursts":             {fast, []*source{{link: fast, path: fast / 4, every: 2 * time.Second}, sometimes()}, fast / 4},
		"nobody else sends":                 {fast, []*source{{link: fast, path: fast / 8}}, fast / 8},
		"all links are equal":               {fast, []*source{quick(), quick(), quick()}, 0},
		"a sender's link is slow":           {fast, []*source{{link: fast / 8, path: 10 * fast}, sometimes(), sometimes()}, 0},
		"the receiver's link is slow":       {fast / 8, []*source{quick(), quick(), quick()}, 0},
		"a sender that sends nowhere else":  {fast, []*source{{link: fast, path: fast / 8, only: true}, sometimes(), sometimes()}, 0},
		"the receiver's link is full, too":  {fast / 4, []*source{{link: fast, path: fast / 8}, quick(), quick()}, 0},
		"two slow paths by turns are known": {fast, []*source{{link: fast, path: fast / 8}, {link: fast, path: fast / 8, every: 3 * time.Second}}, fast / 8},
	} {
		got := playPaths(20*time.Second, tc.down, tc.senders...)
		if math.Abs(got[0]-tc.want) > 0.06*tc.want || tc.want == 0 && len(got) > 0 {
			t.Errorf("%s: %v, want %.3g for the first", name, got, tc.want)
		}
		for i, s := range tc.senders {
			if s.path > s.link && got[uint32(i)] > 0 {
				t.Errorf("%s: %.3g are known of the path of host %d, which is fast", name, got[uint32(i)], i)
			}
		}
	}
}

// A few packets that arrive together are no queue.
func TestAShortWaitIsNoSlowPath(t *testing.T) {
	const now, rate = time.Second, 1e6
	for wait, stands := range map[time.Duration]bool{5 * ms: false, 7 * ms: true} {
		c := &conn{remote: true}
		c.path.spans[0] = rate
		c.least.set(now, wait)
		r := &receiver{waiting: c}
		if got := r.onPath(now, c); got > 0 != stands {
			t.Errorf("%v are a wait of %v on a path with 1 MB/s", wait, got)
		}
	}
}

// Packets that only one host's connection waits for show a path.
func TestOnlyWaiting(t *testing.T) {
	const now = time.Second
	waits := func(c *conn, d time.Duration) *conn { c.least.set(now, d); return c }
	remote := func() *conn { return &conn{remote: true} }
	slow := waits(remote(), 3*ms)
	for name, tc := range map[string]struct {
		conns []*conn
		want  *conn
	}{
		"nobody":                  {nil, nil},
		"one of two":              {[]*conn{slow, waits(remote(), ms/4)}, slow},
		"two of two":              {[]*conn{slow, waits(remote(), ms)}, nil},
		"another one on the host": {[]*conn{slow, waits(&conn{}, ms)}, slow},
		"one that is silent":      {[]*conn{slow, remote()}, slow},
	} {
		r := &receiver{conns: map[uint32]*conn{}}
		for i, c := range tc.conns {
			r.conns[uint32(i)] = c
		}
		if got := r.onlyWaiting(now); got != tc.want {
			t.Errorf("%s: %p, want %p", name, got, tc.want)
		}
	}
}

// A path is divided over the lanes: it is known if its part of each is.
func TestPathsOfLanes(t *testing.T) {
	got := addPaths(map[uint32]float64{8: 10, 9: 20}, map[uint32]float64{9: 3, 11: 5})
	if !maps.Equal(got, map[uint32]float64{9: 23}) {
		t.Errorf("%v", got)
	}
}

// Of several peers the only one with packets to come may have a slow path: its queue says nothing of this host's link.
func TestASingleFlowSaysNothingOfTheLink(t *testing.T) {
	for several, want := range map[bool]float64{true: 0, false: 1e8} {
		a, b := new(flow), new(flow)
		var u uplink
		now := u.sends(time.Second, ms, a, 0, 0, true)
		if several {
			now = u.sends(now, ms, b, 0, 0, true)
		}
		u.sends(now, time.Second, a, 1e8, 2*ms, true)
		if math.Abs(u.known-want) > 0.06*want {
			t.Errorf("several peers: %v: %.3g bytes/s are known of the link, want %.3g", several, u.known, want)
		}
	}
}
