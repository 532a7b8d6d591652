package transport

import (
	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

const (
	// batchBytes bounds the bytes of one writev, up to one packet: enough to amortise the
	// system call. An urgent packet may have to wait for that many.
	batchBytes = 256 << 10
	// batchPackets bounds the vector of one writev (two entries per packet; the kernel
	// accepts 1024) and the time under the lock.
	batchPackets = 128
)

// batch holds the packets of one writev, with their headers. Each writer reuses its own.
type batch struct {
	packets [batchPackets]packet
	n       int    // packets[:n] are in the batch
	bound   int    // packets[:bound] were bound before the batch was filled
	skip    int    // bytes of packets[0] that were written earlier
	begun   stamps // of packets[0], if skip > 0: a header does not change once a part of it is written
	stamps  stamps // of the others
	done    int    // packets[:done] are completely written ...
	rest    int    // ... and so are this many bytes of the next one
	headers [batchPackets][wire.HeaderBytes]byte
	vector  [2 * batchPackets]unix.Iovec
}

// fill pops packets from q, at least one, until the batch has limit bytes or is full, or q
// is empty. A probe follows no other packet: those of other connections come before it. Trains
// have at most train packets.
func (b *batch) fill(q *queue, limit, train int) {
	b.n, b.skip, b.begun = 0, q.sent, q.begun
	bytes := -q.sent
	for _, p := range q.bound {
		b.add(p)
		bytes += p.size()
	}
	b.bound = b.n
	q.bound, q.sent = q.bound[:0], 0
	for len(q.heap) > 0 && b.n < batchPackets && (bytes < limit || b.n == 0) && (b.n == 0 || q.heap[0].urgency != probeUrgency) {
		p := q.pop()
		b.add(p)
		bytes += p.size()
	}
	b.formTrains(train)
	b.done, b.rest = 0, b.skip
}

// probes reports whether the batch is a probe.
func (b *batch) probes() bool { return b.packets[b.n-1].run.Header.Kind == wire.Probe }

// formTrains lets headers announce the packets that follow, so that the receiver can read
// all of them into place with one system call. Announced packets must follow.
func (b *batch) formTrains(train int) {
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

// encode encodes the headers and returns the vector to write, and its length.
func (b *batch) encode(s stamps) (vector []unix.Iovec, bytes int) {
	v := b.vector[:0]
	skip := b.skip
	b.stamps = s
	for i, p := range b.packets[:b.n] {
		h := p.header()
		if i == 0 && skip > 0 {
			b.begun.put(&h)
		} else {
			s.put(&h)
		}
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

// clearVector clears the vector, so that no pointer to a caller's memory outlives the
// system call: that memory may be unmapped and its address reused by the Go heap, where
// the garbage collector would misread a stale pointer.
func (b *batch) clearVector() { clear(b.vector[:2*b.n]) }

// recordWritten records that the kernel took the first written bytes of the vector.
func (b *batch) recordWritten(written int) {
	b.done, b.rest = 0, b.skip+written
	for b.done < b.n && b.rest >= b.packets[b.done].size() {
		b.rest -= b.packets[b.done].size()
		b.done++
	}
}

// putBack returns the packets that were not written to q. A partly written packet and
// announced ones stay bound; the others may be overtaken.
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
	if q.begun = b.stamps; b.done == 0 && b.skip > 0 {
		q.begun = b.begun
	}
	b.n = b.done
}

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return v
}
