package ps

import (
	"maps"
	"slices"
	"sync"
)

// A node may die, and another get its id. What was asked of the dead one ends; what it had asked is answered to nobody,
// least of all to the other, whose requests have the same numbers.

// absence is who is dead, and who has been.
type absence struct {
	sync.Mutex
	gone  map[int]error // why; until another can be reached
	lives map[int]int   // how often an id has become free
}

// Gone says that a node is dead: requests to it end with why from now on. Those under way are Lose's.
func (o *Office) Gone(id int, why error) {
	o.lines.Lock()
	delete(o.lines.of, id)
	o.lines.Unlock()
	o.absence.Lock()
	defer o.absence.Unlock()
	o.absence.gone[id] = why
	o.absence.lives[id]++
}

// Lose ends with why what is under way to a node that is Gone, and from which nothing comes any more.
func (o *Office) Lose(id int, why error) {
	o.mu.Lock()
	all := slices.Collect(maps.Values(o.mu.customers))
	o.mu.Unlock()
	for _, c := range all {
		c.lose(id, why)
	}
}

// Revive says that another node has the id, and can be reached.
func (o *Office) Revive(id int) {
	o.absence.Lock()
	defer o.absence.Unlock()
	delete(o.absence.gone, id)
}

// life counts the nodes that have had an id before.
func (o *Office) life(id int) int {
	o.absence.Lock()
	defer o.absence.Unlock()
	return o.absence.lives[id]
}

// reachable tells why a message cannot be sent; stale: it answers one that has died since.
func (o *Office) reachable(m *Message) (why error, stale bool) {
	o.absence.Lock()
	defer o.absence.Unlock()
	return o.absence.gone[m.Peer], !m.Request && m.Life != o.absence.lives[m.Peer]
}
