package cluster

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// stepDeclare enters a worker's declaration into the ledger.
func (s *Scheduler) stepDeclare(now time.Time, from *member, m *pspb.Declare) {
	if from.Role != RoleWorker || m.GetDtype() > math.MaxUint8 || m.GetPolicy() > math.MaxUint16 {
		s.stray(Name(from.ID), fmt.Sprintf("it declares a tensor of dtype %d, consistency %d", m.GetDtype(), m.GetPolicy()))
		return
	}
	o := wire.Tensor{Bytes: m.GetBytes(), DType: wire.DType(m.GetDtype()), Policy: wire.Policy(m.GetPolicy()), Row: m.GetRow()}
	replies, twice := s.ledger.declare(now, from.Rank(), m.GetKey(), o)
	if twice {
		s.stray(Name(from.ID), fmt.Sprintf("it declares key %d twice", m.GetKey()))
	}
	for _, r := range replies {
		s.tell(wire.WorkerID(r.rank), r.meta)
	}
}

// tickDeclarations tells those who wait for a declaration whom for.
func (s *Scheduler) tickDeclarations(now time.Time) {
	if s.state != running {
		return
	}
	for _, stuck := range s.ledger.overdue(now) {
		missing := make([]int, len(stuck.missing))
		for i, rank := range stuck.missing {
			missing[i] = wire.WorkerID(rank)
		}
		waits := func(id int) bool {
			return id%2 == 1 && slices.Contains(stuck.waits, Member{ID: id, Role: RoleWorker}.Rank())
		}
		s.tellWaiting(keyText(stuck.key), missing, waits)
	}
}

func keyText(key uint64) string { return fmt.Sprintf("key %d", key) }

func waitingMessage(what string, missing []string) *pspb.Meta {
	return &pspb.Meta{Own: &pspb.Meta_Waiting{Waiting: &pspb.Waiting{What: proto.String(what), Missing: missing}}}
}

// disagreementError is what every worker raises when they disagree about a tensor.
func disagreementError(m *pspb.Disagreement) error {
	const most = 8
	var parts []string
	for i, p := range m.GetPart() {
		if i == most {
			parts = append(parts, fmt.Sprintf("and %d other opinions", len(m.GetPart())-most))
			break
		}
		t := wire.Tensor{Bytes: p.GetBytes(), DType: wire.DType(p.GetDtype()), Policy: wire.Policy(p.GetPolicy()), Row: p.GetRow()}
		parts = append(parts, fmt.Sprintf("%s %v", holders(p.GetRank()), t))
	}
	return fault.New(fault.Mismatch, "key %d: the workers disagree about the tensor: %s. Every worker has to pass the same shape, dtype and consistency",
		m.GetKey(), strings.Join(parts, "; "))
}

// holders says who holds an opinion: "worker 0 has", "workers 1, 2 and 5 more have".
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
