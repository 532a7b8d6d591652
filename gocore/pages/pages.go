// Package pages allocates memory straight from the kernel, for arrays as large as a model: it goes back as soon as it is given
// back, where Go's heap would keep it for a collection and a while after, and costs the collector nothing.
package pages

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Alloc gives n bytes of zeros, n > 0, none of which takes memory before it is written to. It does not return where the
// kernel has none: it panics.
func Alloc(n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic(fmt.Sprintf("pages: %d bytes: %v", n, err))
	}
	return b
}

// Free gives back what Alloc gave, whole; nil is nothing. Nobody may touch it afterwards.
func Free(b []byte) {
	if b == nil {
		return
	}
	if err := unix.Munmap(b); err != nil {
		panic(fmt.Sprintf("pages: giving back %d bytes: %v", len(b), err))
	}
}

// Drop gives the memory of whole pages back and keeps their addresses, at which there are zeros then.
func Drop(b []byte) {
	if err := unix.Madvise(b, unix.MADV_DONTNEED); err != nil {
		panic(fmt.Sprintf("pages: dropping %d bytes: %v", len(b), err))
	}
}
