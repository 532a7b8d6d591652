package cluster

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"fptps/gocore/balance"
	"fptps/gocore/plan"
	"fptps/gocore/wire"
)

const (
	// observeTime is the time between two looks at what links carry.
	observeTime = 250 * time.Millisecond
	// looks is the number of them after the latest report: balance.Watch wants to see a gain twice.
	looks = 2
	// promiseTime is how long workers have for their promises. Then the plan is withdrawn, and
	// the next look is after retryTime.
	promiseTime = 2 * time.Second
	retryTime   = 5 * time.Second
	// A plan has to gain minGain, and twice as much for each change in the last calmTime: what
	// is measured varies, and no plan should follow that.
	minGain  = 0.05
	calmTime = time.Minute
	// A plan leaves out the tensors that have not been pushed yet. It is introduced once more for them after againTime, and later
	// after twice the time before while none of them has been pushed.
	againTime = time.Second
	againMost = time.Minute
	// A link of alikeGain of the fastest or more counts as equal to it.
	alikeGain = 0.9
	// What a link has carried at most may be too high by half, as bursts may have been part of it.
	burstGain = 0.6
)

// Capacity is what a node has found out about itself, its link and the paths to it, in bytes per second; 0: nothing.
type Capacity struct {
	Up, Down float64 // what it carries in each direction
	Carried  float64 // the most that it has sent lately, whatever the limit was

	Processor float64 // what the node's processor moves in each direction, if it is slower than the link

	Paths map[uint32]float64 // from other nodes, which carry less than the links at both ends; see paths.go
}

func (c Capacity) equal(other Capacity) bool {
	return c.Up == other.Up && c.Down == other.Down && c.Carried == other.Carried &&
		c.Processor == other.Processor && maps.Equal(c.Paths, other.Paths)
}

// planner decides which plan the cluster uses. It computes the best plan for the links as they are, and
// introduces it if rounds become shorter. There is one change at a time. Pure, as the scheduler is.
type planner struct {
	active   bool         // plans may change
	shares   []plan.Share // of the present plan
	number   uint32       // of the last plan that was announced
	reports  map[int]Capacity
	looks    int       // that are left
	lookTime time.Time // of the next one
	watch    balance.Watch
	change   *change     // that is being introduced; nil: none
	joined   []int       // nodes that have come since the last plan, and get a share in the next one
	changed  []time.Time // when plans were put into force, in the last calmTime
	kept     bool        // stays has reported

	unpushed uint32        // tensors that the present plan leaves out until they have been pushed
	again    time.Time     // when it is introduced for them; the zero time: there are none
	pause    time.Duration // before that
}

// change is a plan for which the workers are asked for promises.
type change struct {
	number   uint32
	shares   []plan.Share
	promises map[int]wire.Rounds // by worker
	deadline time.Time
	why      string

	joined []int // for which it was made
	again  bool  // it is the present plan, for the tensors that this has left out
	vain   bool  // none of these has been pushed: it is withdrawn
}

// report takes a node's report.
func (p *planner) report(now time.Time, id int, c Capacity) {
	if !p.active || p.reports[id].equal(c) {
		return
	}
	p.reports[id] = c
	if p.looks == 0 {
		p.lookTime = now.Add(observeTime)
	}
	p.looks = looks
}

// look returns a better plan. It returns nil if there is none, and between two looks.
func (p *planner) look(now time.Time, members []*member) *change {
	if p.change == nil && len(p.joined) > 0 && !now.Before(p.lookTime) {
		return p.introduceJoined(now, members)
	}
	if p.change == nil && !p.again.IsZero() && !now.Before(p.again) {
		c := p.introduce(now, p.shares, "tensors that have been pushed by now follow the last plan")
		c.again = true
		return c
	}
	if p.looks == 0 || p.change != nil || now.Before(p.lookTime) {
		return nil
	}
	p.looks--
	p.lookTime = now.Add(observeTime)
	hosts, known := p.hosts(members)
	if !known {
		return nil
	}
	processors := p.limitLinks(hosts)
	slow := p.limitSums(hosts)
	better, err := p.watch.Observe(hosts, p.shares, p.leastGain(now))
	if err != nil || better == nil { // an error: a capacity is nonsense
		if p.looks == 0 && len(p.changed) > 0 { // a smaller gain will do later
			p.looks, p.lookTime = looks, now.Add(retryTime)
		}
		return nil
	}
	return p.introduce(now, better.Shares, p.describe(better, members, append(describeProcessors(processors, members), describePaths(slow)...)))
}

// introduce begins a change.
func (p *planner) introduce(now time.Time, shares []plan.Share, why string) *change {
	p.number++
	if uint16(p.number) == 0 { // headers have 16 bits, and 0 is the first plan
		p.number++
	}
	p.change = &change{number: p.number, shares: shares, promises: map[int]wire.Rounds{}, deadline: now.Add(promiseTime), why: why}
	return p.change
}

// stays reports, once, that nothing better than the first plan was found from the first reports.
func (p *planner) stays() bool {
	if p.kept || p.number > 0 || p.looks > 0 || len(p.reports) == 0 {
		return false
	}
	p.kept = true
	return true
}

// leastGain is what a plan has to gain now.
func (p *planner) leastGain(now time.Time) float64 {
	p.changed = slices.DeleteFunc(p.changed, func(at time.Time) bool { return now.Sub(at) >= calmTime })
	return math.Ldexp(minGain, len(p.changed))
}

// promised takes a worker's answer. Once all workers have answered it returns the change, which holds from now on unless it is vain.
func (p *planner) promised(now time.Time, id int, number uint32, begun wire.Rounds, workers int) *change {
	c := p.change
	if c == nil || number != c.number {
		return nil
	}
	c.promises[id] = begun
	if len(c.promises) < workers {
		return nil
	}
	unpushed := uint32(0)
	for _, promise := range c.promises {
		unpushed += promise.Unpushed
	}
	c.vain = c.again && unpushed >= p.unpushed
	p.awaitPushes(now, unpushed, c.vain)
	if p.change = nil; c.vain {
		return c
	}
	if !c.again {
		p.changed = append(p.changed, now)
	}
	p.shares = c.shares
	p.looks = looks // at what it brings
	return c
}

// awaitPushes decides when the present plan is introduced for the tensors that it leaves out.
func (p *planner) awaitPushes(now time.Time, unpushed uint32, vain bool) {
	p.pause = min(2*p.pause, againMost)
	if !vain {
		p.pause = againTime
	}
	p.unpushed, p.again = unpushed, now.Add(p.pause)
	if unpushed == 0 {
		p.again = time.Time{}
	}
}

// overdue returns the change whose promises have not come in time: it is withdrawn.
func (p *planner) overdue(now time.Time) *change {
	c := p.change
	if c == nil || now.Before(c.deadline) {
		return nil
	}
	p.change, p.looks, p.lookTime = nil, looks, now.Add(retryTime)
	p.joined = append(p.joined, c.joined...)
	if c.again {
		p.again = p.lookTime
	}
	return c
}

// due is when look or overdue has something to do; the zero time if nothing.
func (p *planner) due() time.Time {
	switch {
	case p.change != nil:
		return p.change.deadline
	case len(p.joined) > 0:
		return p.lookTime
	case p.looks > 0 && (p.again.IsZero() || p.lookTime.Before(p.again)):
		return p.lookTime
	}
	return p.again
}

// hosts lists the links with their capacities; known reports whether at least one link, path or processor has been measured. A link that has not is
// taken to be as fast as the fastest: if it is slower, it becomes the slowest under the next plan, and is measured
// then. Of a link with several nodes behind it each node sees a part only: it counts as not measured.
func (p *planner) hosts(members []*member) (list []balance.Host, known bool) {
	list = hosts(members)
	fastest, second, carried, others := 0.0, 0.0, 0.0, 0
	for _, c := range p.reports {
		others += len(c.Paths)
		if c.Processor > 0 {
			others++
		}
		for _, rate := range []float64{c.Up, c.Down} {
			second = max(second, min(rate, fastest))
			fastest = max(fastest, rate)
		}
		carried = max(carried, c.Carried)
	}
	if second >= alikeGain*fastest { // one that was measured a little too high would make all others slow
		fastest = second
	}
	if fastest == 0 && (others == 0 || carried == 0) {
		return list, false
	}
	if fastest < burstGain*carried { // of the fast links none was measured
		fastest = carried
	}
	capacity := func(measured float64) float64 {
		if measured == 0 || measured >= alikeGain*fastest {
			return fastest
		}
		return measured
	}
	for i := range list {
		h, c := &list[i], Capacity{}
		if len(h.Nodes) == 1 {
			c = p.reports[int(h.Nodes[0].ID)]
		}
		h.Up, h.Down = capacity(c.Up), capacity(c.Down)
		for n := range h.Nodes {
			h.Nodes[n].Sums = 1000 * fastest
		}
	}
	return list, true
}

// describe says what changes, and why: rates are those of paths and processors.
func (p *planner) describe(better *balance.Change, members []*member, rates []string) string {
	var moves []string
	for _, m := range members {
		from, to := percent(p.shares, m.ID), percent(better.Shares, m.ID)
		if from != to {
			moves = append(moves, fmt.Sprintf("%s %d%% -> %d%%", Name(m.ID), from, to))
		}
		c := p.reports[m.ID]
		for _, direction := range []struct {
			name string
			rate float64
		}{{"sends", c.Up}, {"receives", c.Down}} {
			if direction.rate > 0 {
				rates = append(rates, fmt.Sprintf("%s %s %s", Name(m.ID), direction.name, Megabits(direction.rate)))
			}
		}
	}
	return fmt.Sprintf("%s; rounds take %.0f%% longer without, as %s", shorten(moves), 100*better.Gain, shorten(rates))
}

// Megabits writes a rate in bytes per second as Mbit/s.
func Megabits(rate float64) string { return fmt.Sprintf("%.0f Mbit/s", rate*8/1e6) }

// shorten joins the first of many texts.
func shorten(texts []string) string {
	const most = 12
	if more := len(texts) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(texts[:most], ", "), more)
	}
	return strings.Join(texts, ", ")
}

// percent is a node's part of the summing, rounded.
func percent(shares []plan.Share, id int) int {
	total, own := 0, 0
	for _, s := range shares {
		total += int(s.Share)
		if int(s.Node) == id {
			own = int(s.Share)
		}
	}
	return int(math.Round(100 * float64(own) / float64(max(1, total))))
}
