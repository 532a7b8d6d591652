package cluster

import (
	"container/list"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

const (
	// maxKeys bounds the tensors of a cluster that are declared or being declared.
	maxKeys = 1 << 20
	// maxScan bounds the work of finding out, every 5 s, whom declarations wait for.
	maxScan = 4096
)

// reply is a message for the worker of a rank.
type reply struct {
	rank int
	meta *pspb.Meta
}

// ledger is the book of declared tensors: a key gets an id when all workers have
// declared it alike. Pure, as the scheduler is.
type ledger struct {
	workers int
	agreed  map[uint64]agreement
	open    map[uint64]*declaration
	oldest  list.List // of the open ones, by age
	told    time.Time
}

type agreement struct {
	wire.Tensor
	id uint32
}

// declaration is a key that some workers have declared, not all.
type declaration struct {
	key      uint64
	opinions map[int]wire.Tensor // by rank
	since    time.Time
	place    *list.Element
}

func newLedger(workers int) *ledger {
	return &ledger{workers: workers, agreed: map[uint64]agreement{}, open: map[uint64]*declaration{}}
}

// declare takes one worker's declaration. Nobody is answered before all have
// declared, so that all hear the same: whoever heard of a disagreement earlier might
// leave, and the rest would hear of that instead. After a disagreement the key is
// forgotten and may be declared anew. twice is true when the worker has not been
// answered on this key yet, which no worker of ours does.
func (l *ledger) declare(now time.Time, rank int, key uint64, o wire.Tensor) (replies []reply, twice bool) {
	if reason := o.Refusal(); reason != "" {
		return []reply{refusedReply(rank, key, reason)}, false
	}
	if a, ok := l.agreed[key]; ok {
		if a.Tensor == o {
			return []reply{declaredReply(rank, key, a.id)}, false
		}
		return []reply{{rank, disagreement(key, l.everyone(a.Tensor, rank, o))}}, false
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
	if len(d.opinions) < l.workers {
		return nil, false
	}
	l.forget(d)
	return l.conclude(d), false
}

// conclude answers everyone: with an id where all agree.
func (l *ledger) conclude(d *declaration) (replies []reply) {
	a := agreement{d.opinions[0], uint32(len(l.agreed))}
	agreed := true
	for _, o := range d.opinions {
		agreed = agreed && o == a.Tensor
	}
	if agreed {
		l.agreed[d.key] = a
	}
	for _, r := range ranks(d.opinions) {
		if agreed {
			replies = append(replies, declaredReply(r, d.key, a.id))
		} else {
			replies = append(replies, reply{r, disagreement(d.key, d.opinions)})
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

func (l *ledger) forget(d *declaration) {
	delete(l.open, d.key)
	l.oldest.Remove(d.place)
}

// everyone is the opinion that all hold but one.
func (l *ledger) everyone(agreed wire.Tensor, rank int, o wire.Tensor) map[int]wire.Tensor {
	all := map[int]wire.Tensor{}
	for r := range l.workers {
		all[r] = agreed
	}
	all[rank] = o
	return all
}

// stuck is a declaration that has waited too long: who waits, and for whom.
type stuck struct {
	key            uint64
	waits, missing []int // ranks
}

// overdue gives each waiting worker's oldest declaration that has waited noticeTime,
// every noticeTime.
func (l *ledger) overdue(now time.Time) []stuck {
	if now.Sub(l.told) < noticeTime {
		return nil
	}
	var all []stuck
	named := map[int]bool{}
	scanned := 0
	for e := l.oldest.Front(); e != nil && scanned < maxScan && len(named) < l.workers; e = e.Next() {
		d := e.Value.(*declaration)
		if now.Sub(d.since) < noticeTime {
			break
		}
		scanned++
		s := stuck{key: d.key}
		for _, rank := range ranks(d.opinions) {
			if !named[rank] {
				named[rank] = true
				s.waits = append(s.waits, rank)
			}
		}
		if s.waits == nil {
			continue
		}
		for rank := range l.workers {
			if _, here := d.opinions[rank]; !here {
				s.missing = append(s.missing, rank)
			}
		}
		all = append(all, s)
	}
	if all != nil {
		l.told = now
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

func declaredReply(rank int, key uint64, id uint32) reply {
	return reply{rank, &pspb.Meta{Own: &pspb.Meta_Declared{Declared: &pspb.Declared{Key: proto.Uint64(key), Id: proto.Uint32(id)}}}}
}

func refusedReply(rank int, key uint64, reason string) reply {
	return reply{rank, &pspb.Meta{Own: &pspb.Meta_Refused{Refused: &pspb.Refused{Key: proto.Uint64(key), Reason: proto.String(reason)}}}}
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
			}
			m.Part = append(m.Part, parts[o])
		}
		parts[o].Rank = append(parts[o].Rank, uint32(rank))
	}
	return &pspb.Meta{Own: &pspb.Meta_Disagreement{Disagreement: m}}
}
