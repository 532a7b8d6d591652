//go:build race

package transport

import (
	"runtime"
	"unsafe"
)

// ringSync stands for all shared memory. Two nodes of one process, as in tests, map a ring at two addresses. The race detector
// does not know that these are the same memory, so it has to be told the order. (golang.org/x/sys/unix does the same for system calls.)
var ringSync byte

// published is called before bytes of a ring become visible to the other side, received before they are read.
func published() { runtime.RaceReleaseMerge(unsafe.Pointer(&ringSync)) }
func received()  { runtime.RaceAcquire(unsafe.Pointer(&ringSync)) }
