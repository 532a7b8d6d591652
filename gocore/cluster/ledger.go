package cluster

import (
	"container/list"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

const (
	// maxKeys bounds the tensors of a cluster that are declared or being declared.
	maxKeys = 1 << 20
	// maxScan bounds the declarations that are inspected, every 5 s, for missing workers.
	maxScan = 4096
)

// everyone is the rank of a reply to all workers that have declared a key: a decision.
const everyone = -1

// reply is a message for the worker of a rank.
type reply struct {
	rank int
	to   map[int]wire.Tensor // for everyone: those that have declared the key, by rank
	meta *pspb.Meta
}

// ledger holds the declared tensors: a key gets an id when all workers have
// declared it alike. Pure, as the scheduler is.
type ledger struct {
	ranks   []int // of the workers, without dead ones
	agreed  map[uint64]agreement
	ids     uint32 // that were given
	open    map[uint64]*declaration
	oldest  list.List // the values of open, the oldest first
	noticed time.Time // when overdue last returned anything
}

type agreement struct {
	wire.Tensor
	id       uint32
	decision uint64 // by which it got the id, in a cluster that outlives its scheduler
}

// declaration is a key that some workers have declared, but not all.
type declaration struct {
	key      uint64
	opinions map[int]wire.Tensor // by rank
	since    time.Time           // of the first opinion
	place    *list.Element       // in ledger.oldest
}

func newLedger(workers int) *ledger {
	l := &ledger{agreed: map[uint64]agreement{}, open: map[uint64]*declaration{}}
	for rank := range workers {
		l.ranks = append(l.ranks, rank)
	}
	return l
}

// declare enters one worker's declaration. It answers no worker before all have
// declared the key, so that all receive the same answer: a worker that learned of a
// disagreement earlier might leave the cluster, and the others would raise an error about
// that instead. After a disagreement the key is forgotten and may be declared anew.
// twice reports that the worker has already declared the key and still waits for the
// answer, which no worker of ours does.
func (l *ledger) declare(now time.Time, rank int, key uint64, o wire.Tensor) (replies []reply, twice bool) {
	if reason := o.Refusal(); reason != "" {
		return []reply{refusedReply(rank, key, reason)}, false
	}
	if a, ok := l.agreed[key]; ok {
		if a.Tensor == o {
			return []reply{declaredReply(rank, key, a)}, false
		}
		return []reply{{rank: rank, meta: disagreement(key, l.allBut(rank, o, a.Tensor))}}, false
	}
	d := l.open[key]
	if d == nil {
		if len(l.agreed)+len(l.open) >= maxKeys {
			return []reply{refusedReply(rank, key, fmt.Sprintf("the cluster has %d tensors already", maxKeys))}, false
		}
		d = l.begin(now, key)
	}
	if _, twice := d.opinions[rank]; twice {
		return nil, true
	}
	d.opinions[rank] = o
	if !l.complete(d) {
		return nil, false
	}
	l.remove(d)
	return l.conclude(d), false
}

// complete reports whether all workers have made a declaration. Newcomers may have made it, too.
func (l *ledger) complete(d *declaration) bool {
	return len(without(l.ranks, d.opinions)) == 0
}

// join adds a worker that was a newcomer.
func (l *ledger) join(rank int) {
	l.ranks = append(l.ranks, rank)
	slices.Sort(l.ranks)
}

// bury removes a dead worker. A tensor that all other workers have declared gets its id.
func (l *ledger) bury(rank int) (replies []reply) {
	l.ranks = slices.DeleteFunc(slices.Clone(l.ranks), func(r int) bool { return r == rank })
	var next *list.Element
	for e := l.oldest.Front(); e != nil; e = next {
		next = e.Next()
		d := e.Value.(*declaration)
		delete(d.opinions, rank)
		switch {
		case len(d.opinions) == 0:
			l.remove(d)
		case l.complete(d):
			l.remove(d)
			replies = append(replies, l.conclude(d)...)
		}
	}
	return replies
}

// conclude answers all workers: with the tensor's id if they agree, else with their opinions. A newcomer
// that disagrees is alone in that.
func (l *ledger) conclude(d *declaration) (replies []reply) {
	a := agreement{Tensor: d.opinions[l.ranks[0]], id: l.ids}
	for _, rank := range l.ranks {
		if d.opinions[rank] != a.Tensor {
			return []reply{{everyone, d.opinions, disagreement(d.key, d.opinions)}}
		}
	}
	l.agreed[d.key] = a
	l.ids++
	replies = append(replies, declaredReply(everyone, d.key, a))
	replies[0].to = maps.Clone(d.opinions)
	for _, r := range ranks(d.opinions) {
		if d.opinions[r] != a.Tensor {
			delete(replies[0].to, r)
			replies = append(replies, reply{rank: r, meta: disagreement(d.key, d.opinions)})
		}
	}
	return replies
}

func (l *ledger) begin(now time.Time, key uint64) *declaration {
	d := &declaration{key: key, opinions: map[int]wire.Tensor{}, since: now}
	d.place = l.oldest.PushBack(d)
	l.open[key] = d
	return d
}

func (l *ledger) remove(d *declaration) {
	delete(l.open, d.key)
	l.oldest.Remove(d.place)
}

// allBut returns the opinions of all ranks if rank has opinion o and all others have opinion agreed.
func (l *ledger) allBut(rank int, o, agreed wire.Tensor) map[int]wire.Tensor {
	all := map[int]wire.Tensor{}
	for _, r := range l.ranks {
		all[r] = agreed
	}
	all[rank] = o
	return all
}

// stuck is a declaration that has waited too long.
type stuck struct {
	name    string // of the key, as KeyText gives it
	waiting []int  // ranks that have declared it
	missing []int  // ranks that have not
}

// overdue returns, once in noticeTime, each waiting worker's oldest declaration that
// has waited for noticeTime.
func (l *ledger) overdue(now time.Time) []stuck {
	if now.Sub(l.noticed) < noticeTime {
		return nil
	}
	var all []stuck
	named := map[int]bool{}
	scanned := 0
	for e := l.oldest.Front(); e != nil && scanned < maxScan && len(named) < len(l.ranks); e = e.Next() {
		d := e.Value.(*declaration)
		if now.Sub(d.since) < noticeTime {
			break
		}
		scanned++
		s := stuck{}
		for _, rank := range ranks(d.opinions) {
			s.name = wire.KeyText(d.key, d.opinions[rank].Name)
			if !named[rank] {
				named[rank] = true
				s.waiting = append(s.waiting, rank)
			}
		}
		if s.waiting == nil {
			continue
		}
		s.missing = without(l.ranks, d.opinions)
		all = append(all, s)
	}
	if all != nil {
		l.noticed = now
	}
	return all
}

func ranks(opinions map[int]wire.Tensor) []int {
	all := make([]int, 0, len(opinions))
	for rank := range opinions {
		all = append(all, rank)
	}
	slices.Sort(all)
	return all
}

func declaredReply(rank int, key uint64, a agreement) reply {
	m := &pspb.Declared{Key: proto.Uint64(key), Id: proto.Uint32(a.id)}
	if rank == everyone {
		m = declaredMessage(key, a)
	}
	return reply{rank: rank, meta: &pspb.Meta{Own: &pspb.Meta_Declared{Declared: m}}}
}

// declaredMessage says which tensor has got which id.
func declaredMessage(key uint64, a agreement) *pspb.Declared {
	return &pspb.Declared{Key: proto.Uint64(key), Id: proto.Uint32(a.id), Tensor: declareMessage(key, a.Tensor)}
}

func declareMessage(key uint64, t wire.Tensor) *pspb.Declare {
	return &pspb.Declare{
		Key: proto.Uint64(key), Bytes: proto.Uint64(t.Bytes), Dtype: proto.Uint32(uint32(t.DType)), Policy: proto.Uint32(uint32(t.Policy)),
		Row: proto.Uint32(t.Row), Name: optional(t.Name), Shape: optional(t.Shape),
	}
}

func tensorIn(m *pspb.Declare) wire.Tensor {
	return wire.Tensor{Bytes: m.GetBytes(), DType: wire.DType(m.GetDtype()), Policy: wire.Policy(m.GetPolicy()), Row: m.GetRow(), Name: m.GetName(), Shape: m.GetShape()}
}

func refusedReply(rank int, key uint64, reason string) reply {
	return reply{rank: rank, meta: &pspb.Meta{Own: &pspb.Meta_Refused{Refused: &pspb.Refused{Key: proto.Uint64(key), Reason: proto.String(reason)}}}}
}

// disagreement lists the opinions, each with the ranks that hold it, in the order of their lowest rank.
func disagreement(key uint64, opinions map[int]wire.Tensor) *pspb.Meta {
	parts := map[wire.Tensor]*pspb.Disagreement_Part{}
	m := &pspb.Disagreement{Key: proto.Uint64(key)}
	for _, rank := range ranks(opinions) {
		o := opinions[rank]
		if parts[o] == nil {
			parts[o] = &pspb.Disagreement_Part{
				Bytes: proto.Uint64(o.Bytes), Dtype: proto.Uint32(uint32(o.DType)), Policy: proto.Uint32(uint32(o.Policy)), Row: proto.Uint32(o.Row),
				Name: optional(o.Name), Shape: optional(o.Shape),
			}
			m.Part = append(m.Part, parts[o])
		}
		parts[o].Rank = append(parts[o].Rank, uint32(rank))
	}
	return &pspb.Meta{Own: &pspb.Meta_Disagreement{Disagreement: m}}
}

// optional is a message's field, left out if text is "".
func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
