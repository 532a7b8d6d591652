package aggregate

import (
	"testing"

	"fptps/gocore/wire"
)

// ticks lets n seconds pass and returns how much memory went back.
func (p *Pool) ticks(n int) (bytes int) {
	for range n {
		bytes += p.Tick()
	}
	return bytes
}

// take gets n buffers and fills each with its number.
func take(p *Pool, n int) (all []*Buffer) {
	for i := range n {
		b := p.Get(wire.PacketBytes)
		for at := range b.Bytes {
			b.Bytes[at] = byte(i)
		}
		all = append(all, b)
	}
	return all
}

func release(all []*Buffer) {
	for _, b := range all {
		b.Release()
	}
}

// TestIdleMemoryGoesBack: the pool keeps the memory that each step uses and all that is lent, and returns the rest.
func TestIdleMemoryGoesBack(t *testing.T) {
	const most, each = 300, 100
	p := NewPool()
	lent := take(p, 5)
	release(take(p, most))
	if got := p.ticks(idleTicks - 1); got != 0 {
		t.Errorf("%d bytes went back though they were in use a moment ago", got)
	}
	for range 2 * idleTicks { // steps, of which each is shorter than a tick
		release(take(p, each))
		p.Tick()
	}
	if bare := len(p.classes[2].mu.bare); bare < most-each {
		t.Errorf("%d buffers of %d have lost their memory, expected %d", bare, most, most-each)
	}
	if got := p.ticks(idleTicks - 1); got != 0 {
		t.Errorf("%d bytes went back that every step needs", got)
	}
	if got := p.ticks(2 * idleTicks); got != each*wire.PacketBytes {
		t.Errorf("%d bytes went back after the last step, expected %d", got, each*wire.PacketBytes)
	}
	for i, b := range lent {
		if b.Bytes[0] != byte(i) || b.Bytes[wire.PacketBytes-1] != byte(i) {
			t.Errorf("lent buffer %d has changed", i)
		}
	}
	again := take(p, most)
	for i, b := range again {
		if b.Bytes[7] != byte(i) {
			t.Errorf("buffer %d, taken again, holds %d", i, b.Bytes[7])
		}
	}
	release(append(again, lent...))
	if p.Lent() != 0 {
		t.Errorf("%d buffers are lent", p.Lent())
	}
}

// TestTrimmingIsBounded: one tick returns trimBytes at most, and the next ticks return the rest.
func TestTrimmingIsBounded(t *testing.T) {
	p := NewPool()
	var all []*Buffer
	for range 3 * trimBytes / wire.PacketBytes {
		all = append(all, p.Get(wire.PacketBytes))
	}
	release(all)
	p.ticks(idleTicks)
	total := 0
	for tick := range 2 * idleTicks {
		got := p.Tick()
		if got > trimBytes {
			t.Errorf("tick %d gave back %d bytes, at most %d", tick, got, trimBytes)
		}
		total += got
	}
	if total != 3*trimBytes {
		t.Errorf("%d bytes went back, expected %d", total, 3*trimBytes)
	}
}
