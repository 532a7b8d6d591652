package ps

import (
	"sync"

	"fptps/gocore/wire"
)

const (
	// depotStep is what sizes are rounded up to; smaller memory is the runtime's.
	depotStep = wire.PacketBytes
	// depotBytes is what is kept for later.
	depotBytes = 128 << 20
)

// depot keeps the memory of values for those that come next: pages that are there already and need not be cleared.
type depot struct {
	mu struct {
		sync.Mutex
		free  map[int][][]byte // by size
		bytes int
	}
}

// get lends n bytes, of any contents. Who does not give them back leaves them to the runtime.
func (d *depot) get(n int) []byte {
	if n < depotStep {
		return make([]byte, n)
	}
	size := (n + depotStep - 1) / depotStep * depotStep
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
	if size < depotStep || size > depotBytes/2 {
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
