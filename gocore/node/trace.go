package node

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/trace"
	"fptps/gocore/transport"
)

// sampleTime is the time between two samples of the counters of links and processors.
const sampleTime = 20 * time.Millisecond

// PartSuffix ends the names of the files with the nodes' parts of a timeline.
const PartSuffix = ".fptrace"

// newTracer makes a tracer with the clock that all processes of this host share.
func newTracer() *trace.Tracer {
	return trace.New(trace.Monotonic(reading(unix.CLOCK_MONOTONIC), time.Now()))
}

// reading reads one of the kernel's clocks, in ns.
func reading(clock int32) int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(clock, &now); err != nil {
		return 0
	}
	return now.Nano()
}

// StartTrace begins to trace this node, with 1 packet in n. It fails if the node is traced already, or closed.
func (n *Node) StartTrace(one uint32) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.mu.state == closed:
		return n.checkOpenLocked()
	case n.mu.recording != nil:
		return fault.New(fault.Busy, "this node is traced already: end that first, or unset FPTPS_TRACE")
	}
	n.tracer.Start(one)
	r := &recording{end: make(chan struct{}), ended: make(chan struct{})}
	n.mu.recording = r
	go n.guard(func() error { defer close(r.ended); n.sample(r.end); return nil })
	return nil
}

// recording is a trace under way.
type recording struct {
	once       sync.Once
	end, ended chan struct{} // of the goroutine that samples the counters
}

// endSampling takes the last sample of the counters.
func (r *recording) endSampling() {
	r.once.Do(func() { close(r.end) })
	<-r.ended
}

// StopTrace ends the trace and writes this node's part of the timeline into a file; with an empty name into one of TraceFolder. It
// returns the file's name.
func (n *Node) StopTrace(path string) (string, error) {
	if !n.stopRecording() {
		return "", fault.New(fault.Value, "this node is not traced")
	}
	if path == "" {
		if err := os.MkdirAll(n.config.TraceFolder, 0o777); err != nil {
			return "", fault.New(fault.Config, "the folder of FPTPS_TRACE_DIR: %v", err)
		}
		path = filepath.Join(n.config.TraceFolder, fmt.Sprintf("%s-%d-%d%s", n.config.Role, n.id(), os.Getpid(), PartSuffix))
	}
	part, err := n.tracer.Encode(n.head())
	if err == nil {
		err = os.WriteFile(path, part, 0o666)
	}
	if err != nil {
		return "", fault.New(fault.Config, "this node's part of the timeline: %v", err)
	}
	return path, nil
}

// stopRecording ends the trace; false if there is none.
func (n *Node) stopRecording() bool {
	n.mu.Lock()
	r := n.mu.recording
	n.mu.recording = nil
	n.mu.Unlock()
	if r == nil {
		return false
	}
	r.endSampling()
	n.tracer.Stop()
	return true
}

// endSampling takes the last sample of the counters of links, before these are closed.
func (n *Node) endSampling() {
	n.mu.Lock()
	r := n.mu.recording
	n.mu.Unlock()
	if r != nil {
		r.endSampling()
	}
}

// endTrace writes this node's part when the node ends. One that has never joined has none.
func (n *Node) endTrace() {
	n.mu.Lock()
	traced := n.mu.recording != nil
	n.mu.Unlock()
	if !traced {
		return
	}
	if n.id() == 0 {
		n.stopRecording()
	} else if _, err := n.StopTrace(""); err != nil {
		n.log.Warn("a part of the timeline was not written", "error", err)
	}
}

// id is this node's id, 0 until it has joined.
func (n *Node) id() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.config.Alone() {
		return int(aloneID)
	}
	return n.mu.view.Self
}

// head describes this node.
func (n *Node) head() trace.Head {
	n.mu.Lock()
	worker, tr, view := n.mu.worker, n.mu.transport, n.mu.view
	n.mu.Unlock()
	id := n.id()
	h := trace.Head{Role: n.config.Role.String(), ID: id, Name: cluster.Name(id), HostID: hostID(), PID: os.Getpid(), Address: view.Me().Host}
	h.HostName, _ = os.Hostname()
	if tr != nil {
		h.LinkRate = tr.Stats().LinkRate
	}
	if worker != nil {
		h.Tensors, h.PerStep = worker.Tensors(), worker.PerStep()
		for node, part := range worker.Stats().Shares {
			h.Shares = append(h.Shares, trace.Share{Node: node, Part: part})
		}
		slices.SortFunc(h.Shares, func(a, b trace.Share) int { return cmp.Compare(a.Node, b.Node) })
		slices.SortFunc(h.Tensors, func(a, b trace.Tensor) int { return cmp.Compare(a.ID, b.ID) })
	}
	return h
}

// hostID is the same for processes that share a monotonic clock: those of one boot of one kernel, in one time namespace.
func hostID() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	offsets, _ := os.Readlink("/proc/self/ns/time")
	return strings.TrimSpace(string(boot)) + " " + offsets
}

// Wait waits for a ticket, at most for timeout, and traces that.
func (n *Node) Wait(ticket *kv.Ticket, timeout time.Duration) (done bool, err error) {
	if timeout <= 0 || !n.tracer.On() || ticket.Done() {
		return n.Tickets.Wait(ticket, timeout)
	}
	began := n.tracer.Now()
	done, err = n.Tickets.Wait(ticket, timeout)
	n.tracer.Note(trace.Event{Kind: trace.Waited, Time: began, Tensor: ticket.Tensor(), Bytes: micros(n.tracer.Now() - began)})
	return done, err
}

// micros converts ns to us, at most the largest.
func micros(ns int64) uint32 { return uint32(min(max(0, ns/1000), 1<<32-1)) }

// delay is the time for which the process's first thread, which is the program's, could have run and waited for a processor, in ns; 0
// where the kernel does not count it.
func delay() int64 {
	text, err := os.ReadFile("/proc/self/schedstat") // "ran waited turns", in ns
	if err != nil {
		return 0
	}
	var ran, waited int64
	fmt.Sscan(string(text), &ran, &waited)
	return waited
}

// sampler is the state of the counters at the last sample.
type sampler struct {
	tracer *trace.Tracer
	time   int64
	cpu    int64
	delay  int64
	busy   []time.Duration
	links  map[uint32]transport.Traffic
}

// sample samples the counters until end is closed, and then once more.
func (n *Node) sample(end <-chan struct{}) {
	s := &sampler{tracer: n.tracer, time: n.tracer.Now(), cpu: reading(unix.CLOCK_PROCESS_CPUTIME_ID), delay: delay()}
	ticks := time.NewTicker(sampleTime)
	defer ticks.Stop()
	for first, ended := true, false; ; first = false {
		n.mu.Lock()
		tr := n.mu.transport
		n.mu.Unlock()
		s.take(tr, first)
		if ended {
			return
		}
		select {
		case <-end:
			ended = true
		case <-ticks.C:
		}
	}
}

// take takes a sample. The first one only reads the counters.
func (s *sampler) take(tr *transport.Transport, first bool) {
	now, cpu, delay := s.tracer.Now(), reading(unix.CLOCK_PROCESS_CPUTIME_ID), delay()
	note := func(kind trace.Kind, peer, bytes uint32) {
		if !first && bytes > 0 {
			s.tracer.Note(trace.Event{Kind: kind, Time: s.time, Tensor: trace.NoTensor, Packet: micros(now - s.time), Peer: peer, Bytes: bytes})
		}
	}
	note(trace.Processor, 0, micros(cpu-s.cpu))
	note(trace.Delayed, 0, micros(delay-s.delay))
	if tr != nil {
		if busy, err := tr.Busy(); err == nil {
			most := time.Duration(0)
			for i, b := range s.busy[:min(len(s.busy), len(busy))] {
				most = max(most, busy[i]-b)
			}
			note(trace.Loop, 0, micros(int64(most)))
			s.busy = busy
		}
		links := tr.Traffic()
		for peer, l := range links {
			note(trace.Sent, peer, uint32(l.Sent-s.links[peer].Sent))
			note(trace.Received, peer, uint32(l.Received-s.links[peer].Received))
		}
		s.links = links
	}
	s.time, s.cpu, s.delay = now, cpu, delay
}
