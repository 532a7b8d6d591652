package cluster

import (
	"fmt"
	"slices"
	"time"
)

const (
	// silentTime without a report means that a node stands still, or cannot be reached.
	silentTime = 4 * time.Second
	silent     = "silent"
	// answerTime is how long an answer about the status holds: so a stranger that asks all the time costs little.
	answerTime = 200 * time.Millisecond
	// maxDeaths bounds the deaths that the status remembers, the oldest forgotten first.
	maxDeaths = 32
	// maxStatus bounds the status that an asker reads.
	maxStatus = 64 << 20
	// slowGain is how much less than the others' median a worker waits, as a part of the time, if the others wait for it.
	slowGain = 0.2
)

// Status is the state of a cluster as its scheduler knows it. docs/seeing.md describes the fields; a pointer is nil where something is
// not known.
type Status struct {
	Scheduler string   `json:"scheduler"` // host:port
	State     string   `json:"state"`     // joining, resuming, running, ended
	Time      float64  `json:"time"`      // Unix time, seconds
	Workers   int      `json:"workers"`   // with which the cluster begins
	Servers   int      `json:"servers"`
	Waiting   *Waiting `json:"waiting"` // a join or a barrier that waits
	Plan      uint32   `json:"plan"`
	Epoch     int      `json:"epoch"`
	Recovers  bool     `json:"recovers"`
	Slowest   *string  `json:"slowest_worker"` // for whom the others wait
	Refused   uint64   `json:"refused_joiners"`
	Strays    uint64   `json:"dropped_messages"`
	Totals    Totals   `json:"totals"`
	Died      uint64   `json:"died"`  // nodes, so far
	Nodes     []Node   `json:"nodes"` // without the scheduler
	Deaths    []Death  `json:"deaths"`
}

// Totals are sums over all nodes, also those that have died since.
type Totals struct {
	Rounds   uint64  `json:"rounds"`
	Pushed   uint64  `json:"bytes_pushed"`
	Sent     uint64  `json:"bytes_sent"`
	Received uint64  `json:"bytes_received"`
	Waited   float64 `json:"wait_s"`
}

func (t *Totals) add(p Progress) {
	t.Rounds, t.Pushed, t.Sent, t.Received, t.Waited = t.Rounds+p.Rounds, t.Pushed+p.Pushed, t.Sent+p.Sent, t.Received+p.Received, t.Waited+p.Waited.Seconds()
}

// Waiting names what waits, and the nodes that are missing.
type Waiting struct {
	For     string   `json:"for"` // join, start, barrier, end; of a node its round: "key 3 round 7"
	Missing []string `json:"missing"`
	Seconds *float64 `json:"seconds"`
}

// Node is a node in a Status. Rates are those of the last seconds, in bits per second of payload.
type Node struct {
	Name    string   `json:"name"`
	Role    string   `json:"role"`
	Rank    *int     `json:"rank"`
	Address string   `json:"address"`
	State   string   `json:"state"`   // joining, running, newcomer, silent, vacant, ps-lite
	Metrics string   `json:"metrics"` // where it serves them, host:port, or ""
	Seconds *float64 `json:"seconds"`
	Steps   uint64   `json:"steps"`
	Rounds  uint64   `json:"rounds"`
	Pushed  uint64   `json:"bytes_pushed"`
	Sent    uint64   `json:"bytes_sent"`
	Got     uint64   `json:"bytes_received"`
	OutSent uint64   `json:"link_bytes_sent"` // to other hosts
	OutGot  uint64   `json:"link_bytes_received"`
	Waited  float64  `json:"wait_s"`

	StepRate  *float64 `json:"steps_per_s"`
	RoundRate *float64 `json:"rounds_per_s"`
	PushRate  *float64 `json:"pushed_bits_per_s"`
	Up        *float64 `json:"up_bits_per_s"`
	Down      *float64 `json:"down_bits_per_s"`
	LinkUp    *float64 `json:"link_up_bits_per_s"` // what the link carries
	LinkDown  *float64 `json:"link_down_bits_per_s"`
	UseUp     *float64 `json:"link_use_up"` // the part of that which is used, 0 to 1
	UseDown   *float64 `json:"link_use_down"`
	WaitShare *float64 `json:"wait_share"` // of the time
	Share     *float64 `json:"share"`      // of the summing

	Waiting *Waiting `json:"waiting"` // the round that has waited longest for other workers
	Warning *Warning `json:"warning"`
}

// Warning is the last warning or error that a node has logged.
type Warning struct {
	Text string  `json:"text"`
	Ago  float64 `json:"seconds_ago"`
}

// Death is the end of a node.
type Death struct {
	Name string  `json:"name"`
	Why  string  `json:"why"`
	Time float64 `json:"time"` // Unix time, seconds
}

// noteDeath remembers a verdict for the status, and of what the node has reported the totals. One that has left is not dead.
func (s *Scheduler) noteDeath(now time.Time, id int, why string) {
	if p, ok := s.progress[id].latest(); ok {
		s.past.add(p)
	}
	delete(s.progress, id)
	if why == LeftWhy {
		return
	}
	s.died++
	s.deaths = append(s.deaths[max(0, len(s.deaths)+1-maxDeaths):], Death{Name(id), why, unix(now)})
}

// Status returns the state of the cluster.
func (s *Scheduler) Status(now time.Time) Status {
	status := Status{
		Scheduler: fmt.Sprintf("%s:%d", s.c.SchedulerHost, s.c.SchedulerPort), Time: unix(now), Workers: s.c.Workers, Servers: s.c.Servers,
		State: [...]string{gathering: "joining", resuming: "resuming", running: "running", ended: "ended"}[s.state],
		Epoch: s.epoch, Recovers: s.view.Recovers, Refused: s.counts.Refused, Strays: s.counts.Strays, Waiting: s.waitsFor(now),
		Totals: s.past, Died: s.died, Nodes: []Node{}, Deaths: append([]Death{}, s.deaths...),
	}
	for _, r := range s.progress {
		if p, ok := r.latest(); ok {
			status.Totals.add(p)
		}
	}
	if s.state == gathering {
		for _, j := range s.joiners {
			status.Nodes = append(status.Nodes, Node{Name: j.Role.String(), Role: j.Role.String(), Address: address(j.Member), State: "joining"})
		}
		return status
	}
	shares := s.summing()
	for _, id := range s.ids() {
		node, plan := s.nodeStatus(now, s.members[id])
		if share, sums := shares[id]; sums {
			node.Share = &share
		}
		status.Nodes, status.Plan = append(status.Nodes, node), max(status.Plan, plan)
	}
	status.Slowest = slowest(status.Nodes)
	return status
}

// nodeStatus describes a member, and the plan that it follows.
func (s *Scheduler) nodeStatus(now time.Time, m *member) (Node, uint32) {
	rank := m.Rank()
	n := Node{Name: Name(m.ID), Role: m.Role.String(), Rank: &rank, Address: address(m.Member), State: s.nodeState(now, m)}
	r := s.progress[m.ID]
	p, ok := r.latest()
	if !ok || r.incarnation != m.Incarnation {
		return n, 0
	}
	seconds := p.At.Seconds()
	n.Seconds, n.Steps, n.Rounds, n.Pushed, n.Waited = &seconds, p.Steps, p.Rounds, p.Pushed, p.Waited.Seconds()
	n.Sent, n.Got, n.OutSent, n.OutGot, n.Metrics = p.Sent, p.Received, p.LinkSent, p.LinkReceived, p.Metrics
	per := func(unit float64, count func(Progress) float64) *float64 {
		if rate, ok := r.per(count); ok && n.State != silent {
			rate *= unit
			return &rate
		}
		return nil
	}
	if m.Role == RoleWorker {
		n.RoundRate = per(1, func(p Progress) float64 { return float64(p.Rounds) })
		n.PushRate = per(8, func(p Progress) float64 { return float64(p.Pushed) })
		n.WaitShare = per(1, func(p Progress) float64 { return min(p.Waited, p.At).Seconds() })
		if p.Steps > 0 {
			n.StepRate = per(1, func(p Progress) float64 { return float64(p.Steps) })
		}
	}
	n.Up = per(8, func(p Progress) float64 { return float64(p.Sent) })
	n.Down = per(8, func(p Progress) float64 { return float64(p.Received) })
	n.LinkUp, n.UseUp = link(p.Up, per(1, func(p Progress) float64 { return float64(p.LinkSent) }))
	n.LinkDown, n.UseDown = link(p.Down, per(1, func(p Progress) float64 { return float64(p.LinkReceived) }))
	if p.Waiting != "" {
		stalled := p.Stalled.Seconds()
		n.Waiting = &Waiting{p.Waiting, append([]string{}, p.Missing...), &stalled}
	}
	if p.Warning != "" {
		n.Warning = &Warning{p.Warning, (p.Warned + now.Sub(r.came)).Seconds()}
	}
	return n, p.Plan
}

// link describes a direction of a link: what it carries, and the part of that which is used.
func link(carries float64, used *float64) (bits, use *float64) {
	if carries == 0 {
		return nil, nil
	}
	b := 8 * carries
	if used == nil {
		return &b, nil
	}
	u := *used / carries
	return &b, &u
}

func (s *Scheduler) nodeState(now time.Time, m *member) string {
	r := s.progress[m.ID]
	switch {
	case m.Vacant:
		return "vacant"
	case m.Protocol == 0:
		return "ps-lite"
	case r != nil && now.Sub(r.came) > silentTime:
		return silent
	case m.Newcomer:
		return "newcomer"
	}
	return "running"
}

// waitsFor is the join, or the barrier, that has waited longest.
func (s *Scheduler) waitsFor(now time.Time) *Waiting {
	if s.state == gathering {
		if missing := s.missingJoiners(); missing != nil {
			w := &Waiting{"join", missing, nil}
			if !s.first.IsZero() {
				seconds := now.Sub(s.first).Seconds()
				w.Seconds = &seconds
			}
			return w
		}
	}
	for _, b := range s.barriers {
		if missing := s.absent(b); s.state == running && !b.since.IsZero() && len(missing) > 0 {
			seconds := now.Sub(b.since).Seconds()
			return &Waiting{s.kind(b), names(missing), &seconds}
		}
	}
	return nil
}

// kind tells the barriers at the start and the end of a cluster from a program's.
func (s *Scheduler) kind(b *barrier) string {
	switch {
	case b.group != AllGroup:
		return "barrier"
	case s.finals == 0:
		return "start"
	}
	return "end"
}

func names(ids []int) []string {
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = Name(id)
	}
	return list
}

// summing returns each node's part of the summing.
func (s *Scheduler) summing() map[int]float64 {
	parts, total := map[int]float64{}, 0.0
	add := func(id int, share int) {
		if share > 0 {
			parts[id], total = float64(share), total+float64(share)
		}
	}
	if s.planner.active {
		for _, share := range s.planner.shares {
			add(int(share.Node), int(share.Share))
		}
	} else if !s.view.Classic() && !s.view.PSLite() {
		for _, m := range s.members {
			add(m.ID, m.Share)
		}
	}
	for id := range parts {
		parts[id] /= total
	}
	return parts
}

// slowest names the worker for which the others wait: it waits much less than they do.
func slowest(nodes []Node) *string {
	waiting := []Node{}
	for _, n := range nodes {
		if n.WaitShare != nil && n.State == "running" && n.RoundRate != nil && *n.RoundRate > 0 {
			waiting = append(waiting, n)
		}
	}
	if len(waiting) < 2 {
		return nil
	}
	slices.SortStableFunc(waiting, func(a, b Node) int {
		switch {
		case *a.WaitShare < *b.WaitShare:
			return -1
		case *a.WaitShare > *b.WaitShare:
			return 1
		}
		return 0
	})
	if *waiting[len(waiting)/2].WaitShare-*waiting[0].WaitShare < slowGain {
		return nil
	}
	return &waiting[0].Name
}

func address(m Member) string { return fmt.Sprintf("%s:%d", m.Host, m.Port) }

func unix(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
