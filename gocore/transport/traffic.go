package transport

import (
	"sync"
	"sync/atomic"
)

// Traffic is the payload that this node has exchanged with a peer since Listen, over all lanes and connections.
type Traffic struct {
	Sent, Received uint64 // bytes, without probes and acknowledgements
	Remote         bool   // the peer is on another host, so that the bytes passed this node's link
}

// tally is the counter of a peer, which all connections with it share.
type tally struct {
	sent, received atomic.Uint64
	remote         atomic.Bool
}

// peers holds the counters of all peers that there have been.
type peers struct {
	sync.Mutex
	byID map[uint32]*tally
}

// of returns the counter of a peer with which a connection begins.
func (p *peers) of(peer uint32, remote bool) *tally {
	p.Lock()
	defer p.Unlock()
	if p.byID == nil {
		p.byID = map[uint32]*tally{}
	}
	if p.byID[peer] == nil {
		p.byID[peer] = &tally{}
	}
	p.byID[peer].remote.Store(remote)
	return p.byID[peer]
}

// total sums the bytes of all peers.
func (p *peers) total() (sent, received uint64) {
	p.Lock()
	defer p.Unlock()
	for _, t := range p.byID {
		sent += t.sent.Load()
		received += t.received.Load()
	}
	return sent, received
}

// Traffic returns the payload by peer, of all that this node has had a connection with.
func (t *Transport) Traffic() map[uint32]Traffic {
	p := &t.count.peers
	p.Lock()
	defer p.Unlock()
	all := make(map[uint32]Traffic, len(p.byID))
	for id, c := range p.byID {
		all[id] = Traffic{c.sent.Load(), c.received.Load(), c.remote.Load()}
	}
	return all
}

// LinkRates returns what this node's link carries in each direction, in bytes per second of TCP payload, as measured so far; 0: not
// known.
func (t *Transport) LinkRates() (up, down float64) {
	for _, l := range append([]*Transport{t}, t.others()...) {
		l.mu.Lock()
		up += l.mu.conns.uplink.known
		down += l.mu.down.known
		l.mu.Unlock()
	}
	return up, down
}

// Queued returns the number of packets that wait to be sent, by peer, over all lanes.
func (t *Transport) Queued() map[uint32]int {
	all := map[uint32]int{}
	for _, l := range append([]*Transport{t}, t.others()...) {
		l.mu.Lock()
		for _, c := range l.mu.conns.order {
			all[c.peer] += c.queue.length()
		}
		l.mu.Unlock()
	}
	return all
}
