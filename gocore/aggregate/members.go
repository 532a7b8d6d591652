package aggregate

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// Members are the workers of a cluster. Each change, the death of a worker or the admission of a new one, and with replicas the death of a server, begins an epoch, whose number is
// that of the changes so far. A contribution has the epoch in which its worker has begun, or repeats, the round; a sum is made of
// contributions of one epoch. Members may be used by several goroutines.
type Members struct {
	now atomic.Pointer[members]
}

// members does not change.
type members struct {
	from   []int // by rank: the first epoch with the worker; never: there is none
	left   []int // by rank: the first epoch without the worker after that; never: there is none
	epoch  int   // the last one
	living int   // workers in it
}

const never = -1

// NewMembers makes the members of a cluster in its first epoch.
func NewMembers(workers int) *Members {
	ranks := make([]int, workers)
	for rank := range ranks {
		ranks[rank] = rank
	}
	return NewMembersAt(0, ranks)
}

// NewMembersAt makes the members of a cluster in an epoch, with the ranks that take part in it.
func NewMembersAt(epoch int, ranks []int) *Members {
	now := &members{epoch: epoch, living: len(ranks)}
	for _, rank := range ranks {
		now.grow(rank)
		now.from[rank] = 0
	}
	m := &Members{}
	m.now.Store(now)
	return m
}

// grow makes room for a rank.
func (m *members) grow(rank int) {
	for rank >= len(m.from) {
		m.from, m.left = append(m.from, never), append(m.left, never)
	}
}

// Bury begins an epoch without a worker, or if rank is negative, with the same workers: a server has died. Join begins one with a new worker, whose rank no
// other has had. All nodes call them for the same nodes in the same order, each before any contribution of that epoch can arrive.
func (m *Members) Bury(rank int) {
	m.change(func(next *members) {
		if rank >= 0 {
			next.left[rank] = next.epoch
			next.living--
		}
	})
}

// Join is described at Bury.
func (m *Members) Join(rank int) {
	m.change(func(next *members) {
		next.grow(rank)
		next.from[rank] = next.epoch
		next.living++
	})
}

func (m *Members) change(do func(next *members)) {
	next := *m.now.Load()
	next.from, next.left = slices.Clone(next.from), slices.Clone(next.left)
	next.epoch++
	do(&next)
	m.now.Store(&next)
}

// Size is the number of workers in the last epoch.
func (m *Members) Size() int { return m.now.Load().living }

// Ranks lists the workers of the last epoch.
func (m *Members) Ranks() (ranks []int) {
	now := m.now.Load()
	for rank := range now.from {
		if !now.gone(rank) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// ranks is the number of ranks, those of dead workers included.
func (m *members) ranks() int { return len(m.from) }

// gone reports whether a worker takes no part in the last epoch.
func (m *members) gone(rank int) bool { return !m.in(rank, uint16(m.epoch)) }

// check returns an error for a contribution that no node sends.
func (m *members) check(rank int, epoch uint16) error {
	switch {
	case rank < 0 || rank >= m.ranks():
		return fmt.Errorf("a contribution of rank %d in a cluster of %d ranks", rank, m.ranks())
	case int(epoch) > m.epoch || !m.in(rank, epoch):
		return fmt.Errorf("a contribution of rank %d in epoch %d; the last one is %d", rank, epoch, m.epoch)
	}
	return nil
}

// in reports whether a worker takes part in an epoch.
func (m *members) in(rank int, epoch uint16) bool {
	from, left := m.from[rank], m.left[rank]
	return from != never && int(epoch) >= from && (left == never || int(epoch) < left)
}

// allGone reports whether all workers of a set are dead.
func (m *members) allGone(set ranks) bool {
	for rank := range m.from {
		if !m.gone(rank) && set.has(rank) {
			return false
		}
	}
	return true
}

// size is the number of workers in an epoch.
func (m *members) size(epoch uint16) int {
	if int(epoch) == m.epoch {
		return m.living
	}
	n := 0
	for rank := range m.from {
		if m.in(rank, epoch) {
			n++
		}
	}
	return n
}
