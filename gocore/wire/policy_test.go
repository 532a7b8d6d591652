package wire

import (
	"math"
	"testing"
)

func TestPolicies(t *testing.T) {
	for _, tc := range []struct {
		policy Policy
		number uint16
		delay  uint64
		text   string
		valid  bool
	}{
		{Sync, 0, 0, "sync", true},
		{Bounded(0), 1, 0, "bounded:0", true},
		{Bounded(7), 8, 7, "bounded:7", true},
		{Bounded(MaxDelay), MaxDelay + 1, MaxDelay, "bounded:32768", true},
		{Bounded(MaxDelay + 1), MaxDelay + 2, MaxDelay + 1, "invalid consistency", false},
		{Ordered, 65534, 0, "sync and deterministic", true},
		{Async, 65535, math.MaxUint64, "async", true},
	} {
		p := tc.policy
		if uint16(p) != tc.number || p.Delay() != tc.delay || p.String() != tc.text || p.Valid() != tc.valid {
			t.Errorf("%d: delay %d, %q, valid %v; expected %+v", p, p.Delay(), p, p.Valid(), tc)
		}
		if applied := p.Applied(); (applied == p) != (p != Ordered) || applied == Ordered {
			t.Errorf("%v is applied as %v", p, applied)
		}
	}
}
