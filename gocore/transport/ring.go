package transport

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring carries a stream of bytes one way through memory that two processes share.
// Each side keeps its own position to itself and takes the other's as a claim: bytes
// there are whatever the peer wrote, but never more than the ring holds.
//
// Neither side sleeps while the other may still be asleep: who is about to sleep
// says so and looks again; who changes a position looks whether the other sleeps.
type ring struct {
	data    []byte
	head    *atomic.Uint64 // bytes written so far
	tail    *atomic.Uint64 // bytes read so far
	sleeps  *atomic.Uint32 // 1: the reader wants to be woken when there are bytes
	waits   *atomic.Uint32 // 1: the writer wants to be woken when there is room
	written uint64         // the writer's own head
	taken   uint64         // the reader's own tail
}

const (
	// ringBytes is what may be on the way in one direction. It fits a processor's
	// cache, and 8 x 8 nodes of one host take 128 MB.
	ringBytes = 1 << 20
	// controlBytes is a ring's positions and flags, each on its own cache line.
	controlBytes = 256
	// shareBytes is the memory of a connection: two rings.
	shareBytes = 4096 + 2*ringBytes
	// publishBytes is how much is copied before the other side may see it.
	publishBytes = 64 << 10
	// roomBytes has to be free before a writer that waits is woken.
	roomBytes = ringBytes / 4
)

// newRing is ring number i of a connection's memory.
func newRing(memory []byte, i int) ring {
	control := memory[i*controlBytes : (i+1)*controlBytes]
	data := memory[4096+i*ringBytes:][:ringBytes:ringBytes]
	return ring{
		data: data,
		head: (*atomic.Uint64)(unsafe.Pointer(&control[0])), tail: (*atomic.Uint64)(unsafe.Pointer(&control[64])),
		sleeps: (*atomic.Uint32)(unsafe.Pointer(&control[128])), waits: (*atomic.Uint32)(unsafe.Pointer(&control[192])),
	}
}

// room is what fits, false where the reader's position makes no sense.
func (r *ring) room() (int, bool) {
	used := r.written - r.tail.Load()
	return ringBytes - int(min(used, ringBytes)), used <= ringBytes
}

// free tells whether there is room that is worth a write.
func (r *ring) free() bool {
	n, sane := r.room()
	return n >= roomBytes || !sane // nonsense is for the write to find
}

// there is what can be read, false where the writer's position makes no sense.
func (r *ring) there() (int, bool) {
	n := r.head.Load() - r.taken
	return int(min(n, ringBytes)), n <= ringBytes
}

// write copies what fits of vector; like a socket it says EAGAIN where nothing does,
// and then wants to be woken.
func (r *ring) write(vector []unix.Iovec) (total int, errno unix.Errno) {
	unseen := 0
	for i := range vector {
		part := bytesOf(&vector[i])
		for len(part) > 0 {
			room, sane := r.room()
			if !sane {
				return total, unix.EBADMSG
			}
			if room == 0 {
				r.head.Store(r.written)
				r.waits.Store(1)
				if room, _ = r.room(); room == 0 {
					if total == 0 {
						return 0, unix.EAGAIN
					}
					return total, 0
				}
				r.waits.Store(0)
			}
			at := int(r.written % ringBytes)
			n := copy(r.data[at:min(ringBytes, at+min(room, publishBytes))], part)
			part = part[n:]
			r.written += uint64(n)
			total += n
			if unseen += n; unseen >= publishBytes {
				r.head.Store(r.written)
				unseen = 0
			}
		}
	}
	r.head.Store(r.written)
	return total, 0
}

// read copies what is there to vector; EAGAIN where that is nothing.
func (r *ring) read(vector []unix.Iovec) (total int, errno unix.Errno) {
	there, sane := r.there()
	if !sane {
		return 0, unix.EBADMSG
	}
	if there == 0 {
		return 0, unix.EAGAIN
	}
	for i := range vector {
		part := bytesOf(&vector[i])
		for len(part) > 0 && there > 0 {
			at := int(r.taken % ringBytes)
			n := copy(part, r.data[at:min(ringBytes, at+there)])
			part = part[n:]
			there -= n
			r.taken += uint64(n)
			total += n
		}
	}
	r.tail.Store(r.taken)
	return total, 0
}

// wakeReader tells whether the reader sleeps and has to be woken; wakeWriter whether
// the writer waits and has room now.
func (r *ring) wakeReader() bool { return r.sleeps.Load() == 1 && r.sleeps.CompareAndSwap(1, 0) }

func (r *ring) wakeWriter() bool {
	return r.waits.Load() == 1 && r.head.Load()-r.taken <= ringBytes-roomBytes && r.waits.CompareAndSwap(1, 0)
}

func bytesOf(v *unix.Iovec) []byte { return unsafe.Slice(v.Base, v.Len) }
