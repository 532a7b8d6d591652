package node

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"fptps/gocore/cluster"
)

// progress returns what this node has counted since it joined.
func (n *Node) progress() cluster.Progress {
	now := time.Now()
	n.mu.Lock()
	worker, tr, view, began, waited := n.mu.worker, n.mu.transport, n.mu.view, n.mu.began, n.mu.waited
	n.mu.Unlock()
	if began.IsZero() { // it connects, or waits in the start barrier
		return cluster.Progress{}
	}
	p := cluster.Progress{At: now.Sub(began), Waited: n.Tickets.Waited() - waited, Metrics: n.metricsAddress()}
	if worker != nil {
		s, stall := worker.Stats(), worker.Delay(now)
		p.Rounds, p.Steps, p.Pushed, p.Plan = s.Rounds, s.Steps, s.BytesPushed, s.Plan
		p.Waiting, p.Missing, p.Stalled = stall.What, stall.Missing, stall.For
	}
	for _, t := range tr.Traffic() {
		p.Sent, p.Received = p.Sent+t.Sent, p.Received+t.Received
		if t.Remote {
			p.LinkSent, p.LinkReceived = p.LinkSent+t.Sent, p.LinkReceived+t.Received
		}
	}
	p.Up, p.Down = tr.LinkRates()
	if stated := payloadRate(view.Me().LinkRate); p.LinkSent > 0 { // as long as nothing is measured
		p.Up, p.Down = orElse(p.Up, stated), orElse(p.Down, stated)
	}
	if text, at := n.warnings.last(); text != "" {
		p.Warning, p.Warned = text, now.Sub(at)
	}
	return p
}

func orElse(x, other float64) float64 {
	if x > 0 {
		return x
	}
	return other
}

// warnings remembers the last warning or error of a log, for the status of the cluster.
type warnings struct {
	sync.Mutex
	text string
	at   time.Time
}

// over returns a handler that remembers records on their way to another one.
func (w *warnings) over(next slog.Handler) slog.Handler { return &warningHandler{next, w, ""} }

func (w *warnings) last() (text string, at time.Time) {
	w.Lock()
	defer w.Unlock()
	return w.text, w.at
}

type warningHandler struct {
	slog.Handler
	to     *warnings
	fields string // of With
}

// Handle implements slog.Handler.
func (h *warningHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		text := strings.Builder{}
		text.WriteString(r.Message)
		r.Attrs(func(a slog.Attr) bool {
			fmt.Fprintf(&text, " %s=%v", a.Key, a.Value)
			return true
		})
		h.to.Lock()
		h.to.text, h.to.at = text.String()+h.fields, r.Time
		h.to.Unlock()
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *warningHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	fields := h.fields
	for _, a := range attrs {
		fields += fmt.Sprintf(" %s=%v", a.Key, a.Value)
	}
	return &warningHandler{h.Handler.WithAttrs(attrs), h.to, fields}
}

// WithGroup implements slog.Handler.
func (h *warningHandler) WithGroup(name string) slog.Handler {
	return &warningHandler{h.Handler.WithGroup(name), h.to, h.fields}
}

// Status returns the state of the cluster; ok is false on other nodes than the scheduler, and before it listens.
func (n *Node) Status() (status cluster.Status, ok bool) {
	n.mu.Lock()
	runner := n.mu.scheduler
	n.mu.Unlock()
	if runner == nil {
		return status, false
	}
	return runner.Status(), true
}
