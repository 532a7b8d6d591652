package cluster

import (
	"context"
	"testing"
	"time"

	"fptps/gocore/trace"
	"fptps/gocore/wire/pspb"
)

// shifted is a clock that shows so much more than the bubble's.
func shifted(by time.Duration) *trace.Tracer {
	began := time.Now()
	return trace.New(func() int64 { return int64(time.Since(began) + by) })
}

// The delays of the network are up to 50 ms, so a round trip says a clock's offset to 50 ms at worst.
func TestHeartbeatsCompareClocks(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		const ahead = 3 * time.Second
		b.config.Trace = shifted(ahead)
		mine := shifted(0)
		mine.Start(64)
		b.serve(1, 0)
		if _, err := b.join(context.Background(), RoleWorker, "w00", func(c *Config) { c.Trace = mine }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		exchanges := mine.Clock.Exchanges()
		if len(exchanges) < 50 {
			t.Fatalf("%d exchanges in a minute of tracing", len(exchanges))
		}
		for _, x := range exchanges {
			if off := time.Duration(x.Offset) - ahead; off.Abs() > time.Duration(x.Uncertainty) || x.Uncertainty > int64(50*time.Millisecond) {
				t.Errorf("offset %v ± %v", time.Duration(x.Offset), time.Duration(x.Uncertainty))
			}
		}
	})
}

// What a scheduler of another version, or a liar, answers changes nothing or is one wrong exchange; it cannot be made to count twice.
func TestReadClockIgnoresOtherAnswers(t *testing.T) {
	tracer := shifted(0)
	p := &Postoffice{c: Config{Trace: tracer}, asked: 5}
	for _, m := range []*pspb.Meta{
		heartbeat(Member{}), clock(heartbeat(Member{}), 5, 0), clock(heartbeat(Member{}), 4, 9),
	} {
		p.readClock(m)
	}
	if n := len(tracer.Clock.Exchanges()); n != 0 {
		t.Errorf("%d exchanges from answers to nothing", n)
	}
	p.asked = tracer.Now()
	answer := clock(heartbeat(Member{}), p.asked, 1<<62)
	p.readClock(answer)
	p.readClock(answer)
	if n := len(tracer.Clock.Exchanges()); n != 1 {
		t.Errorf("%d exchanges from one answer", n)
	}
}
