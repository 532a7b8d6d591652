package pages

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// resident is the memory of this process, in bytes.
func resident(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// TestMemoryIsTakenWhenWrittenAndGoesBack follows the process's memory through the life of an allocation.
func TestMemoryIsTakenWhenWrittenAndGoesBack(t *testing.T) {
	const size = 256 << 20
	near := func(when string, base, want int) {
		t.Helper()
		if got := resident(t) - base; got < want-size/8 || got > want+size/8 {
			t.Errorf("%s: %d MB more than before, expected about %d", when, got>>20, want>>20)
		}
	}
	base := resident(t)
	b := Alloc(size)
	near("untouched", base, 0)
	for i := range b {
		b[i] = 7
	}
	near("written", base, size)
	Drop(b[size/2:])
	near("one half dropped", base, size/2)
	if b[size/2-1] != 7 || b[size/2] != 0 {
		t.Errorf("around the border of what was dropped: %d %d", b[size/2-1], b[size/2])
	}
	Free(b)
	near("given back", base, 0)
	Free(nil)
}
