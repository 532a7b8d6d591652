package transport

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"fptps/gocore/wire"
)

// path of packets from a peer whose clock has an offset and runs too fast or too slowly.
type drifting struct {
	lag    lag
	offset uint32
	drift  float64
}

// send returns the wait that is reported after packets that wait so long have been sent, one each ms, from one time to another.
func (d *drifting) send(from, to, wait time.Duration) (reported time.Duration) {
	for at := from; at < to; at += ms {
		sent := clock(time.Duration(float64(at)*(1+d.drift))) + d.offset
		reported, _ = d.lag.arrived(at+ms/10+wait, sent)
	}
	return reported
}

func TestLag(t *testing.T) {
	for _, offset := range []uint32{0, 1, math.MaxUint32 - 3, 1 << 31, 1<<31 - 1} {
		for _, drift := range []float64{0, 20e-6, -20e-6} {
			d := drifting{offset: offset, drift: drift}
			slack := ms/100 + time.Duration(math.Abs(drift)*float64(2*leastTime)) // what the drift adds up to
			d.send(0, time.Second, 0)
			for at, wait := range []time.Duration{5 * ms, 0, 20 * ms, 3 * ms} {
				from := time.Second * time.Duration(1+10*at)
				if got := d.send(from, from+9*time.Second, wait); got < wait-slack || got > wait+slack {
					t.Errorf("offset %d, drift %g: %v reported, %v waited", offset, drift, got, wait)
				}
			}
		}
	}
}

// The first packets may have waited, and the path may become longer: what counts is the shortest way of the last minute.
func TestLagForgetsTheShortestWay(t *testing.T) {
	var d drifting
	d.send(0, time.Second, 5*ms)
	if got := d.send(time.Second, 2*time.Second, 5*ms); got != 0 {
		t.Errorf("all packets took the same time, but %v is reported", got)
	}
	d.send(2*time.Second, 3*time.Second, 0)
	if got := d.send(3*time.Second, 4*time.Second, 5*ms); got < 4*ms {
		t.Errorf("a shorter way was seen, but %v is reported", got)
	}
	if got := d.send(4*time.Second, 4*time.Second+2*leastTime+ms, 5*ms); got > ms/100 {
		t.Errorf("the way is longer since a minute, but %v is reported", got)
	}
}

// A peer may send any times.
func TestLagOfNonsense(t *testing.T) {
	var l lag
	rng := rand.New(rand.NewPCG(3, 4))
	now := time.Duration(0)
	for range 100_000 {
		now += time.Duration(rng.Int64N(int64(10 * ms)))
		if least, mean := l.arrived(now, rng.Uint32()); min(least, mean) < 0 || max(least, mean) > longestWait {
			t.Fatalf("%v and %v reported", least, mean)
		}
	}
}

func TestReport(t *testing.T) {
	var r report
	if _, ok := r.get(0, freshTime); ok {
		t.Error("a report that nobody has made")
	}
	for _, wait := range []time.Duration{0, 3 * ms, longestWait} {
		now := time.Duration(math.MaxUint32)*time.Microsecond - ms // the clock wraps
		r.set(now, wait)
		if got, ok := r.get(now+freshTime, freshTime); !ok || got != wait {
			t.Errorf("%v, %v, expected %v", got, ok, wait)
		}
		if _, ok := r.get(now+freshTime+ms, freshTime); ok {
			t.Error("an old report is used")
		}
	}
	if r.set(0, time.Hour); r.word.Load() != uint64(longestWait/time.Microsecond)+1 {
		t.Errorf("an hour is stored as %x", r.word.Load())
	}
}

// A header does not change once a part of it is written, though the times of later packets do.
func TestStampsOfAPartlyWrittenHeader(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	var q queue
	var batches [2]batch // two threads take turns
	for seq := range uint64(300) {
		r := new(run)
		r.init(&Outgoing{Header: contrib(1, int32(rng.IntN(3))), Data: make([]byte, 4)}, seq, ByPacket)
		q.push(r)
	}
	var stream bytes.Buffer
	for time := uint32(1); !q.empty(); time++ {
		b := &batches[time%2]
		b.fill(&q, 1000, train)
		vector, n := b.encode(stamps{sent: time, waited: time, queue: uint16(time), uplink: uint16(time)})
		n = rng.IntN(min(n, 150) + 1)
		left := n
		for _, v := range vector {
			part := min(left, int(v.Len))
			stream.Write(unsafe.Slice(v.Base, part))
			left -= part
		}
		b.recordWritten(n)
		b.putBack(&q)
	}
	var h wire.Header
	for last := uint32(0); stream.Len() > 0; last = h.Sent {
		if err := h.Get(stream.Next(wire.HeaderBytes)); err != nil || h.Sent < last || h.Waited != h.Sent || h.Queue != uint16(h.Sent) || h.Uplink != h.Queue {
			t.Fatalf("%+v after a header of %d: %v", h, last, err)
		}
		stream.Next(int(h.WireLen))
	}
}

// Each of two hosts learns how long its packets wait.
func TestHostsReportWaits(t *testing.T) {
	nodes := mesh(t, func(n *node) { n.sys.isRemote = func(stream) bool { return true } }, 8, 9)
	reports := func(n *node, peer uint32) bool {
		n.mu.Lock()
		c := n.mu.conns.byPeer[peer]
		n.mu.Unlock()
		return c.waited.word.Load() != 0
	}
	// A header reports what arrived in the last 20 ms: on a busy machine one answer may come too late.
	for round := 1; !reports(nodes[0], 9) || !reports(nodes[1], 8); round++ {
		for i, n := range nodes { // each sends when the other's packets have arrived
			n.Send(nodes[1-i].id, Outgoing{Header: contrib(1, 0), Data: make([]byte, 4)})
			nodes[1-i].h.untilArrived(t, round)
		}
	}
}

// The queue before a host's link is what packets from all others wait, if there are several.
func TestQueueBeforeTheReceiver(t *testing.T) {
	const now = time.Second
	conns := func(waits ...time.Duration) *receiver {
		r := &receiver{conns: map[uint32]*conn{}}
		for i, wait := range waits {
			r.conns[uint32(i)] = &conn{remote: true}
			r.conns[uint32(i)].waits.set(now, wait)
		}
		return r
	}
	silent := conns(3*ms, 2*ms, 0)
	silent.conns[2].waits.set(now-sendingTime-ms, 0)
	near := conns(3*ms, 2*ms, 0)
	near.conns[2].remote = false
	for name, tc := range map[string]struct {
		r    *receiver
		want time.Duration
	}{
		"nobody": {conns(), 0}, "a single one": {conns(3 * ms), 0}, "two": {conns(3*ms, 2*ms), 2 * ms},
		"one does not wait": {conns(3*ms, 2*ms, 0), 0}, "one has sent nothing for a while": {silent, 2 * ms},
		"one is on this host": {near, 2 * ms}, "too long for a header": {conns(time.Hour, time.Hour), math.MaxUint16 * queueUnit},
	} {
		if got, _ := tc.r.queue(now); got != tc.want {
			t.Errorf("%s: %v, expected %v", name, got, tc.want)
		}
	}
}

// It is before the receiver's own link if packets of one sender wait nowhere else: all others may wait before their own links.
func TestQueueBeforeTheReceiversOwnLink(t *testing.T) {
	const now = time.Second
	for name, tc := range map[string]struct {
		waits, uplinks []time.Duration
		want           time.Duration
	}{
		"nobody": {}, "a single one, whose path may be slow": {[]time.Duration{3 * ms}, []time.Duration{0}, 0},
		"senders that send to others quickly":  {[]time.Duration{3 * ms, 3 * ms}, []time.Duration{0, 0}, 3 * ms},
		"one sender's packets wait everywhere": {[]time.Duration{9 * ms, 4 * ms}, []time.Duration{5 * ms, 0}, 4 * ms},
		"all do":                               {[]time.Duration{5 * ms, 4 * ms}, []time.Duration{5 * ms, 4 * ms}, 0},
	} {
		r := &receiver{conns: map[uint32]*conn{}}
		for i, wait := range tc.waits {
			c := &conn{remote: true}
			c.waits.set(now, wait)
			c.uplink.set(now, tc.uplinks[i])
			r.conns[uint32(i)] = c
		}
		if _, got := r.queue(now); got != tc.want {
			t.Errorf("%s: %v, expected %v", name, got, tc.want)
		}
	}
}

// Bytes from other hosts count once, however many packets a write has. Each packet's header announces the packets after it.
func TestBytesFromOtherHosts(t *testing.T) {
	nodes := mesh(t, func(n *node) { n.sys.isRemote = func(stream) bool { return true } }, 8, 9)
	server, worker := nodes[0], nodes[1]
	var l ledger
	for tensor := range uint32(3) {
		worker.Send(8, Outgoing{Header: contrib(tensor, 0), Data: make([]byte, 40*wire.PacketBytes), Owner: l.lend(nil)})
	}
	server.h.untilArrived(t, 3*40)
	worker.Close()
	server.h.untilLost(t, 9)
	if got, want := server.receiver.linked, uint64(3*40*(wire.HeaderBytes+wire.PacketBytes)+wire.HeaderBytes); got < want-wire.HeaderBytes || got > want {
		t.Errorf("counted %d bytes of %d", got, want)
	}
}
