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

// batch is the packets of one writev, with their headers. Each writer has one and
// uses it again and again.
type batch struct {
	packets [batchPackets]packet
	n       int // packets[:n] are in the batch
	bound   int // packets[:bound] were bound before
	skip    int // bytes of packets[0] that earlier writes took
	done    int // packets[:done] are written whole ...
	rest    int // ... and this many bytes of the next one
	headers [batchPackets][wire.HeaderBytes]byte
	vector  [2 * batchPackets]unix.Iovec
}

// fill takes packets from q, at least one, until there are limit bytes, the batch is
// full, or q is empty. At most train of them are bound together.
func (b *batch) fill(q *queue, limit, train int) {
	b.n, b.skip = 0, q.sent
	bytes := -q.sent
	for _, p := range q.bound {
		b.add(p)
		bytes += p.size()
	}
	b.bound = b.n
	q.bound, q.sent = q.bound[:0], 0
	for len(q.heap) > 0 && b.n < batchPackets && (bytes < limit || b.n == 0) {
		p := q.pop()
		b.add(p)
		bytes += p.size()
	}
	b.couple(train)
	b.done, b.rest = 0, b.skip
}

// couple has packets announce those that follow them, so that the receiver reads them
// with one system call to where they go. What is announced is bound to follow.
func (b *batch) couple(train int) {
	for i := b.n - 2; i >= b.bound; i-- {
		p, next := &b.packets[i], b.packets[i+1]
		if p.ahead = 0; next.ahead+1 < train && p.precedes(next) {
			p.ahead = next.ahead + 1
		}
	}
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

// putBack gives q what was not written: a packet of which no byte has left and that
// was not announced may still be overtaken, the others may not.
func (b *batch) putBack(q *queue) {
	bound := b.done
	switch {
	case b.rest > 0:
		bound += 1 + b.packets[b.done].ahead
	case b.done > 0:
		bound += b.packets[b.done-1].ahead
	default:
		bound = b.bound
	}
	for i := b.n - 1; i >= bound; i-- {
		q.unpop(b.packets[i])
	}
	q.bound, q.sent = append(q.bound, b.packets[b.done:bound]...), b.rest
	b.n = b.done
}

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return v
}
