package cluster

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// stepDeclare enters a worker's declarations into the ledger. Each worker receives the replies to all of them in as few
// messages as possible.
func (s *Scheduler) stepDeclare(now time.Time, from *member, list ...*pspb.Declare) {
	var all []reply
	for _, m := range list {
		all = append(all, s.enter(now, from, m)...)
	}
	s.answer(all)
}

// answer sends each worker the replies to it.
func (s *Scheduler) answer(replies []reply) {
	answers := map[int][]*pspb.Meta{}
	var decisions []*pspb.Meta
	for _, r := range replies {
		switch {
		case r.rank != everyone:
			answers[r.rank] = append(answers[r.rank], r.meta)
		case s.history != nil:
			decisions = append(decisions, r.meta)
		default:
			if declared := r.meta.GetDeclared(); declared != nil {
				declared.Tensor = nil
			}
			for _, rank := range ranks(r.to) {
				answers[rank] = append(answers[rank], r.meta)
			}
		}
	}
	for part := range slices.Chunk(decisions, maxBatch) {
		s.decide(batch(part), nil)
	}
	for _, rank := range slices.Sorted(maps.Keys(answers)) {
		for part := range slices.Chunk(answers[rank], maxBatch) {
			s.sendOwn(wire.WorkerID(rank), proto.Clone(batch(part)).(*pspb.Meta))
		}
	}
}

// maxBatch bounds the declarations in a message, which has at most a megabyte.
const maxBatch = 256

// batch packs several messages into one.
func batch(messages []*pspb.Meta) *pspb.Meta {
	if len(messages) == 1 {
		return messages[0]
	}
	return &pspb.Meta{Own: &pspb.Meta_Batch{Batch: &pspb.Batch{Message: messages}}}
}

// enter enters one declaration into the ledger and returns the replies.
func (s *Scheduler) enter(now time.Time, from *member, m *pspb.Declare) []reply {
	if from.Role != RoleWorker || m.GetDtype() > math.MaxUint8 || m.GetPolicy() > math.MaxUint16 {
		s.stray(Name(from.ID), fmt.Sprintf("it declares a tensor of dtype %d, consistency %d", m.GetDtype(), m.GetPolicy()))
		return nil
	}
	o := tensorIn(m)
	replies, twice := s.ledger.declare(now, from.Rank(), m.GetKey(), o)
	if twice {
		s.stray(Name(from.ID), fmt.Sprintf("it declares %s twice", wire.KeyText(m.GetKey(), o.Name)))
	}
	return replies
}

// tickDeclarations reports to the workers that wait for a declaration which workers have not made it.
func (s *Scheduler) tickDeclarations(now time.Time) {
	if s.state != running {
		return
	}
	for _, stuck := range s.ledger.overdue(now) {
		missing := make([]int, len(stuck.missing))
		for i, rank := range stuck.missing {
			missing[i] = wire.WorkerID(rank)
		}
		waiting := func(id int) bool {
			return id%2 == 1 && slices.Contains(stuck.waiting, Member{ID: id, Role: RoleWorker}.Rank())
		}
		s.reportMissing(stuck.name, missing, waiting)
	}
}

func waitingMessage(event string, missing []string) *pspb.Meta {
	return &pspb.Meta{Own: &pspb.Meta_Waiting{Waiting: &pspb.Waiting{What: proto.String(event), Missing: missing}}}
}

// disagreementError is the error that every worker raises if the workers disagree about a tensor.
func disagreementError(m *pspb.Disagreement) error {
	const most = 8
	if len(m.GetPart()) == 0 {
		return fault.New(fault.Mismatch, "key %d: the workers disagree about the tensor", m.GetKey()).With(wire.AboutKey(m.GetKey(), ""))
	}
	about := wire.AboutKey(m.GetKey(), m.GetPart()[0].GetName())
	if rank, found := oddOne(m.GetPart()); found {
		about.Role, about.Rank = RoleWorker.String(), &rank
	}
	same := "shape, dtype and consistency"
	permuted := slices.ContainsFunc(m.GetPart(), func(p *pspb.Disagreement_Part) bool { return tensorOf(p).Permuted() })
	if permuted {
		same = "shape, order of axes in memory, dtype and consistency"
	}
	if slices.ContainsFunc(m.GetPart(), func(p *pspb.Disagreement_Part) bool { return tensorOf(p).Policy == wire.Ordered }) {
		same += ", and the same deterministic= or FPTPS_DETERMINISTIC"
	}
	var parts []string
	for i, p := range m.GetPart() {
		if i == most {
			parts = append(parts, fmt.Sprintf("and %d other opinions", len(m.GetPart())-most))
			break
		}
		t := tensorOf(p)
		if t.Name != m.GetPart()[0].GetName() {
			return fault.New(fault.Mismatch, "the keys %q and %q have the same number, %d, by chance: give one of them another name",
				m.GetPart()[0].GetName(), t.Name, m.GetKey()).With(about)
		}
		part := fmt.Sprintf("%s %v", holders(p.GetRank()), t)
		if permuted && !t.Permuted() {
			part += ", contiguous"
		}
		parts = append(parts, part)
	}
	return fault.New(fault.Mismatch, "%s: the workers disagree about the tensor: %s. Every worker has to pass the same %s",
		wire.KeyText(m.GetKey(), m.GetPart()[0].GetName()), strings.Join(parts, "; "), same).With(about)
}

// oddOne is the one worker that all others disagree with, where these agree; false if there is no such worker.
func oddOne(parts []*pspb.Disagreement_Part) (rank int, found bool) {
	if len(parts) != 2 || len(parts[0].GetRank()) == len(parts[1].GetRank()) {
		return 0, false
	}
	for _, p := range parts {
		if len(p.GetRank()) == 1 {
			return int(p.GetRank()[0]), true
		}
	}
	return 0, false
}

func tensorOf(p *pspb.Disagreement_Part) wire.Tensor {
	return wire.Tensor{Bytes: p.GetBytes(), DType: wire.DType(p.GetDtype()), Policy: wire.Policy(p.GetPolicy()), Row: p.GetRow(), Name: p.GetName(), Shape: p.GetShape()}
}

// holders names the workers that hold an opinion: "worker 0 has", "workers 1, 2 and 5 more have".
func holders(ranks []uint32) string {
	const most = 8
	if len(ranks) == 1 {
		return fmt.Sprintf("worker %d has", ranks[0])
	}
	shown := ranks[:min(len(ranks), most)]
	text := strings.Trim(strings.ReplaceAll(fmt.Sprint(shown), " ", ", "), "[]")
	if more := len(ranks) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return "workers " + text + " have"
}
