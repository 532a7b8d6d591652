package transport

import (
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// bottleneck is a model of a link with a queue before it, and of the senders that share it:
// each always has packets, and its kernel takes them as far as its window allows.
type bottleneck struct {
	rate    float64 // bytes per second
	trip    time.Duration
	random  *rand.Rand
	now     time.Duration
	senders []*modelSender
	queue   []piece // in front of the link
	queued  float64
	acks    []piece // on their way back
	carried float64
}

type modelSender struct {
	window window
	held   float64 // bytes that are not acknowledged
	full   bool
	wakes  time.Duration
	mean   time.Duration // of round trips, as TCP has it
	sent   float64
}

type piece struct {
	sender *modelSender
	bytes  float64
	begin  time.Duration // when it was written
	end    time.Duration // when its acknowledgement arrives
}

const step = 20 * time.Microsecond

func newBottleneck(rate float64, trip time.Duration, senders int) *bottleneck {
	b := &bottleneck{rate: rate, trip: trip, random: rand.New(rand.NewPCG(1, 2))}
	for range senders {
		b.senders = append(b.senders, &modelSender{window: window{size: firstWindow}})
	}
	return b
}

// run lets some time pass; it returns the used part of the link, and the mean wait of a byte before the
// link.
func (b *bottleneck) run(d time.Duration) (used float64, waited time.Duration) {
	carried, wait, steps := b.carried, 0.0, 0
	for end := b.now + d; b.now < end; b.now += step {
		b.forward()
		for len(b.acks) > 0 && b.acks[0].end <= b.now {
			ack := b.acks[0]
			ack.sender.held -= ack.bytes
			ack.sender.mean += (b.now - ack.begin - ack.sender.mean) / 8
			b.acks = b.acks[1:]
		}
		for _, s := range b.senders {
			b.send(s)
		}
		wait, steps = wait+b.queued/b.rate, steps+1
	}
	return (b.carried - carried) / (b.rate * d.Seconds()), time.Duration(wait / float64(steps) * 1e9)
}

// forward carries what the link carries in a step.
func (b *bottleneck) forward() {
	for left := b.rate * step.Seconds(); left > 0 && len(b.queue) > 0; {
		first := &b.queue[0]
		n := min(left, first.bytes)
		first.bytes, left, b.queued, b.carried = first.bytes-n, left-n, b.queued-n, b.carried+n
		first.sender.sent += n
		b.acks = append(b.acks, piece{first.sender, n, first.begin, b.now + b.trip})
		if first.bytes == 0 {
			b.queue = b.queue[1:]
		}
	}
}

// send lets one sender write, if it is awake, until its kernel refuses.
func (b *bottleneck) send(s *modelSender) {
	if s.full && s.held <= float64(s.window.size)*2/3 {
		s.full, s.wakes = false, b.now+time.Duration(b.random.Int64N(int64(wakeTime/4)))
	}
	for !s.full && s.wakes <= b.now {
		if s.window.due(b.now) {
			s.window.step(b.now, path{shortest: min(b.trip, s.mean), mean: s.mean}, b.rate)
		}
		if s.full = s.held >= float64(s.window.size); s.full {
			s.window.refused = true
			return
		}
		n := float64(commitPackets(s.window.size, 0, 1) * (wire.HeaderBytes + wire.PacketBytes))
		s.held, b.queued = s.held+n, b.queued+n
		b.queue = append(b.queue, piece{s, n, b.now, 0})
	}
}

// longest is the queue that is allowed: more than the target, and two
// packets of each sender, which is the least window.
func (b *bottleneck) longest() time.Duration {
	packets := 2 * float64(len(b.senders)*wire.PacketBytes)
	return 2*wakeTime + b.trip*3/4 + time.Duration(packets/b.rate*1e9)
}

// Whatever the rate, the round trip and the number of senders, the link is used, the queue
// before it is short, and each sender gets its part.
func TestWindowFitsThePath(t *testing.T) {
	for _, rate := range []float64{gigabit / 10, gigabit / 5, gigabit, 10 * gigabit} {
		for _, trip := range []time.Duration{60 * time.Microsecond, ms, longTrip} {
			for _, senders := range []int{1, 2, 8} {
				b := newBottleneck(rate, trip, senders)
				b.run(2 * time.Second)
				for _, s := range b.senders {
					s.sent = 0
				}
				used, waited := b.run(time.Second)
				if used < 0.95 || waited > b.longest() {
					t.Errorf("%.3g bytes/s, %v, %d senders: %.3f used, %v waited, at most %v", rate, trip, senders, used, waited, b.longest())
				}
				for _, s := range b.senders {
					if part := s.sent / b.rate * float64(senders); part < 0.5 || part > 1.5 {
						t.Errorf("%.3g bytes/s, %v, %d senders: one has %.2f of its part", rate, trip, senders, part)
					}
				}
			}
		}
	}
}

// A link that becomes slower has no standing queue after 100 ms, one that becomes faster is used again within a second.
func TestWindowFollowsTheLink(t *testing.T) {
	for _, trip := range []time.Duration{60 * time.Microsecond, longTrip} {
		for _, senders := range []int{1, 4} {
			b := newBottleneck(gigabit, trip, senders)
			b.run(time.Second)
			b.rate = gigabit / 4
			b.run(100 * ms)
			if used, waited := b.run(500 * ms); used < 0.95 || waited > b.longest() {
				t.Errorf("%v, %d senders, a fourth: %.3f used, %v waited, at most %v", trip, senders, used, waited, b.longest())
			}
			b.rate = gigabit
			b.run(900 * ms)
			if used, waited := b.run(500 * ms); used < 0.95 || waited > b.longest() {
				t.Errorf("%v, %d senders, as before: %.3f used, %v waited, at most %v", trip, senders, used, waited, b.longest())
			}
		}
	}
}

// One step of a window, by what the path says.
func TestStep(t *testing.T) {
	const size, target = 10 * wire.PacketBytes, wakeTime + ms/3
	for _, tc := range []struct {
		name    string
		size    int
		wait    time.Duration
		refused bool
		want    int
		carried float64
	}{
		{"the link is not full", size, 0, true, size * 5 / 4, 0},
		{"at least by a packet", wire.PacketBytes, 0, true, 2 * wire.PacketBytes, 0},
		{"nothing was refused", size, 0, false, size, 0},
		{"a queue", size, target, true, size + growBytes, 0},
		{"a queue, nothing was refused", size, target, false, size, 0},
		{"too long a queue", size, 2 * target, true, size * 794 / 1000, 0},
		{"also when nothing was refused", size, 2 * target, false, size * 794 / 1000, 0},
		{"far too long a queue", size, time.Minute, true, size / 2, 0},
		{"not below", minWindow, time.Minute, true, minWindow, 0},
		{"not above", maxWindow, 0, true, maxWindow, 0},
		{"a queue, on a fast link", size, target, true, size + growBytes, slowRate},
		{"too long a queue for a slow link", size, target, true, size * 85 / 100, slowRate - 1},
		{"a queue on a slow link", size, target - wakeTime + slowTime, true, size + growBytes, slowRate - 1},
	} {
		w := window{size: tc.size, refused: tc.refused}
		w.step(time.Second, path{shortest: ms, mean: ms + tc.wait}, tc.carried)
		if difference := w.size - tc.want; difference < -1000 || difference > 1000 {
			t.Errorf("%s: %d, expected %d", tc.name, w.size, tc.want)
		}
		if w.refused || w.due(time.Second+max(stepTime, ms+tc.wait)-1) || !w.due(time.Second+max(stepTime, ms+tc.wait)) {
			t.Errorf("%s: %+v after the step", tc.name, w)
		}
	}
}

// A path gets a window as soon as its round trip is known to be short.
func TestFirstWindow(t *testing.T) {
	var w window
	if w.step(time.Second, path{shortest: longTrip + 1, mean: time.Second}, 0); w.size != 0 || w.bound() != maxWindow {
		t.Errorf("a long path: %+v", w)
	}
	if w.step(2*time.Second, path{shortest: longTrip, mean: time.Second}, 0); w.size != firstWindow || w.bound() != firstWindow {
		t.Errorf("a short path: %+v", w)
	}
}

// The socket of a connection with another host gets a window; others, and those whose buffer
// is set by the configuration, do not.
func TestSocketsHaveWindows(t *testing.T) {
	for _, tc := range []struct {
		far    bool
		buffer int
	}{{true, 0}, {false, 0}, {true, 1 << 20}} {
		nodes := mesh(t, func(n *node) {
			n.config.SendBuffer = tc.buffer
			n.sys.isRemote = func(stream) bool { return tc.far }
		}, 8, 9)
		server, worker := nodes[0], nodes[1]
		worker.mu.Lock()
		fd := worker.mu.conns.byPeer[8].fd
		worker.mu.Unlock()
		before := sendBuffer(t, fd)
		if before <= firstWindow {
			t.Fatalf("%+v: a buffer of %d at first", tc, before)
		}
		windows := tc.far && tc.buffer == 0
		end := time.Now().Add(deadline)
		for sent := 1; sent <= 10 || windows && sendBuffer(t, fd) == before && time.Now().Before(end); sent++ {
			worker.Send(8, Outgoing{Header: contrib(1, 0), Data: make([]byte, 2*wire.PacketBytes)})
			server.h.untilArrived(t, 2*sent)
		}
		// On a busy machine packets have waited, and the window has shrunk since.
		if got := sendBuffer(t, fd); windows && (got < minWindow || got > firstWindow) || !windows && got != before {
			t.Errorf("%+v: a buffer of %d, before %d", tc, got, before)
		}
	}
}

func sendBuffer(t *testing.T, fd int) int {
	t.Helper()
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
