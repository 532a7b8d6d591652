package ps

import (
	"sync"

	"fptps/gocore/wire"
)

const (
	// depotLeast is the smallest memory that is kept; the rest is the runtime's.
	depotLeast = 1 << 10
	// depotBytes is what is kept for later.
	depotBytes = 128 << 20
)

// roomFor is the size that n bytes get, so that like ones can be used again.
func roomFor(n int) int {
	step := wire.PacketBytes
	if n <= wire.PacketBytes {
		step = depotLeast
	}
	return (n + step - 1) / step * step
}

// depot keeps the memory of messages for those that come next: pages that are there already and need not be cleared.
type depot struct {
	mu struct {
		sync.Mutex
		free  map[int][][]byte // by size
		bytes int
	}
}

// get lends n bytes, of any contents. Who does not give them back leaves them to the runtime.
func (d *depot) get(n int) []byte {
	if n < depotLeast {
		return make([]byte, n)
	}
	size := roomFor(n)
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

// put takes back what get lent, or nothing.
func (d *depot) put(b []byte) {
	size := cap(b)
	if size < depotLeast || size > depotBytes/2 || size != roomFor(size) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.free == nil || d.mu.bytes+size > depotBytes { // sizes that nobody asks for any more go, too
		d.mu.free, d.mu.bytes = map[int][][]byte{}, 0
	}
	d.mu.free[size] = append(d.mu.free[size], b)
	d.mu.bytes += size
}
