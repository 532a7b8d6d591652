package kv

import (
	"fmt"
	"maps"
	"slices"

	"fptps/gocore/aggregate"
	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// After the death of an aggregator each worker divides the aggregator's packets among the heirs. It sends them its contribution to the
// round under way again, or a note that it has the sum; aggregate.Slots (kept.go) makes the sums from these. A worker that recovers
// keeps the last sum of each packet in memory of the tensor until the next sum overwrites it, which exists only if all workers had
// the last one. A contribution stays in the caller's array until all sums of its round are in the tensor's memory. What the death of a worker
// needs besides is in membership.go.
//
// Weights on aggregators, and clocks that were set, die with their aggregator unless it has a backup: the scheduler ends the cluster then (Stateful).
// The backup is the only heir. Then every death is settled as that of a worker is, so that the heir has adopted the weights before anybody sends it anything.

// Death is that of another node.
type Death struct {
	Node    uint32
	Heir    uint32 // the backup of the node, which has all that the node had; 0: there is none, and all aggregators that are left are heirs
	Settles bool   // an epoch begins with it, and Settle follows
}

// death is one that this worker has heard of.
type death struct {
	node  uint32
	rank  int // of a worker; -1: it is a server
	heirs []uint32
}

// Bury handles the death of another node. All connections with it have ended. Every worker
// calls it, for the same nodes in the same order. A newcomer that was not admitted yet is passed, too.
func (w *Worker) Bury(dead Death) {
	w.step(func() (e effects) {
		if w.mu.failed != nil {
			return e
		}
		node := dead.Node
		d := death{node: node, rank: wire.RankOfWorker(int(node)), heirs: []uint32{dead.Heir}}
		if dead.Heir == none {
			d.heirs = slices.DeleteFunc(slices.Sorted(slices.Values(w.Aggregators)), func(other uint32) bool { return other == node || w.isDead(other) })
		}
		w.mu.deaths = append(w.mu.deaths, d)
		if dead.Settles || slices.Contains(w.mu.roster.last(), d.rank) {
			w.mu.roster.bury(d.rank)
			w.mu.freeze(node, true)
		}
		w.mu.closed = slices.DeleteFunc(w.mu.closed, func(c closedWorker) bool { return c.id == int(node) }) // no round waits for it any more
		e.err = lostNode(w.Name(node), node)
		for _, id := range slices.Sorted(maps.Keys(w.mu.byID)) {
			t := w.mu.byID[id]
			gone, before := plan.RunsOf(t.runs, node), plan.RunsOf(t.before, node)
			t.runs, t.before = d.patch(t.key, t.runs), d.patch(t.key, t.before)
			for i := range t.changes {
				t.changes[i].runs = d.patch(t.key, t.changes[i].runs)
			}
			if t.handing != nil && dead.Heir != none {
				t.handing.bury(node, dead.Heir)
			}
			t.again = t.again || len(gone) > 0 && dead.Heir != none
			if len(gone) > 0 && dead.Heir == none {
				e.also = append(e.also, w.loseValue(t, gone, w.Name(node)))
			}
			if len(w.mu.frozen) == 0 { // else Settle sends all again
				e.sends = append(e.sends, t.sendAgain(d.patch(t.key, gone), d.patch(t.key, before))...)
			}
			e.sends = append(e.sends, w.advance(t)...)
		}
		e.ended = append(e.ended, w.mu.asks.bury(dead, e.err)...)
		return e
	})
}

func lostNode(name string, node uint32) error {
	return fault.New(fault.NodeLost, "%s was lost", name).With(wire.AboutNode(int(node)))
}

func (w *Worker) isDead(node uint32) bool {
	return slices.ContainsFunc(w.mu.deaths, func(d death) bool { return d.node == node })
}

func (d death) patch(key uint64, runs []plan.Run) []plan.Run {
	return plan.Patch(key, runs, d.node, d.heirs)
}

// shares are the nodes' parts of the summing under the present plan, after all deaths.
func (w *Worker) shares() map[uint32]float64 {
	parts := map[uint32]float64{}
	for _, node := range w.mu.plan.plan.Aggregators() {
		parts[node] = w.mu.plan.plan.Fraction(node)
	}
	for _, d := range w.mu.deaths {
		if part := parts[d.node]; part > 0 {
			for _, heir := range d.heirs {
				parts[heir] += part / float64(len(d.heirs))
			}
		}
		delete(parts, d.node)
	}
	return parts
}

// loseValue ends the pulls of the initial value, of which the runs in gone are lost. Until a push, later ones are refused.
func (w *Worker) loseValue(t *tensor, gone []plan.Run, name string) (e effects) {
	t.lost = name
	e.err = t.lostValue()
	isFetch := func(o *operation) bool { return o.verb == verbFetch }
	for _, o := range t.queue {
		if isFetch(o) {
			o.whole, o.err = true, e.err
			e.ended = append(e.ended, w.end(o)...)
		}
	}
	t.queue = slices.DeleteFunc(t.queue, isFetch)
	o := t.active
	if o == nil || !isFetch(o) {
		return e
	}
	o.err = e.err // it ends with the last packet of the others
	for _, run := range gone {
		for p := run.First; p < run.First+run.Count; p++ {
			if !o.has(p) {
				o.record(p)
			}
		}
	}
	e.also = append(e.also, w.endRound(t))
	return e
}

// lostValue is the error of a pull of an initial value that a dead aggregator had.
func (t *tensor) lostValue() error {
	return fault.New(fault.NodeLost, "%s: a part of its initial value was lost with %s: push first, or init another key", t.name, t.lost).With(t.about())
}

// sendAgain returns what heirs need to know of the tensor: of the round under way contributions, and sums that this worker has. Runs
// are the heirs' ones of this round, before those of the round before, of which another worker may still lack sums.
func (t *tensor) sendAgain(runs, before []plan.Run) (out []sending) {
	o := t.inRound()
	switch {
	case t.next == 0: // no round has begun
		return nil
	case o == nil && t.round < t.since: // it ended before this worker was admitted
		return nil
	case o == nil:
		for _, run := range runs {
			out = t.have(out, run, t.round, t.epoch)
		}
		return out
	}
	for _, run := range before {
		for _, part := range t.alike(run) {
			if t.round > t.since && !o.has(part.First) {
				out = t.have(out, part, t.round-1, t.earlier)
			}
		}
	}
	for _, run := range runs {
		for _, part := range t.alike(run) {
			if o.has(part.First) {
				out = t.have(out, part, t.round, t.epoch)
			} else {
				out = append(out, o.leave(t.contribute(o, part, nil))...)
			}
		}
	}
	return out
}

// inRound returns the operation whose round is under way, nil if the last round is whole.
func (t *tensor) inRound() *operation {
	if t.active != nil && t.active.verb == verbFetch { // which is no round
		return nil
	}
	return t.active
}

// alike divides a run of the round under way into runs of packets of which all sums are here, or none.
func (t *tensor) alike(run plan.Run) (parts []plan.Run) {
	for first := run.First; first < run.First+run.Count; {
		end := first + 1
		for end < run.First+run.Count && t.active.has(end) == t.active.has(first) {
			end++
		}
		parts = append(parts, plan.Run{Node: run.Node, First: first, Count: end - first, Lane: run.Lane})
		first = end
	}
	return parts
}

// have appends a note that this worker has the sums of a run in a round. Where each worker has rounds of its own, no other wants to know.
func (t *tensor) have(out []sending, run plan.Run, round uint64, epoch uint16) []sending {
	if round > 0 && t.policy.Applied() != wire.Sync {
		return out
	}
	for end := run.First + run.Count; run.First < end; run.First += wire.MaxRun {
		h := wire.Header{Kind: wire.Have, Tensor: t.id, Packet: run.First, Run: min(end-run.First, wire.MaxRun), Round: round, Epoch: epoch, Priority: urgent}
		out = append(out, sending{run.Node, run.Lane, h, nil, nil})
	}
	return out
}

// urgent is the priority of what other workers may wait for.
const urgent = 1<<31 - 1

// recalled sends an aggregator a sum of which this worker has sent it a note.
func (w *Worker) recalled(node uint32, h *wire.Header) (err error) {
	w.step(func() (e effects) {
		t := w.mu.byID[h.Tensor]
		if t == nil || h.Run != 1 || h.Packet >= t.packets || h.Round >= t.next {
			err = fmt.Errorf("node %d recalls the sum of tensor %d packet %d round %d, which is not here", node, h.Tensor, h.Packet, h.Round)
			return e
		}
		if !t.hasSum(h.Packet, h.Round, h.Epoch) { // the request is late: nobody lacks the sum any more, or the round is repeated
			return e
		}
		kept := wire.Header{
			Kind: wire.Kept, DType: t.dtype, Tensor: t.id, Packet: h.Packet, Run: 1, Round: h.Round, Epoch: h.Epoch, Priority: urgent,
			RawLen: uint32(wire.PacketLen(t.size, h.Packet)),
		}
		if t.ruled() {
			kept.Flags = wire.FlagWeights
		}
		var data []byte
		switch {
		case t.clashed == h.Round && h.Round > 0:
			kept.Flags = wire.FlagClash
		case h.Round > 0: // of round 0 the aggregators have the values
			data = t.region(t.kept, h.Packet)
		}
		e.sends = []sending{{node, t.run(h.Packet).Lane, kept, data, nil}}
		return e
	})
	return err
}

// hasSum reports whether this worker has the sum of a packet in a round. A part of the next sum may have overwritten it, but then all
// workers have it, so that no aggregator asks for it.
func (t *tensor) hasSum(p uint32, round uint64, epoch uint16) bool {
	o := t.inRound()
	switch {
	case t.table != nil || t.next == 0 || round < t.since || round > 0 && t.kept == nil:
		return false
	case o == nil || o.has(p):
		return round == t.round && epoch == t.epoch
	}
	return round+1 == t.round && epoch == t.earlier
}

// stateful tells the scheduler, before the aggregators know, that they will hold what nobody else has.
func (w *Worker) stateful(what string) {
	if w.Stateful != nil {
		w.Stateful(what)
	}
}

// Recover prepares for the deaths of other aggregators, of whose packets this one gets some. It is called before any packet arrives.
func (a *Aggregator) Recover() { a.store.Recovers, a.slots.Recovers = true, true }

// have takes a worker's note about the sums that it has.
func (a *Aggregator) have(node uint32, h *wire.Header) error {
	err := a.slots.Have(rankOf(node), h)
	a.recall()
	return err
}

// recall asks workers for sums that others lack.
func (a *Aggregator) recall() {
	for _, r := range a.slots.Recalls() {
		a.plane.Send(workerNode(r.Rank), transport.Outgoing{Header: wire.Header{
			Kind: wire.Recall, Tensor: r.Tensor, Packet: r.Packet, Run: 1, Round: r.Round, Epoch: r.Epoch, Priority: urgent,
		}})
	}
}

// kept passes a recalled sum on to the workers that lack it.
func (a *Aggregator) kept(node uint32, h *wire.Header, payload []byte, owned *aggregate.Buffer) error {
	owed := a.slots.Kept(rankOf(node), h)
	if len(payload) > 0 && owned == nil {
		owned = a.pool.Get(len(payload))
		copy(owned.Bytes, payload)
	}
	sum := *h
	sum.Kind, sum.Ahead, sum.Contributors = wire.Sum, 0, uint16(a.members.Size())
	m := transport.Outgoing{Header: sum}
	if owned != nil {
		m.Data, m.Owner = owned.Bytes, owned
		owned.Retain(len(owed))
		defer owned.Release()
	}
	for _, rank := range owed {
		a.plane.Send(workerNode(rank), m)
	}
	return nil
}
