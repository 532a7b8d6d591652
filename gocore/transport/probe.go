package transport

import (
	"crypto/rand"
	"maps"
	"sync"
	"time"

	"fptps/gocore/wire"
)

// Before the training has sent anything, nothing is known of the links. So the nodes of a cluster fill them for a moment, all at
// once as in the training, with packets that mean nothing, from which capacity.go measures as it does from the training's.
//
// The training never waits for that: these packets are less urgent than all others, few are queued at a time, and the probe
// ends as soon as this node has anything else for another host.
const (
	// ProbeBytes is the most that a link should carry for a probe in each direction.
	ProbeBytes = 8 << 20
	probeTime  = 300 * time.Millisecond
	// probeAhead is the number of packets that are queued for a peer: one waits while the other is written.
	probeAhead = 2
)

// probe is what this node has left to send for its probe. It is pure: the times are arguments.
type probe struct {
	until time.Duration  // 0: there is none
	left  map[uint32]int // bytes for each peer
}

// runs reports whether the probe still lasts.
func (p *probe) runs(now time.Duration) bool { return now < p.until }

// take reports whether another packet is due for a peer.
func (p *probe) take(now time.Duration, peer uint32) bool {
	const size = wire.HeaderBytes + wire.PacketBytes
	if !p.runs(now) || p.left[peer] < size {
		return false
	}
	p.left[peer] -= size
	return true
}

// probed is the peer of a probe. It owns the packets on their way there: when one has left, the next is queued.
type probed struct {
	t    *Transport
	peer uint32
}

// Release implements Releaser.
func (p *probed) Release() { p.t.wake(p.next()) }

// next queues the next packet, if one is due. It returns the loop to wake, if any.
func (p *probed) next() *poller {
	t := p.t
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.mu.conns.byPeer[p.peer]
	if c == nil || !c.remote || !t.accepts() || !t.mu.probe.take(t.now(), p.peer) {
		return nil
	}
	m := Outgoing{Header: wire.Header{Kind: wire.Probe, Run: 1}, Data: noise(), Owner: p}
	wake, _, _ := t.enqueue(p.peer, &m) // it is too long for a shortcut
	return wake
}

// noise is the payload of all probes: bytes that nothing on the way can compress.
var noise = sync.OnceValue(func() []byte {
	b := make([]byte, wire.PacketBytes)
	rand.Read(b)
	return b
})

// Probe fills the links to other hosts for a moment: it sends at most so many bytes to each peer that has a connection. It is called
// once, on all nodes at about the same time. A data plane with several lanes sends nothing: its links are so fast that the bytes of a probe
// would measure nothing.
func (t *Transport) Probe(bytes map[uint32]int) {
	if len(t.others()) > 0 {
		return
	}
	t.probe(bytes, probeTime)
}

// probe is Probe for a time.
func (t *Transport) probe(bytes map[uint32]int, lasts time.Duration) {
	t.beginProbe(bytes, lasts)
	for peer := range bytes {
		p := &probed{t, peer}
		for range probeAhead {
			p.Release()
		}
	}
}

func (t *Transport) beginProbe(bytes map[uint32]int, lasts time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	t.mu.probe = probe{until: now + lasts, left: maps.Clone(bytes)}
	t.mu.conns.uplink.probe(now, now+lasts)
	t.mu.down.probe(now, now+lasts)
}

// Probing reports whether the probe still lasts.
func (t *Transport) Probing() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.probe.runs(t.now())
}

// endProbe ends the probe: this node has other packets for another host. mu is held.
func (t *Transport) endProbe() {
	if t.mu.probe.until == 0 {
		return
	}
	t.mu.probe = probe{}
	t.mu.conns.uplink.endProbe()
	t.mu.down.endProbe()
}
