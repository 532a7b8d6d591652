package transport

import (
	"testing"
	"time"
)

func TestQueueBeforeThisHostsLink(t *testing.T) {
	for _, tc := range []struct {
		name string
		path path
		want time.Duration
	}{
		{"nothing reported", path{shortest: ms, mean: 5 * ms}, 4 * ms},
		{"the other direction is full", path{shortest: ms, mean: 5 * ms, wait: ms, waitKnown: true}, ms},
		{"this direction is empty", path{shortest: ms, mean: 5 * ms, waitKnown: true}, 0},
		{"the peer's process is slow", path{shortest: ms, mean: 2 * ms, wait: time.Second, waitKnown: true}, ms},
		{"packets of other hosts wait as long", path{shortest: ms, mean: 4 * ms, wait: 3 * ms, waitKnown: true, there: 3 * ms}, 0},
		{"packets of other hosts wait less", path{shortest: ms, mean: 4 * ms, wait: 3 * ms, waitKnown: true, there: ms}, 2 * ms},
	} {
		if got := tc.path.queued(); got != tc.want {
			t.Errorf("%s: %v, expected %v", tc.name, got, tc.want)
		}
	}
}
