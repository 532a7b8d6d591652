package wire

import (
	"fmt"
	"math"
)

// Policy is the consistency of a tensor: when a worker's round is applied to its value. It is sent in Contrib and Empty, so
// that an aggregator needs no list of tensors.
type Policy uint16

const (
	// Sync applies a round once, when all workers have contributed to it.
	Sync Policy = 0
	// Ordered is Sync with contributions that are added in the order of the workers' ranks, so that the bits of the sum do not
	// depend on when they arrive.
	Ordered Policy = math.MaxUint16 - 1
	// Async applies each contribution when it arrives.
	Async Policy = math.MaxUint16
)

// Bounded applies a contribution as soon as no worker is more than delay rounds behind it; delay is 0 to MaxDelay.
func Bounded(delay uint64) Policy { return Policy(delay + 1) }

// Applied is the policy by which the sum is applied, for which the order of the additions no longer matters.
func (p Policy) Applied() Policy {
	if p == Ordered {
		return Sync
	}
	return p
}

// Delay is the number of rounds that a worker may be ahead of the slowest.
func (p Policy) Delay() uint64 {
	switch p.Applied() {
	case Sync:
		return 0
	case Async:
		return math.MaxUint64
	}
	return uint64(p) - 1
}

// Valid reports whether p is one of the policies above.
func (p Policy) Valid() bool { return p == Async || p == Ordered || p <= MaxDelay+1 }

// String is the policy as users write it.
func (p Policy) String() string {
	switch {
	case p == Sync:
		return "sync"
	case p == Ordered:
		return "sync and deterministic"
	case p == Async:
		return "async"
	case p.Valid():
		return fmt.Sprintf("bounded:%d", p.Delay())
	}
	return "invalid consistency"
}
