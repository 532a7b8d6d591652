package aggregate

import (
	"sync"
	"sync/atomic"

	"fptps/gocore/wire"
)

// Buffer is pooled memory for one packet, or for its float32 accumulator. It is
// counted: whoever holds it releases it once, and the last one returns it.
type Buffer struct {
	Bytes []byte
	refs  atomic.Int32
	home  *class
}

// Retain adds n holders.
func (b *Buffer) Retain(n int) { b.refs.Add(int32(n)) }

// Release gives up one hold. One too many is a bug that would hand the same
// memory to two packets, so it panics.
func (b *Buffer) Release() {
	switch n := b.refs.Add(-1); {
	case n == 0:
		b.home.put(b)
	case n < 0:
		panic("aggregate: a buffer was released more often than held")
	}
}

// Pool hands out Buffers and takes them back, last in first out, so that a busy
// aggregator works in memory that is still in the processor's cache.
type Pool struct {
	classes [len(classBytes)]class
}

// The sizes of buffers: thousands of tiny tensors must not take a packet each, and the float32 accumulator of a packet
// of 2-bit codes takes almost 16.
var classBytes = [...]int{
	256, 4 << 10, wire.PacketBytes, 2 * wire.PacketBytes, 4 * wire.PacketBytes, 8 * wire.PacketBytes, 16 * wire.PacketBytes,
}

// keepBytes is what each class keeps for later; more goes back to the runtime.
const keepBytes = 16 << 20

type class struct {
	mu struct {
		sync.Mutex
		free []*Buffer
		lent int
	}
	size int
}

// NewPool makes an empty pool.
func NewPool() *Pool {
	p := &Pool{}
	for i, size := range classBytes {
		p.classes[i].size = size
	}
	return p
}

// Get lends a buffer of n bytes, at most 16 packets, held once, contents undefined.
func (p *Pool) Get(n int) *Buffer {
	i := 0
	for p.classes[i].size < n {
		i++
	}
	b := p.classes[i].get()
	b.Bytes = b.Bytes[:n]
	return b
}

// Lent is the number of buffers that somebody holds.
func (p *Pool) Lent() int {
	n := 0
	for i := range p.classes {
		c := &p.classes[i]
		c.mu.Lock()
		n += c.mu.lent
		c.mu.Unlock()
	}
	return n
}

func (c *class) get() *Buffer {
	c.mu.Lock()
	c.mu.lent++
	var b *Buffer
	if last := len(c.mu.free) - 1; last >= 0 {
		b = c.mu.free[last]
		c.mu.free = c.mu.free[:last]
	}
	c.mu.Unlock()
	if b == nil {
		b = &Buffer{Bytes: make([]byte, c.size), home: c}
	}
	b.refs.Store(1)
	return b
}

func (c *class) put(b *Buffer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.lent--
	if len(c.mu.free)*c.size < keepBytes {
		c.mu.free = append(c.mu.free, b)
	}
}
