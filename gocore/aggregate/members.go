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
	ranks int    // of all workers, dead ones included
	sizes []int  // the number of workers by epoch
	left  []int  // by rank: the first epoch without the worker; -1: there is none
	gone  []bool // by rank: the worker is dead
}

// NewMembers makes the members of a cluster in which no worker is dead.
func NewMembers(workers int) *Members {
	m := &Members{}
	m.now.Store(&members{ranks: workers, sizes: []int{workers}, left: slices.Repeat([]int{-1}, workers), gone: make([]bool, workers)})
	return m
}

// Bury begins an epoch without a worker. All nodes call it for the same workers in the same order, each before any contribution of that
// epoch can arrive.
func (m *Members) Bury(rank int) {
	next := *m.now.Load()
	next.left, next.gone = slices.Clone(next.left), slices.Clone(next.gone)
	next.left[rank], next.gone[rank] = len(next.sizes), true
	next.sizes = append(slices.Clone(next.sizes), next.sizes[len(next.sizes)-1]-1)
	m.now.Store(&next)
}

// Size is the number of workers that are left.
func (m *Members) Size() int {
	now := m.now.Load()
	return now.sizes[len(now.sizes)-1]
}

// check returns an error for a contribution that no node sends.
func (m *members) check(rank int, epoch uint16) error {
	switch {
	case rank < 0 || rank >= m.ranks:
		return fmt.Errorf("a contribution of rank %d in a cluster of %d workers", rank, m.ranks)
	case int(epoch) >= len(m.sizes) || !m.in(rank, epoch):
		return fmt.Errorf("a contribution of rank %d in epoch %d, of %d deaths", rank, epoch, len(m.sizes)-1)
	}
	return nil
}

// in reports whether a worker takes part in an epoch.
func (m *members) in(rank int, epoch uint16) bool {
	return m.left[rank] < 0 || int(epoch) < m.left[rank]
}

// allGone reports whether all workers of a set are dead.
func (m *members) allGone(set ranks) bool {
	for rank, gone := range m.gone {
		if !gone && set.has(rank) {
			return false
		}
	}
	return true
}

// size is the number of workers in an epoch.
func (m *members) size(epoch uint16) int { return m.sizes[epoch] }
