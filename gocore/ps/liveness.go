package ps

import (
	"maps"
	"slices"
	"sync"
)

// A node may die, and a successor may take its id. Requests to the dead node fail. Answers to its own requests are dropped:
// they must not reach the successor, whose requests have the same timestamps.

// liveness records which peers are dead, and how often each id has lost its node.
type liveness struct {
	sync.Mutex
	dead   map[int]error // reason, by id; removed once a successor can be reached
	deaths map[int]int   // number of deaths, by id
}

// MarkDead records that a node is dead: new requests to it fail with why. FailRequestsTo fails the open ones.
func (o *Office) MarkDead(id int, why error) {
	o.links.Lock()
	delete(o.links.byPeer, id)
	o.links.Unlock()
	o.liveness.Lock()
	defer o.liveness.Unlock()
	o.liveness.dead[id] = why
	o.liveness.deaths[id]++
}

// FailPeer fails, with the reason why, the open requests to a dead node whose connection has ended.
func (o *Office) FailRequestsTo(id int, why error) {
	o.mu.Lock()
	all := slices.Collect(maps.Values(o.mu.customers))
	o.mu.Unlock()
	for _, c := range all {
		c.failPeer(id, why)
	}
}

// MarkReplaced records that a successor has the id and can be reached.
func (o *Office) MarkReplaced(id int) {
	o.liveness.Lock()
	defer o.liveness.Unlock()
	delete(o.liveness.dead, id)
}

// deathsOf is the number of nodes that have died with an id.
func (o *Office) deathsOf(id int) int {
	o.liveness.Lock()
	defer o.liveness.Unlock()
	return o.liveness.deaths[id]
}

// reachable returns why m cannot be sent, nil if it can. stale reports that m answers a node that has died since.
func (o *Office) reachable(m *Message) (why error, stale bool) {
	o.liveness.Lock()
	defer o.liveness.Unlock()
	return o.liveness.dead[m.Peer], !m.Request && m.PeerDeaths != o.liveness.deaths[m.Peer]
}
