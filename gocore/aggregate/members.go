package aggregate

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// Members are the workers of a cluster. Each death of a worker begins an epoch, whose number is that of the deaths so far. A
// contribution has the epoch in which its worker has begun, or repeats, the round; a sum is made of contributions of one epoch. Members
// may be used by several goroutines.
type Members struct {
	now atomic.Pointer[members]
}

// members does not change.
type members struct {
	left  []int // by rank: the first epoch without the worker; alive: there is none
	epoch int   // the last one
}

const alive = -1

// NewMembers makes the members of a cluster in which no worker is dead.
func NewMembers(workers int) *Members {
	m := &Members{}
	m.now.Store(&members{left: slices.Repeat([]int{alive}, workers)})
	return m
}

// Bury begins an epoch without a worker. All nodes call it for the same workers in the same order, each before any contribution of that
// epoch can arrive.
func (m *Members) Bury(rank int) {
	next := *m.now.Load()
	next.left = slices.Clone(next.left)
	next.epoch++
	next.left[rank] = next.epoch
	m.now.Store(&next)
}

// Size is the number of workers that are left.
func (m *Members) Size() int {
	now := m.now.Load()
	return now.size(uint16(now.epoch))
}

// ranks is the number of ranks, those of dead workers included.
func (m *members) ranks() int { return len(m.left) }

// gone reports whether a worker is dead.
func (m *members) gone(rank int) bool { return m.left[rank] != alive }

// check returns an error for a contribution that no node sends.
func (m *members) check(rank int, epoch uint16) error {
	switch {
	case rank < 0 || rank >= m.ranks():
		return fmt.Errorf("a contribution of rank %d in a cluster of %d workers", rank, m.ranks())
	case int(epoch) > m.epoch || !m.in(rank, epoch):
		return fmt.Errorf("a contribution of rank %d in epoch %d, of %d deaths", rank, epoch, m.epoch)
	}
	return nil
}

// in reports whether a worker takes part in an epoch.
func (m *members) in(rank int, epoch uint16) bool {
	return !m.gone(rank) || int(epoch) < m.left[rank]
}

// allGone reports whether all workers of a set are dead.
func (m *members) allGone(set ranks) bool {
	for rank := range m.left {
		if !m.gone(rank) && set.has(rank) {
			return false
		}
	}
	return true
}

// size is the number of workers in an epoch: each one has begun with a death.
func (m *members) size(epoch uint16) int { return m.ranks() - int(epoch) }
