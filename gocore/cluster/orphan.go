package cluster

import (
	"crypto/subtle"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// In a cluster that outlives its scheduler a node whose scheduler has died is an orphan, until another one is started at the address. Rounds go
// on: they need no scheduler. What needs one waits: it is kept, and said again. The orphan announces itself over each
// connection with the address that is made. From then on it obeys the scheduler that answers, and no other.

// lookTime is how often an orphan looks for a connection.
const lookTime = 100 * time.Millisecond

// orphan is a node's wait for another scheduler.
type orphan struct {
	since    time.Time
	why      string
	asked    time.Time // when a scheduler was last asked to go on: it may have to wait for others
	made     int       // connections over which it has announced itself
	noticed  time.Time // when those that wait were last told
	needs    time.Time // since when something waits for the scheduler; zero: nothing does
	answered bool      // by a scheduler, whose decisions follow
	last     uint64    // the decision with which the wait ends then
}

// pending is what a node has told its scheduler, and would have to tell another one.
type pending struct {
	survived *pspb.Survived // the last one
	linked   map[int]uint64 // newcomers with which there are connections, and their incarnations
	ready    bool           // a newcomer: its program waits to be admitted
	fetched  bool           // it was a newcomer, and knows the rounds
	stateful string
	capacity *pspb.Capacity // the last one
	backedUp *pspb.BackedUp // the last one
}

// outlives reports whether this node goes on when the scheduler dies.
func (p *Postoffice) outlives() bool { return p.history != nil && p.begun }

// loseScheduler handles the death of the scheduler.
func (p *Postoffice) loseScheduler(now time.Time, why string) {
	if !p.outlives() {
		p.lose(wire.SchedulerID, why)
		return
	}
	p.suspects = slices.DeleteFunc(p.suspects, func(o suspicion) bool { return o.id == wire.SchedulerID })
	if p.orphan != nil {
		return
	}
	p.log.Warn("the scheduler was lost; rounds go on, and what needs a scheduler waits until another one is started at its address", "reason", why,
		"scheduler", p.schedulerAddress(), "FPTPS_SCHEDULER_TIMEOUT", p.view.SchedulerTimeout)
	p.orphan = &orphan{since: now, why: why, noticed: now}
	p.loop.van.Disconnect(wire.SchedulerID, true) // what was queued is said again
	if err := p.loop.van.ConnectCounted(wire.SchedulerID, p.c.SchedulerHost, p.c.SchedulerPort); err != nil {
		p.lose(wire.SchedulerID, fmt.Sprintf("%s; and no connection with another one can be made: %v", why, err))
	}
}

func (p *Postoffice) schedulerAddress() string {
	return fmt.Sprintf("%s:%d", p.c.SchedulerHost, p.c.SchedulerPort)
}

// tickOrphan looks for a scheduler, and gives up when something has waited for one for too long.
func (p *Postoffice) tickOrphan(now time.Time) {
	o := p.orphan
	if made := p.loop.van.Connections(wire.SchedulerID); made > o.made {
		o.made, o.answered, o.asked = made, false, now
		p.announce()
	}
	waiting := p.waitsForScheduler()
	if len(waiting) == 0 {
		o.needs = time.Time{}
		return
	}
	if o.needs.IsZero() {
		o.needs = now
	}
	begin := o.since
	for _, at := range []time.Time{o.needs, o.asked} {
		if at.After(begin) {
			begin = at
		}
	}
	if now.Sub(begin) >= p.view.SchedulerTimeout {
		p.lose(wire.SchedulerID, fmt.Sprintf("%s. For %s no other was there for %s (FPTPS_SCHEDULER_TIMEOUT): start one at %s with the same settings, or use `fptps run --restarts`",
			o.why, seconds(now.Sub(o.since)), waiting[0], p.schedulerAddress()))
		return
	}
	if now.Sub(o.noticed) >= noticeTime {
		o.noticed = now
		for _, event := range waiting {
			p.waiting(&pspb.Waiting{What: proto.String(event), Missing: []string{Name(wire.SchedulerID)}})
		}
	}
}

// waitsForScheduler lists what needs a scheduler now, the names as in Waiting: a few of them. A server always waits in the last barrier, and needs nobody for that.
func (p *Postoffice) waitsForScheduler() (events []string) {
	for _, waiting := range p.barriers {
		if len(waiting) > 0 && (waiting[0].group != AllGroup || p.c.Role == RoleWorker) {
			events = append(events, "barrier")
			break
		}
	}
	for _, d := range p.declares {
		events = append(events, d.name())
		break
	}
	if len(p.suspects) > 0 || p.history.settling {
		events = append(events, wire.Deaths)
	}
	if p.history.admitting || p.View().Me().Newcomer {
		events = append(events, wire.Admissions)
	}
	if p.history.preparing {
		events = append(events, "a new plan")
	}
	return events
}

// announce tells the scheduler that is there now who this node is, and what it knows.
func (p *Postoffice) announce() {
	tell := func(own *pspb.Announce) {
		own.Secret, own.Term = proto.String(p.c.Secret), termsMessage(p.history.terms)
		m := &pspb.Meta{Own: &pspb.Meta_Announce{Announce: own}, Token: p.view.Token[:], Incarnation: proto.Uint64(p.view.Me().Incarnation)}
		if err := p.loop.van.Send(wire.SchedulerID, m); err != nil {
			p.log.Warn("the scheduler was not told of this node", "reason", err)
		}
	}
	const most = 256 << 10 // with one decision more it stays below the longest message
	bytes, part := 0, []*pspb.Meta{}
	for _, decision := range p.history.kept() {
		part, bytes = append(part, decision), bytes+proto.Size(decision)
		if bytes >= most {
			tell(&pspb.Announce{Decision: part})
			bytes, part = 0, nil
		}
	}
	tell(&pspb.Announce{Decision: part})
	if p.c.Role == RoleWorker {
		for tensors := range slices.Chunk(p.history.tensors(), maxBatch) {
			tell(&pspb.Announce{Tensor: tensors})
		}
	}
	view := p.View()
	me := view.Me()
	me.Share = p.c.Share // as it was set; the scheduler's part is in the plan
	own := &pspb.Announce{Node: nodeOf(me), Known: p.history.encode(p.begun), FastestLink: positive(view.FastestLink)}
	for _, m := range view.Members {
		if m.ID != wire.SchedulerID {
			own.Member = append(own.Member, nodeOf(m))
		}
	}
	for _, o := range p.suspects {
		own.Suspect = append(own.Suspect, int32(o.id))
	}
	if p.view.Me().Newcomer && p.c.Role == RoleWorker && !p.pending.fetched {
		own.Blank = proto.Bool(true)
	}
	if view.Replans {
		own.Replans = proto.Bool(true)
	}
	tell(own)
}

// resumed handles the answer of a scheduler that goes on with the cluster.
func (p *Postoffice) resumed(now time.Time, e *pspb.Meta, own *pspb.Resumed) {
	m, err := memberOf(own.GetNode())
	m.ID, m.Customers = wire.SchedulerID, 1
	same := own.GetTerm() == p.history.term() && m.Incarnation == p.View().Member(wire.SchedulerID).Incarnation
	if err != nil || m.Role != RoleScheduler || m.Incarnation != e.GetIncarnation() || own.GetDecision() < p.history.number || !same && own.GetTerm() <= p.history.term() {
		p.log.Warn("dropped the message of a scheduler that makes no sense", "term", own.GetTerm(), "reason", err)
		return
	}
	if !same {
		p.history.begin(own.GetTerm(), own.GetDecision())
	}
	p.mail.change(p.View().With(m), 0)
	p.orphan.answered, p.orphan.last, p.heard = true, own.GetDecision(), now
	p.events.resumed(m)
	p.goOn()
}

// isResumed reports whether a message is a scheduler's answer to the announcement of this node: it knows the cluster's token.
func (p *Postoffice) isResumed(from int, m *pspb.Meta) bool {
	own := m.GetResumed()
	return own != nil && p.orphan != nil && from == wire.SchedulerID && subtle.ConstantTimeCompare(m.GetToken(), p.view.Token[:]) == 1 && own.GetIncarnation() == p.view.Me().Incarnation
}

// goOn ends the wait for a scheduler, if this node has handled all decisions before its term: now it says again what it waits for. Before, that might
// be decided already.
func (p *Postoffice) goOn() {
	if p.orphan == nil || !p.orphan.answered || p.history.number < p.orphan.last || p.failure != nil {
		return
	}
	p.log.Warn("another scheduler goes on with the cluster", "scheduler", p.schedulerAddress(), "after", time.Since(p.orphan.since).Round(time.Millisecond))
	p.orphan, p.beat = nil, time.Now()
	p.suspects = slices.DeleteFunc(p.suspects, func(o suspicion) bool { return o.id == wire.SchedulerID }) // the one before
	for _, event := range []string{wire.Deaths, wire.Admissions, "a new plan"} {
		p.endStall(event)
	}
	p.sayAgain()
}

// sayAgain tells the scheduler all that it has to know of this node.
func (p *Postoffice) sayAgain() {
	view, mine := p.View(), &p.pending
	if mine.stateful != "" {
		p.send(statefulMessage(mine.stateful))
	}
	if mine.backedUp != nil {
		p.send(backedUpMessage(mine.backedUp))
	}
	for _, m := range view.Members {
		if m.Newcomer && mine.linked[m.ID] == m.Incarnation {
			p.send(linkedMessage(m))
		}
	}
	if s := mine.survived; s != nil && (view.Me().Newcomer || p.history.settling) {
		p.send(&pspb.Meta{Own: &pspb.Meta_Survived{Survived: s}})
	}
	if mine.ready && view.Me().Newcomer {
		p.send(&pspb.Meta{Own: &pspb.Meta_Arrived{Arrived: &pspb.Arrived{}}})
	}
	if mine.fetched {
		p.send(fetchedMessage())
	}
	for i := range p.suspects {
		p.suspects[i].at = time.Now() // the verdict is due from now on
		p.send(suspectMessage(p.suspects[i], view.Member(p.suspects[i].id).Incarnation))
	}
	var declares []*pspb.Meta
	for key, d := range p.declares {
		declares = append(declares, &pspb.Meta{Own: &pspb.Meta_Declare{Declare: declareMessage(key, d.Tensor)}})
	}
	for part := range slices.Chunk(declares, maxBatch) {
		p.send(batch(part))
	}
	for where, waiting := range p.barriers {
		switch {
		case len(waiting) == 0:
		case waiting[0].leaves != nil: // the scheduler that was to decide is dead, and this one does not know of the barrier
			p.leave(where, waiting[0].leaves)
		default:
			p.send(waiting[0].request)
		}
	}
	if mine.capacity != nil {
		p.send(&pspb.Meta{Own: &pspb.Meta_Capacity{Capacity: mine.capacity}})
	}
}

// obey reports whether a message of the scheduler is to be handled: once an orphan has announced itself, it handles none of the scheduler that it has
// lost, as another one has learned already what this node knows; and a decision is handled once, in order, if it concerns this node.
func (p *Postoffice) obey(m *pspb.Meta) bool {
	if p.history == nil {
		return true
	}
	if p.orphan != nil && !p.orphan.answered && p.orphan.made > 0 {
		return false
	}
	p.history.settle(m.GetStable())
	if m.Decision == nil {
		return true
	}
	switch p.history.take(m, p.View().Members) {
	case isOld:
		return false
	case isGap:
		p.lose(wire.SchedulerID, "its decisions do not follow each other")
		return false
	}
	if m.GetControl().GetCmd() == pspb.Barrier && m.GetControl().GetBarrierGroup() == AllGroup {
		p.begun = true
	}
	me := p.View().Me()
	return !concernsWorkers(m) || me.Role == RoleWorker && !me.Newcomer
}

// concernsWorkers reports whether a decision concerns the workers that take part alone.
func concernsWorkers(m *pspb.Meta) bool {
	switch m.GetOwn().(type) {
	case *pspb.Meta_Gather, *pspb.Meta_Meet, *pspb.Meta_Prepare, *pspb.Meta_Commit, *pspb.Meta_Abort, *pspb.Meta_Settled:
		return true
	}
	return false
}
