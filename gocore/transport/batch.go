package transport

import (
	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

const (
	// batchBytes is what one writev commits to the kernel at most, but for one
	// packet: enough that a system call costs little, and what an urgent packet may
	// have to wait behind.
	batchBytes = 256 << 10
	// batchPackets bounds the vector of one writev (two entries a packet, the
	// kernel takes 1024) and the time under the lock.
	batchPackets = 128
)

// batch is the packets of one writev, with their headers. The send loop has one and
// uses it again and again.
type batch struct {
	packets [batchPackets]packet
	n       int // packets[:n] are in the batch
	skip    int // bytes of packets[0] that earlier writes took
	done    int // packets[:done] are written whole ...
	rest    int // ... and this many bytes of the next one
	headers [batchPackets][wire.HeaderBytes]byte
	vector  [2 * batchPackets]unix.Iovec
}

// fill takes packets from q, at least one, until there are limit bytes, the batch is
// full, or q is empty.
func (b *batch) fill(q *queue, limit int) {
	b.n, b.skip = 0, 0
	bytes := 0
	if q.part.run != nil {
		b.add(q.part)
		b.skip = q.sent
		bytes = q.part.size() - q.sent
		q.part, q.sent = packet{}, 0
	}
	for len(q.heap) > 0 && b.n < batchPackets && (bytes < limit || b.n == 0) {
		p := q.pop()
		b.add(p)
		bytes += p.size()
	}
	b.done, b.rest = 0, b.skip
}

func (b *batch) add(p packet) {
	b.packets[b.n] = p
	b.n++
}

// encode writes the headers and gives what is to be written, and its length.
func (b *batch) encode() (vector []unix.Iovec, bytes int) {
	v := b.vector[:0]
	skip := b.skip
	for i, p := range b.packets[:b.n] {
		h := p.header()
		h.Put(b.headers[i][:])
		for _, part := range [2][]byte{b.headers[i][:], p.data()} {
			if skip >= len(part) {
				skip -= len(part)
				continue
			}
			part = part[skip:]
			skip = 0
			v = append(v, iovec(part))
			bytes += len(part)
		}
	}
	return v, bytes
}

// forget clears the vector, so that no pointer to a caller's memory outlives the
// system call: the garbage collector may meet one after that memory was unmapped
// and its address given to the Go heap.
func (b *batch) forget() { clear(b.vector[:2*b.n]) }

// settle notes that the kernel took the first written bytes of the vector.
func (b *batch) settle(written int) {
	b.done, b.rest = 0, b.skip+written
	for b.done < b.n && b.rest >= b.packets[b.done].size() {
		b.rest -= b.packets[b.done].size()
		b.done++
	}
}

// putBack gives q what was not written: a packet of which no byte has left may
// still be overtaken, one of which some have may not.
func (b *batch) putBack(q *queue) {
	first := b.done
	if b.rest > 0 {
		q.part, q.sent = b.packets[first], b.rest
		first++
	}
	for i := b.n - 1; i >= first; i-- {
		q.unpop(b.packets[i])
	}
	b.n = b.done
}

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return v
}
