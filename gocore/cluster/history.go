package cluster

import (
	"cmp"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/plan"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// In a cluster that outlives its scheduler, all that the scheduler decides for several nodes is a numbered decision: the verdict on a death, a
// newcomer and its admission, a plan, the id of a tensor, a passed barrier. Every node gets all of them in order, also those that
// concern others, so that any node knows as much as the scheduler at that time. A node keeps the recent ones until all have handled them.
// A scheduler that takes the place of a dead one goes on from the longest history that any node has, and sends the others what they
// lack: see resume.go and orphan.go.
const (
	// maxDecisions and maxDecisionBytes bound the decisions that are kept. A node that is so far behind when the scheduler dies is lost.
	maxDecisions     = 1 << 16
	maxDecisionBytes = 64 << 20
	// maxTerms bounds the terms that are remembered: a node that has missed so many schedulers is lost.
	maxTerms = 64
)

// term is the time of one scheduler. Two that decided differently after the same decision have different terms.
type term struct {
	number uint32
	start  uint64 // the last decision before it
}

// history is what a node, or the scheduler, knows of the decisions. It is pure.
type history struct {
	number uint64 // of the last decision; the first is 1
	terms  []term // the last ones, the present one last; never empty
	stable uint64 // all nodes have handled the decisions up to this one
	recent map[uint64]*pspb.Meta
	oldest uint64 // no older one is in recent
	bytes  int    // of recent

	next       map[Role]int // the ids of the next nodes
	epoch      int
	settling   bool         // Settled has not followed the epoch's beginning yet
	plan       uint32       // number of the last plan, also of one that was withdrawn
	shares     []plan.Share // of the present plan
	preparing  bool         // neither Commit nor Abort has followed Prepare yet
	admitting  bool         // workers were asked to meet: neither an admission nor Meet(0) has followed yet
	stateful   string
	backups    backups
	replicates bool
	agreed     map[uint64]agreement // by key
}

// newHistory makes the history of a cluster that begins. agreed gets the tensors.
func newHistory(next map[Role]int, shares []plan.Share, agreed map[uint64]agreement) *history {
	return &history{terms: []term{{number: 1}}, recent: map[uint64]*pspb.Meta{}, next: maps.Clone(next), shares: shares, agreed: agreed, backups: noBackups()}
}

// term is the number of the present one.
func (h *history) term() uint32 { return h.terms[len(h.terms)-1].number }

// begin begins a term.
func (h *history) begin(number uint32, start uint64) {
	h.terms = append(h.terms, term{number, start})
	h.terms = h.terms[max(0, len(h.terms)-maxTerms):]
}

// add numbers a decision of the scheduler and applies it. members are those of the cluster; a dead node of which m is the verdict may be among them.
func (h *history) add(m *pspb.Meta, members []Member) {
	m.Decision = proto.Uint64(h.number + 1)
	h.take(proto.Clone(m).(*pspb.Meta), members)
}

// The results of take.
const (
	isNext = iota // it is the decision after the last one, and was applied
	isOld         // it was handled, or is part of what a newcomer was told
	isGap         // those before it are missing
)

// take takes a decision that the scheduler has sent.
func (h *history) take(m *pspb.Meta, members []Member) int {
	switch n := m.GetDecision(); {
	case n > h.number+1:
		return isGap
	case n <= h.number:
		h.keep(m)
		return isOld
	}
	h.number++
	h.keep(m)
	h.apply(m, members)
	return isNext
}

// keep keeps a decision for nodes that lack it.
func (h *history) keep(m *pspb.Meta) {
	n := m.GetDecision()
	if n <= h.stable || h.recent[n] != nil {
		return
	}
	if len(h.recent) == 0 || n < h.oldest {
		h.oldest = n
	}
	h.recent[n] = m
	h.bytes += proto.Size(m)
	for ; len(h.recent) > maxDecisions || h.bytes > maxDecisionBytes && len(h.recent) > 1; h.oldest++ {
		h.drop(h.oldest)
	}
}

func (h *history) drop(n uint64) {
	if m := h.recent[n]; m != nil {
		h.bytes -= proto.Size(m)
		delete(h.recent, n)
	}
}

// settle notes that all nodes have handled the decisions up to n.
func (h *history) settle(n uint64) {
	for h.stable = max(h.stable, min(n, h.number)); len(h.recent) > 0 && h.oldest <= h.stable; h.oldest++ {
		h.drop(h.oldest)
	}
}

// after lists the decisions after n; false if one of them is not known any more.
func (h *history) after(n uint64) (list []*pspb.Meta, whole bool) {
	for n++; n <= h.number; n++ {
		m := h.recent[n]
		if m == nil {
			return nil, false
		}
		list = append(list, proto.Clone(m).(*pspb.Meta))
	}
	return list, true
}

// kept lists the decisions that are kept, in order.
func (h *history) kept() (list []*pspb.Meta) {
	for _, n := range slices.Sorted(maps.Keys(h.recent)) {
		list = append(list, h.recent[n])
	}
	return list
}

// apply changes what is known by a decision.
func (h *history) apply(m *pspb.Meta, members []Member) {
	switch own := m.GetOwn().(type) {
	case *pspb.Meta_Lost:
		id := int(own.Lost.GetId())
		if epoch := int(own.Lost.GetEpoch()); epoch > 0 {
			h.epoch, h.settling = epoch, true
		}
		heir := int(own.Lost.GetHeir())
		h.shares = inherited(h.shares, uint32(id), inherits(heir, partsOf(members, id)))
		h.backups.bury(id, heir, h.epoch)
	case *pspb.Meta_BackedUp:
		h.backups.of[int(own.BackedUp.GetOf())] = int(own.BackedUp.GetId())
	case *pspb.Meta_Admitted:
		if epoch := int(own.Admitted.GetEpoch()); epoch > 0 {
			h.epoch, h.settling, h.admitting = epoch, true, false
		}
	case *pspb.Meta_Settled:
		h.settling = false
	case *pspb.Meta_Gather:
		h.admitting = true
	case *pspb.Meta_Meet:
		h.admitting = own.Meet.GetPoints() > 0
	case *pspb.Meta_Prepare:
		h.plan, h.preparing = own.Prepare.GetPlan(), true
	case *pspb.Meta_Commit:
		h.plan, h.shares, h.preparing = own.Commit.GetPlan(), decodeShares(own.Commit.GetShare()), false
	case *pspb.Meta_Abort:
		h.preparing = false
	case *pspb.Meta_Stateful:
		h.stateful = clip(own.Stateful.GetWhat())
	}
	h.learnTensors(m)
	if c := m.GetControl(); c.GetCmd() == pspb.AddNode {
		for _, n := range c.GetNode() {
			h.next[Role(n.GetRole())] = int(n.GetId()) + 2
		}
	}
}

// learnTensors notes the tensors that have got their ids by a decision.
func (h *history) learnTensors(m *pspb.Meta) {
	for _, answer := range append(slices.Clip(m.GetBatch().GetMessage()), m) {
		if declared := answer.GetDeclared(); declared != nil {
			h.learn(declared, m.GetDecision())
		}
	}
}

// learn notes a tensor that has got its id by a decision.
func (h *history) learn(m *pspb.Declared, decision uint64) {
	if _, known := h.agreed[m.GetKey()]; m.Tensor != nil && (known || len(h.agreed) < maxKeys) {
		h.agreed[m.GetKey()] = agreement{tensorIn(m.Tensor), m.GetId(), decision}
	}
}

// tensors lists the tensors that have an id, by id.
func (h *history) tensors() (list []*pspb.Declared) {
	for key, a := range h.agreed {
		m := declaredMessage(key, a)
		m.Decision = proto.Uint64(a.decision)
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *pspb.Declared) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return list
}

// partsOf lists the members that take part, without one, in the order of Scheduler.ids.
func partsOf(members []Member, without int) (ids []int) {
	for _, role := range []Role{RoleServer, RoleWorker} {
		for _, m := range members {
			if m.Role == role && !m.Newcomer && m.ID != without {
				ids = append(ids, m.ID)
			}
		}
	}
	return ids
}

// termAt is the number of the term in which a decision was made; 0: that is not known.
func termAt(terms []term, decision uint64) (number uint32) {
	for _, t := range terms {
		if t.start < decision {
			number = t.number
		}
	}
	return number
}

// isPrefix reports whether a history with these terms and so many decisions is the beginning of h.
func (h *history) isPrefix(terms []term, number uint64) bool {
	last := terms[len(terms)-1].number
	i := slices.IndexFunc(h.terms, func(t term) bool { return t.number == last })
	switch {
	case i < 0:
		return false
	case i+1 < len(h.terms):
		return number <= h.terms[i+1].start
	}
	return number <= h.number
}

// encode makes the message that says what is known. begun: all nodes have met in the first barrier.
func (h *history) encode(begun bool) *pspb.Known {
	m := &pspb.Known{
		Decision: proto.Uint64(h.number), Term: termsMessage(h.terms), NextServer: proto.Int32(int32(h.next[RoleServer])), NextWorker: proto.Int32(int32(h.next[RoleWorker])),
		Backup: h.backups.encode(), Epoch: positive(uint32(h.epoch)), Plan: positive(h.plan), Share: encodeShares(h.shares), Stateful: optional(h.stateful),
	}
	for _, flag := range []struct {
		to    **bool
		value bool
	}{{&m.Begun, begun}, {&m.Settling, h.settling}, {&m.Preparing, h.preparing}, {&m.Admitting, h.admitting}, {&m.Replicates, h.replicates}} {
		if flag.value {
			*flag.to = proto.Bool(true)
		}
	}
	return m
}

// historyOf decodes what is known, without tensors and decisions; nil if it makes no sense.
func historyOf(m *pspb.Known) *history {
	terms := termsOf(m.GetTerm())
	next := map[Role]int{RoleServer: int(m.GetNextServer()), RoleWorker: int(m.GetNextWorker())}
	for role, id := range next {
		if !fits(id, role) && !fits(id-2, role) {
			return nil
		}
	}
	if terms == nil || len(m.GetShare()) > 2*wire.MaxWorkers {
		return nil
	}
	h := newHistory(next, decodeShares(m.GetShare()), map[uint64]agreement{})
	h.number, h.terms = m.GetDecision(), terms
	h.epoch, h.settling, h.plan, h.stateful = int(m.GetEpoch()), m.GetSettling(), m.GetPlan(), clip(m.GetStateful())
	h.preparing, h.admitting = m.GetPreparing(), m.GetAdmitting()
	h.replicates = m.GetReplicates()
	h.backups.decode(m.GetBackup())
	return h
}

func termsMessage(terms []term) (list []*pspb.Known_Term) {
	for _, t := range terms {
		list = append(list, &pspb.Known_Term{Number: proto.Uint32(t.number), Start: proto.Uint64(t.start)})
	}
	return list
}

// termsOf decodes terms; nil if they make no sense.
func termsOf(list []*pspb.Known_Term) (terms []term) {
	for i, m := range list {
		t := term{m.GetNumber(), m.GetStart()}
		if i >= maxTerms || i > 0 && (t.number <= terms[i-1].number || t.start < terms[i-1].start) {
			return nil
		}
		terms = append(terms, t)
	}
	return terms
}

func encodeShares(shares []plan.Share) (list []*pspb.Commit_Share) {
	for _, s := range shares {
		list = append(list, &pspb.Commit_Share{Node: proto.Int32(int32(s.Node)), Share: proto.Uint32(s.Share)})
	}
	return list
}

func decodeShares(list []*pspb.Commit_Share) (shares []plan.Share) {
	for _, m := range list {
		shares = append(shares, plan.Share{Node: uint32(m.GetNode()), Share: m.GetShare()})
	}
	return shares
}

// decide sends the members a decision: those that it concerns, or in a cluster that outlives its scheduler all.
func (s *Scheduler) decide(m *pspb.Meta, concerned []int) {
	if s.history != nil {
		s.history.add(m, s.view.Members)
		concerned = s.ids()
		if lost := m.GetLost(); lost != nil {
			concerned = slices.DeleteFunc(concerned, func(id int) bool { return id == int(lost.GetId()) })
		}
	}
	for _, id := range concerned {
		s.send(id, proto.Clone(m).(*pspb.Meta))
	}
}

// settleHistory forgets the decisions that all members have handled.
func (s *Scheduler) settleHistory() {
	if s.history == nil {
		return
	}
	least := s.history.number
	for _, m := range s.members {
		least = min(least, m.has)
	}
	s.history.settle(least)
}
