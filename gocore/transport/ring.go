package transport

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring carries a stream of bytes in one direction, through memory that two processes share.
// Each side keeps its own position in private memory and validates the other's, so that a
// faulty peer cannot cause an access beyond the ring.
//
// No wake-up is lost: a side that is about to sleep sets its flag and then checks the
// positions again; a side that changes a position then checks the other's flag.
type ring struct {
	data         []byte
	head         *atomic.Uint64 // bytes written so far
	tail         *atomic.Uint64 // bytes read so far
	readerSleeps *atomic.Uint32 // 1: the reader must be woken when there are bytes
	writerWaits  *atomic.Uint32 // 1: the writer must be woken when there is room
	written      uint64         // the writer's private head
	consumed     uint64         // the reader's private tail
}

const (
	// ringBytes is the capacity of one direction. It fits in a CPU's cache; 8 x 8 nodes on
	// one host take 128 MB.
	ringBytes = 1 << 20
	// controlBytes is the size of a ring's positions and flags, each on its own cache line.
	controlBytes = 256
	// shmBytes is the size of the memory of a connection: two rings.
	shmBytes = 4096 + 2*ringBytes
	// publishBytes is the number of bytes copied before head is updated.
	publishBytes = 64 << 10
	// roomBytes is the room at which a waiting writer is woken.
	roomBytes = ringBytes / 4
)

// newRing returns ring i of a connection's memory.
func newRing(memory []byte, i int) ring {
	control := memory[i*controlBytes : (i+1)*controlBytes]
	data := memory[4096+i*ringBytes:][:ringBytes:ringBytes]
	return ring{
		data: data,
		head: (*atomic.Uint64)(unsafe.Pointer(&control[0])), tail: (*atomic.Uint64)(unsafe.Pointer(&control[64])),
		readerSleeps: (*atomic.Uint32)(unsafe.Pointer(&control[128])), writerWaits: (*atomic.Uint32)(unsafe.Pointer(&control[192])),
	}
}

// room is the free space; false if the reader's position is invalid.
func (r *ring) room() (int, bool) {
	used := r.written - r.tail.Load()
	return ringBytes - int(min(used, ringBytes)), used <= ringBytes
}

// free reports whether there is enough room for a write to be worthwhile.
func (r *ring) free() bool {
	n, sane := r.room()
	return n >= roomBytes || !sane // the write will report an invalid position
}

// available is the number of readable bytes; false if the writer's position is invalid.
func (r *ring) available() (int, bool) {
	n := r.head.Load() - r.consumed
	return int(min(n, ringBytes)), n <= ringBytes
}

// write copies as much of vector as fits. Like a socket it returns EAGAIN if nothing fits; it
// has then set writerWaits.
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
				r.publish()
				r.writerWaits.Store(1)
				if room, _ = r.room(); room == 0 {
					if total == 0 {
						return 0, unix.EAGAIN
					}
					return total, 0
				}
				r.writerWaits.Store(0)
			}
			at := int(r.written % ringBytes)
			n := copy(r.data[at:min(ringBytes, at+min(room, publishBytes))], part)
			part = part[n:]
			r.written += uint64(n)
			total += n
			if unseen += n; unseen >= publishBytes {
				r.publish()
				unseen = 0
			}
		}
	}
	r.publish()
	return total, 0
}

// publish lets the reader see what was written.
func (r *ring) publish() {
	published()
	r.head.Store(r.written)
}

// read copies available bytes to vector; EAGAIN if there are none.
func (r *ring) read(vector []unix.Iovec) (total int, errno unix.Errno) {
	available, sane := r.available()
	if !sane {
		return 0, unix.EBADMSG
	}
	if available == 0 {
		return 0, unix.EAGAIN
	}
	received()
	for i := range vector {
		part := bytesOf(&vector[i])
		for len(part) > 0 && available > 0 {
			at := int(r.consumed % ringBytes)
			n := copy(part, r.data[at:min(ringBytes, at+available)])
			part = part[n:]
			available -= n
			r.consumed += uint64(n)
			total += n
		}
	}
	r.tail.Store(r.consumed)
	return total, 0
}

// wakeReader reports whether the reader sleeps and must be woken, wakeWriter whether the
// writer waits and has room now.
func (r *ring) wakeReader() bool {
	return r.readerSleeps.Load() == 1 && r.readerSleeps.CompareAndSwap(1, 0)
}

func (r *ring) wakeWriter() bool {
	return r.writerWaits.Load() == 1 && r.head.Load()-r.consumed <= ringBytes-roomBytes && r.writerWaits.CompareAndSwap(1, 0)
}

func bytesOf(v *unix.Iovec) []byte { return unsafe.Slice(v.Base, v.Len) }
