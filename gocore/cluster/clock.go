package cluster

import (
	"time"

	"fptps/gocore/wire/pspb"
)

// tracedBeat is the time between two heartbeats while a node is traced, at most: they compare its clock with the scheduler's.
const tracedBeat = 250 * time.Millisecond

// sendHeartbeat sends a heartbeat, with what this node's clock shows.
func (p *Postoffice) sendHeartbeat(now time.Time) {
	interval := p.c.HeartbeatInterval
	beat := heartbeat(p.view.Me())
	if p.c.Trace != nil {
		p.asked = p.c.Trace.Now()
		clock(beat, p.asked, 0)
	}
	if p.c.Trace.On() {
		interval = min(interval, tracedBeat)
	}
	p.beat = now.Add(interval)
	p.send(beat)
}

// readClock reads what the scheduler's clock showed when it answered the last heartbeat. Other answers are ignored: they were under way
// for longer.
func (p *Postoffice) readClock(m *pspb.Meta) {
	c := m.GetClock()
	if c == nil || c.Scheduler == nil || p.asked == 0 || c.GetSent() != p.asked {
		return
	}
	p.c.Trace.Clock.Observe(p.asked, c.GetScheduler(), p.c.Trace.Now())
	p.asked = 0
}
