package aggregate

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"fptps/gocore/pages"
	"fptps/gocore/wire"
)

// Buffer is pooled memory for one packet, or for its float32 accumulator. It counts
// its holders: each calls Release once, and the last Release returns the memory.
type Buffer struct {
	Bytes []byte
	refs  atomic.Int32
	home  *class
}

// Retain adds n holders, each of which has to call Release.
func (b *Buffer) Retain(n int) { b.refs.Add(int32(n)) }

// Release removes one holder. One call too many is a bug that would hand the same
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
// aggregator works in memory that is still in the processor's cache. Buffers that
// nobody has needed for a while keep their addresses, and lose their memory.
type Pool struct {
	classes [len(classBytes)]class
	slabs   *slabs
}

// The sizes of buffers: thousands of tiny tensors must not take a packet each, and the float32 accumulator of a packet
// of 2-bit codes takes almost 16.
var classBytes = [...]int{
	256, 4 << 10, wire.PacketBytes, 2 * wire.PacketBytes, 4 * wire.PacketBytes, 8 * wire.PacketBytes, 16 * wire.PacketBytes,
}

const (
	// slabBytes is how much memory the pool takes from the kernel at a time and cuts into buffers.
	slabBytes = 1 << 20
	// idleTicks is the number of ticks for which a buffer has to be free before its memory goes back to the kernel: longer
	// than the steps of most trainings, since taking the memory again costs about as much as summing into it.
	idleTicks = 3
	// trimBytes bounds the memory that goes back at each tick, so that a tick takes a few milliseconds at most.
	trimBytes = 32 << 20
)

// class is the buffers of one size.
type class struct {
	mu struct {
		sync.Mutex
		free []*Buffer // last in, first out
		bare []*Buffer // free ones without memory
		lent int
		low  int // the smallest len(free) since idle was set: nobody has needed the first low buffers of free
		idle int // buffers at the beginning of free whose memory is to go back
		age  int // ticks since idle was set
	}
	size  int
	slabs *slabs
}

// slabs is a pool's memory from the kernel. It goes back when nobody refers to the pool or one of its buffers.
type slabs struct {
	mu  sync.Mutex
	all [][]byte
}

// NewPool makes an empty pool.
func NewPool() *Pool {
	p := &Pool{slabs: &slabs{}}
	for i, size := range classBytes {
		p.classes[i].size, p.classes[i].slabs = size, p.slabs
	}
	runtime.AddCleanup(p, (*slabs).free, p.slabs)
	return p
}

func (s *slabs) free() {
	for _, slab := range s.all {
		pages.Free(slab)
	}
}

// Get returns a buffer of n bytes, at most 16 packets, with one holder and undefined contents.
func (p *Pool) Get(n int) *Buffer {
	i := 0
	for p.classes[i].size < n {
		i++
	}
	b := p.classes[i].get()
	b.Bytes = b.Bytes[:n]
	return b
}

// Lent returns the number of buffers that have a holder.
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

// Tick returns memory to the kernel that nobody has needed for idleTicks ticks, at most trimBytes of it, and returns how
// much that was. The caller calls it about once a second.
func (p *Pool) Tick() (bytes int) {
	for i := range p.classes {
		if c := &p.classes[i]; c.size >= wire.PacketBytes {
			bytes += c.trim((trimBytes - bytes) / c.size)
		}
	}
	return bytes
}

func (c *class) get() *Buffer {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.lent++
	if len(c.mu.free)+len(c.mu.bare) == 0 {
		c.grow()
	}
	from := &c.mu.free
	if len(*from) == 0 {
		from = &c.mu.bare
	}
	last := len(*from) - 1
	b := (*from)[last]
	*from = (*from)[:last]
	c.mu.low = min(c.mu.low, len(c.mu.free))
	b.refs.Store(1)
	return b
}

// grow makes new buffers: small ones on Go's heap, the others from a slab.
func (c *class) grow() {
	if c.size < wire.PacketBytes {
		c.mu.bare = append(c.mu.bare, &Buffer{Bytes: make([]byte, c.size), home: c})
		return
	}
	slab := pages.Alloc(slabBytes)
	c.slabs.mu.Lock()
	c.slabs.all = append(c.slabs.all, slab)
	c.slabs.mu.Unlock()
	for at := slabBytes - c.size; at >= 0; at -= c.size { // get takes the last of bare: the slab's first buffer
		c.mu.bare = append(c.mu.bare, &Buffer{Bytes: slab[at:][:c.size:c.size], home: c})
	}
}

func (c *class) put(b *Buffer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.lent--
	c.mu.free = append(c.mu.free, b)
}

// trim returns the memory of idle buffers to the kernel, of most buffers at most.
func (c *class) trim(most int) (bytes int) {
	cold := c.cold(most)
	if len(cold) == 0 {
		return 0
	}
	for n := 0; n < len(cold); { // one system call for neighbouring buffers
		first, bytes := cold[n], 0
		for n < len(cold) && cold[n].address() == first.address()+uintptr(bytes) {
			bytes += c.size
			n++
		}
		pages.Drop(unsafe.Slice(unsafe.SliceData(first.Bytes), bytes))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.bare = append(c.mu.bare, cold...)
	return len(cold) * c.size
}

// cold removes idle buffers from free and returns them in the order of their addresses.
func (c *class) cold(most int) []*Buffer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.age++; c.mu.age >= idleTicks {
		c.mu.idle, c.mu.low, c.mu.age = c.mu.low, len(c.mu.free), 0
	}
	n := min(c.mu.idle, c.mu.low, most)
	c.mu.idle -= n
	c.mu.low -= n
	cold := slices.Clone(c.mu.free[:n])
	c.mu.free = c.mu.free[n:]
	slices.SortFunc(cold, func(a, b *Buffer) int { return int(a.address()) - int(b.address()) })
	return cold
}

func (b *Buffer) address() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b.Bytes))) }
