package cluster

import (
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

const (
	// progressTime is the time between two reports of a node's progress.
	progressTime = time.Second
	// rateReports is the number of the last reports over which rates are taken: a step may take some seconds.
	rateReports = 6
	// maxMissing bounds the nodes of a report that it waits for.
	maxMissing = 16
)

// Progress is what a node has counted since it joined, and what it waits for.
type Progress struct {
	At                     time.Duration // since it joined, by its own clock
	Rounds, Steps          uint64
	Pushed                 uint64 // bytes of the program's arrays
	Sent, Received         uint64 // bytes of payload
	LinkSent, LinkReceived uint64 // of them those with other hosts
	Waited                 time.Duration
	Up, Down               float64 // what its link carries, in bytes per second; 0: not known
	Plan                   uint32
	Waiting                string // the round that has waited longest for others, "": none
	Missing                []string
	Stalled                time.Duration // how long it has
	Warning                string        // the last warning or error of its log
	Warned                 time.Duration // before At
	Metrics                string        // where it serves them, host:port; "": nowhere
}

// message encodes a report.
func (p Progress) message() *pspb.Meta {
	m := &pspb.Progress{
		At: positive(uint64(p.At.Microseconds())), Rounds: positive(p.Rounds), Steps: positive(p.Steps), Pushed: positive(p.Pushed), Sent: positive(p.Sent), Received: positive(p.Received),
		LinkSent: positive(p.LinkSent), LinkReceived: positive(p.LinkReceived), Waited: positive(uint64(p.Waited.Microseconds())),
		Up: positive(p.Up), Down: positive(p.Down), Plan: positive(p.Plan),
	}
	if p.Waiting != "" {
		m.Waiting, m.Missing = proto.String(clip(p.Waiting)), p.Missing[:min(len(p.Missing), maxMissing)]
		m.Stalled = positive(uint64(p.Stalled.Microseconds()))
	}
	if p.Warning != "" {
		m.Warning, m.Warned = proto.String(clip(p.Warning)), positive(uint64(p.Warned.Microseconds()))
	}
	if p.Metrics != "" {
		m.Metrics = proto.String(p.Metrics)
	}
	return &pspb.Meta{Own: &pspb.Meta_Progress{Progress: m}}
}

// progressIn decodes a report. Texts are clipped, and what makes no sense counts as not known.
func progressIn(m *pspb.Progress) Progress {
	p := Progress{
		At: micros(m.GetAt()), Rounds: m.GetRounds(), Steps: m.GetSteps(), Pushed: m.GetPushed(), Sent: m.GetSent(), Received: m.GetReceived(), LinkSent: m.GetLinkSent(), LinkReceived: m.GetLinkReceived(),
		Waited: micros(m.GetWaited()), Up: sensible(m.GetUp()), Down: sensible(m.GetDown()), Plan: m.GetPlan(),
		Waiting: clip(m.GetWaiting()), Stalled: micros(m.GetStalled()), Warning: clip(m.GetWarning()), Warned: micros(m.GetWarned()), Metrics: clip(m.GetMetrics()),
	}
	for _, name := range m.GetMissing()[:min(len(m.GetMissing()), maxMissing)] {
		p.Missing = append(p.Missing, clip(name))
	}
	return p
}

func micros(n uint64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/uint64(time.Microsecond))) * time.Microsecond
}

// reports are the last reports of one process.
type reports struct {
	incarnation uint64
	last        []Progress // at most rateReports, the latest last
	came        time.Time  // the latest
}

// add takes a report. Those of another process, and of a clock that runs backwards, begin anew.
func (r *reports) add(now time.Time, incarnation uint64, p Progress) {
	if n := len(r.last); r.incarnation != incarnation || n == 0 || p.At <= r.last[n-1].At {
		r.last = nil
		if p.At <= 2*progressTime { // else this scheduler has taken the place of another one
			r.last = []Progress{{}}
		}
	}
	r.incarnation, r.came = incarnation, now
	r.last = append(slices.Clone(r.last[max(0, len(r.last)+1-rateReports):]), p)
}

// latest is the latest report; false: there is none.
func (r *reports) latest() (p Progress, ok bool) {
	if r == nil || len(r.last) == 0 {
		return p, false
	}
	return r.last[len(r.last)-1], true
}

// per returns the growth of a count per second, over the last reports; false: there is only one.
func (r *reports) per(count func(Progress) float64) (float64, bool) {
	latest, ok := r.latest()
	if !ok || len(r.last) < 2 {
		return 0, false
	}
	first := r.last[0]
	seconds := (latest.At - first.At).Seconds()
	if seconds <= 0 {
		return 0, false
	}
	return max(0, count(latest)-count(first)) / seconds, true
}

// stepProgress takes a node's report.
func (s *Scheduler) stepProgress(now time.Time, sender *member, m *pspb.Progress) {
	if s.progress[sender.ID] == nil {
		s.progress[sender.ID] = &reports{}
	}
	s.progress[sender.ID].add(now, sender.Incarnation, progressIn(m))
}

// tickProgress sends this node's progress to the scheduler, unless that is ps-lite's.
func (p *Postoffice) tickProgress(now time.Time) {
	if p.events.Progress == nil || now.Before(p.report) || p.view.Member(wire.SchedulerID).Protocol == 0 {
		return
	}
	p.report = now.Add(progressTime)
	p.send(p.events.Progress().message())
}

// lastProgress sends it at once: this node is about to leave.
func (p *Postoffice) lastProgress() {
	p.report = time.Time{}
	p.tickProgress(time.Now())
}
