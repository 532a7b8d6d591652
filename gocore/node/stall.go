package node

import (
	"fmt"
	"sync/atomic"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/wire"
)

// A node that waits asks the nodes that are missing what they do, and logs a line for each. The answer has what the core of the
// other knows, and, of a worker, where the threads of its program are: Python says so in answer to StackAsked, on a thread of its own.

const (
	maxReported = 3               // nodes of a stall that are asked
	answerTime  = 3 * time.Second // for an answer, and
	stackTime   = time.Second     // in it for Python's
	maxLinks    = 3               // connections that an answer describes
)

// stallReports is a node's part in reports on stalls. All channels have room for one word, which is dropped if it has none.
type stallReports struct {
	running chan struct{}      // holds a word while this node makes a report
	answers chan cluster.Doing // to this node's questions
	asking  chan cluster.Doing // others' questions; a goroutine answers one after the other
	asked   chan struct{}      // Python is asked for
	stack   chan string        // where its threads are
	python  atomic.Bool        // the program answers such questions
	events  map[string]int     // how often the scheduler has reported a wait; used by the control plane's goroutine alone
}

func newStallReports() *stallReports {
	return &stallReports{
		running: make(chan struct{}, 1), answers: make(chan cluster.Doing, 2*maxReported), asking: make(chan cluster.Doing, 16),
		asked: make(chan struct{}, 1), stack: make(chan string, 1), events: map[string]int{},
	}
}

// offer sends a word if there is room for it.
func offer[T any](to chan T, word T) bool {
	select {
	case to <- word:
		return true
	default:
		return false
	}
}

// onWaiting handles the scheduler's report of the nodes that a barrier or declaration waits for.
func (n *Node) onWaiting(event string, missing []string) {
	if worker := n.worker(); worker != nil {
		worker.Waiting(event, missing)
	}
	if missing == nil {
		delete(n.stalls.events, event)
		return
	}
	n.stalls.events[event]++
	if times := n.stalls.events[event]; times&(times-1) == 0 {
		n.reportStall(missing, nil)
	}
}

// onStalled handles a round that waits.
func (n *Node) onStalled(s kv.Stall) {
	n.reportStall(s.Missing, &cluster.Wait{Tensor: s.Tensor, Round: s.Round})
}

// reportStall asks the missing nodes, and logs what comes, unless such a report is under way.
func (n *Node) reportStall(missing []string, wait *cluster.Wait) {
	post := n.post()
	if post == nil || !offer(n.stalls.running, struct{}{}) {
		return
	}
	go n.guard(func() error {
		defer func() { <-n.stalls.running }()
		for _, seen := range n.askMissing(post, missing, wait) {
			n.log.Warn("last seen: "+cluster.Name(seen.id), n.describe(seen)...)
		}
		return nil
	})
}

// seen is what has become known of a node.
type seen struct {
	id           int
	answered     bool
	state, stack string
	heard        bool
	silence      time.Duration // as the scheduler says, if heard
}

// askMissing asks nodes, and collects for answerTime.
func (n *Node) askMissing(post *cluster.Postoffice, missing []string, wait *cluster.Wait) (all []*seen) {
	for len(n.stalls.answers) > 0 { // late ones to the questions before
		<-n.stalls.answers
	}
	byID := map[int]*seen{}
	for _, name := range missing {
		m, known := post.View().Named(name)
		if known && !m.PSLite() && m.ID != wire.SchedulerID && len(all) < maxReported && byID[m.ID] == nil {
			byID[m.ID] = &seen{id: m.ID}
			all = append(all, byID[m.ID])
			post.Ask(m.ID, wait)
		}
	}
	end := time.After(answerTime)
	for waits := len(all); waits > 0; {
		select {
		case d := <-n.stalls.answers:
			of := byID[d.ID]
			switch {
			case of == nil || of.answered:
			case d.Kind == cluster.Heard:
				of.heard, of.silence = true, d.Silence
			default:
				of.answered, of.state, of.stack = true, d.State, d.Stack
				waits--
			}
		case <-end:
			return all
		case <-n.ctx.Done():
			return nil
		}
	}
	return all
}

// describe returns the fields of a line about a node.
func (n *Node) describe(s *seen) (fields []any) {
	state := s.state
	switch {
	case s.answered:
	case s.heard:
		state = fmt.Sprintf("it does not answer; the scheduler heard of it %v ago", s.silence.Round(100*time.Millisecond))
	default:
		state = "neither it nor the scheduler answers"
	}
	fields = append(fields, "state", state)
	if s.stack != "" {
		fields = append(fields, "stack", s.stack)
	}
	if tr := n.dataPlane(); tr != nil {
		if l := tr.Link(uint32(s.id)); l.Connected {
			fields = append(fields, "link", l.String())
		}
	}
	return fields
}

// onDoing handles a question or an answer; the control plane's goroutine does not wait.
func (n *Node) onDoing(d cluster.Doing) {
	if d.Kind == cluster.Asks {
		offer(n.stalls.asking, d) // others ask again
	} else {
		offer(n.stalls.answers, d)
	}
}

// answerAll answers questions, one after the other, until the node closes. The stack that it has fetched for one answers for a
// second those of others: a thousand workers may wait for this one.
func (n *Node) answerAll(post *cluster.Postoffice) {
	var fetched time.Time
	var stack string
	for {
		select {
		case d := <-n.stalls.asking:
			if time.Since(fetched) > stackTime {
				stack, fetched = n.fetchStack(), time.Now()
			}
			post.Answer(d.ID, n.doing(d.Wait), stack)
		case <-n.ctx.Done():
			return
		}
	}
}

// doing describes what this node's core knows.
func (n *Node) doing(wait *cluster.Wait) string {
	text := "its process runs"
	if worker := n.worker(); worker != nil && wait != nil {
		text = worker.Doing(wait.Tensor, wait.Round)
	} else if worker != nil {
		text = worker.DoingAtAll()
	}
	tr := n.dataPlane()
	if tr == nil {
		return text
	}
	links := 0
	for _, peer := range tr.Peers() {
		if l := tr.Link(peer); l.Waits() && links < maxLinks {
			links++
			text += fmt.Sprintf("; link to %s: %v", cluster.Name(int(peer)), l)
		}
	}
	return text
}

// fetchStack asks Python where its threads are; "" in a program that answers no such questions.
func (n *Node) fetchStack() string {
	if !n.stalls.python.Load() {
		return ""
	}
	for len(n.stalls.stack) > 0 {
		<-n.stalls.stack
	}
	offer(n.stalls.asked, struct{}{})
	select {
	case stack := <-n.stalls.stack:
		return stack
	case <-time.After(stackTime):
		return "no thread of Python has run for " + stackTime.String() + ": one of them is in an extension module that does not release the GIL"
	case <-n.ctx.Done():
		return ""
	}
}

// StackAsked waits until another node asks where this program's threads are, at most for a time; Stack answers. false: the time is
// over. An error: the node is closed.
func (n *Node) StackAsked(most time.Duration) (bool, error) {
	n.stalls.python.Store(true)
	select {
	case <-n.stalls.asked:
		return true, nil
	case <-time.After(most):
		return false, nil
	case <-n.ctx.Done():
		return false, fault.New(fault.Closed, "the worker is closed: open another one")
	}
}

// Stack answers StackAsked. The text, of the program, need not be valid: the postoffice makes a line of it.
func (n *Node) Stack(text string) { offer(n.stalls.stack, text) }
