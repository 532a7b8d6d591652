package node

import (
	"io"
	"log/slog"
	"testing"

	"fptps/gocore/wire"
)

// TestProgress: what all nodes report fits together.
func TestProgress(t *testing.T) {
	c := start(t, 2, 1)
	sizes := []int{wire.PacketBytes, 5*wire.PacketBytes + 4}
	for key, size := range sizes {
		c.initAll(uint64(key), size)
	}
	before := c.workers[0].progress()
	for round := range 3 {
		c.checkRound(round, sizes)
	}
	one, server := c.workers[0].progress(), c.servers[0].progress()
	bytes := uint64(3 * (sizes[0] + sizes[1]))
	if got := one.Rounds - before.Rounds; got != 6 {
		t.Errorf("%d rounds, not 6", got)
	}
	for what, got := range map[string]uint64{"pushed": one.Pushed - before.Pushed, "sent": one.Sent - before.Sent, "received": one.Received - before.Received} {
		if got != bytes {
			t.Errorf("%s: %d bytes, not %d", what, got, bytes)
		}
	}
	if server.Received < 2*bytes || server.Rounds != 0 || one.At <= before.At || one.Waited > one.At || one.LinkSent != 0 || one.Waiting != "" {
		t.Errorf("%+v, %+v", one, server)
	}
	c.end()
	last, ok := c.scheduler.Status()
	if !ok || last.State != "ended" || last.Nodes[1].Rounds != one.Rounds || last.Nodes[1].Sent != one.Sent {
		t.Errorf("%v, the last status: %+v", ok, last)
	}
	if _, ok := c.workers[0].Status(); ok {
		t.Error("a worker has a status")
	}
}

func TestLastWarning(t *testing.T) {
	var w warnings
	log := slog.New(w.over(slog.NewTextHandler(io.Discard, nil)))
	log.Info("all is well")
	if text, _ := w.last(); text != "" {
		t.Errorf("an information: %q", text)
	}
	log.Error("first")
	log.With("peer", "worker 1").Warn("a connection broke", "reason", "reset by peer")
	if text, at := w.last(); text != "a connection broke reason=reset by peer peer=worker 1" || at.IsZero() {
		t.Errorf("%q at %v", text, at)
	}
}
