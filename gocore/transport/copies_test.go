package transport

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// Between the sender's memory and the place that the receiver names, only the kernel copies bytes.
func TestPayloadsAreNotCopied(t *testing.T) {
	const packets = 40
	data, place := make([]byte, packets*wire.PacketBytes), make([]byte, packets*wire.PacketBytes)
	done := make(chan struct{})
	var written, elsewhere atomic.Int64
	// Whatever is longer than a header is, or has part of, a payload.
	check := func(vector []unix.Iovec, memory []byte) {
		for _, v := range vector {
			switch {
			case within(&v, memory):
				written.Add(1)
			case v.Len > wire.HeaderBytes:
				elsewhere.Add(1)
			}
		}
	}
	left := packets
	nodes := mesh(t, func(n *node) {
		n.sys.write = func(fd int, vector []unix.Iovec) (int, unix.Errno) {
			if n.id == 9 {
				check(vector, data)
			}
			return writev(fd, vector)
		}
		n.sys.read = func(fd int, vector []unix.Iovec) (int, unix.Errno) {
			if n.id == 8 {
				check(vector, place)
			}
			return readv(fd, vector)
		}
		n.h.place = func(_ uint32, h *wire.Header) (Destination, error) {
			from := h.Packet * wire.PacketBytes
			return Destination{Bytes: place[from:][:h.WireLen]}, nil
		}
		n.h.arrived = func(arrival) error {
			if left--; left == 0 {
				close(done)
			}
			return nil
		}
	}, 8, 9)
	nodes[1].Send(8, Outgoing{Header: contrib(1, 0), Data: data})
	<-done
	if written.Load() < 2*packets || elsewhere.Load() > 0 {
		t.Errorf("%d parts were given to the kernel in their place, %d elsewhere", written.Load(), elsewhere.Load())
	}
}

// within reports whether v lies in memory.
func within(v *unix.Iovec, memory []byte) bool {
	at, from := uintptr(unsafe.Pointer(v.Base)), uintptr(unsafe.Pointer(&memory[0]))
	return at >= from && at+uintptr(v.Len) <= from+uintptr(len(memory))
}
