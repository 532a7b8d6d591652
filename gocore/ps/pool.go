package ps

import (
	"sync"

	"fptps/gocore/wire"
)

const (
	// poolMinBytes is the smallest buffer that is pooled; smaller ones are left to the garbage collector.
	poolMinBytes = 1 << 10
	// poolMaxBytes bounds the pooled memory.
	poolMaxBytes = 128 << 20
)

// sizeClass rounds n up, so that buffers of similar sizes can be reused.
func sizeClass(n int) int {
	step := wire.PacketBytes
	if n <= wire.PacketBytes {
		step = poolMinBytes
	}
	return (n + step - 1) / step * step
}

// pool reuses the buffers of messages: their pages are mapped already and need not be zeroed.
type pool struct {
	mu struct {
		sync.Mutex
		free  map[int][][]byte // by size
		bytes int
	}
}

// get lends a buffer of n bytes with arbitrary content. A buffer that is never put back is garbage-collected.
func (d *pool) get(n int) []byte {
	if n < poolMinBytes {
		return make([]byte, n)
	}
	size := sizeClass(n)
	d.mu.Lock()
	defer d.mu.Unlock()
	free := d.mu.free[size]
	last := len(free) - 1
	if last < 0 {
		return make([]byte, n, size)
	}
	b := free[last]
	free[last] = nil
	d.mu.free[size] = free[:last]
	d.mu.bytes -= size
	return b[:n]
}

// put takes back a buffer that get lent. nil is allowed.
func (d *pool) put(b []byte) {
	size := cap(b)
	if size < poolMinBytes || size > poolMaxBytes/2 || size != sizeClass(size) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.free == nil || d.mu.bytes+size > poolMaxBytes { // drop everything, so that sizes no longer in use go too
		d.mu.free, d.mu.bytes = map[int][][]byte{}, 0
	}
	d.mu.free[size] = append(d.mu.free[size], b)
	d.mu.bytes += size
}
