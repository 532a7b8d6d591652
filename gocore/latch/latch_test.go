package latch

import (
	"sync"
	"testing"
	"time"
)

func TestClosedAndOpen(t *testing.T) {
	var l Latch
	if l.Opened() || l.Wait(0) || l.Wait(-time.Hour) {
		t.Error("a new latch is open")
	}
	start := time.Now()
	if l.Wait(2*time.Millisecond) || time.Since(start) < 2*time.Millisecond {
		t.Errorf("a closed latch: waited %v", time.Since(start))
	}
	l.Open()
	l.Open()
	if !l.Opened() || !l.Wait(0) || !l.Wait(time.Hour) {
		t.Error("an open latch is closed")
	}
}

// Waits and Open run in any order. A write before Open is visible after Wait; the race
// detector agrees.
func TestOpenWakesAllWaiters(t *testing.T) {
	for range 2000 {
		var l Latch
		var group sync.WaitGroup
		value := 0
		for range 3 {
			group.Go(func() {
				if !l.Wait(time.Hour) || value != 7 {
					t.Errorf("woke with %d", value)
				}
			})
		}
		group.Go(func() { value = 7; l.Open() })
		group.Wait()
	}
}
