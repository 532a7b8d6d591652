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

// opinion is what a worker believes about a tensor.
type opinion struct {
	bytes uint64
	dtype wire.DType
}

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
	opinion
	id uint32
}

// declaration is a key that some workers have declared. From the first
// disagreement on it is broken: everyone who has declared it was told at once, who
// declares it later is told then. When all have been told it is forgotten, and the
// key may be declared anew.
type declaration struct {
	key      uint64
	opinions map[int]opinion // by rank; of a broken one: those who have been told
	broken   bool
	again    map[int]opinion // declared anew while others still had to be told
	since    time.Time
	place    *list.Element
}

func newLedger(workers int) *ledger {
	return &ledger{workers: workers, agreed: map[uint64]agreement{}, open: map[uint64]*declaration{}}
}

// declare takes one worker's declaration. twice is true when the worker has not
// been answered on this key yet, which no worker of ours does.
func (l *ledger) declare(now time.Time, rank int, key uint64, o opinion) (replies []reply, twice bool) {
	if reason := o.refusal(); reason != "" {
		return []reply{refusedReply(rank, key, reason)}, false
	}
	if a, ok := l.agreed[key]; ok {
		if a.opinion == o {
			return []reply{declaredReply(rank, key, a.id)}, false
		}
		return []reply{{rank, disagreement(key, l.everyone(a.opinion, rank, o))}}, false
	}
	d := l.open[key]
	if d == nil {
		if len(l.agreed)+len(l.open) >= maxKeys {
			return []reply{refusedReply(rank, key, fmt.Sprintf("the cluster has %d tensors already", maxKeys))}, false
		}
		d = l.begin(now, key)
	}
	if d.broken {
		return l.declareBroken(now, d, rank, o)
	}
	if _, twice := d.opinions[rank]; twice {
		return nil, true
	}
	for _, other := range d.opinions {
		d.broken = d.broken || other != o
	}
	d.opinions[rank] = o
	switch {
	case d.broken:
		for _, r := range ranks(d.opinions) {
			replies = append(replies, reply{r, disagreement(key, d.opinions)})
		}
		return append(replies, l.retire(now, d)...), false
	case len(d.opinions) == l.workers:
		l.forget(d)
		a := agreement{o, uint32(len(l.agreed))}
		l.agreed[key] = a
		for _, r := range ranks(d.opinions) {
			replies = append(replies, declaredReply(r, key, a.id))
		}
	}
	return replies, false
}

// declareBroken takes a declaration of a key on which the workers disagree already.
func (l *ledger) declareBroken(now time.Time, d *declaration, rank int, o opinion) (replies []reply, twice bool) {
	if _, told := d.opinions[rank]; told {
		if _, twice := d.again[rank]; twice {
			return nil, true
		}
		d.again[rank] = o
		return nil, false
	}
	d.opinions[rank] = o
	return append([]reply{{rank, disagreement(d.key, d.opinions)}}, l.retire(now, d)...), false
}

// retire forgets a broken declaration once all have been told, and takes up what
// was declared anew meanwhile.
func (l *ledger) retire(now time.Time, d *declaration) (replies []reply) {
	if len(d.opinions) < l.workers {
		return nil
	}
	l.forget(d)
	for _, rank := range ranks(d.again) {
		more, _ := l.declare(now, rank, d.key, d.again[rank])
		replies = append(replies, more...)
	}
	return replies
}

func (l *ledger) begin(now time.Time, key uint64) *declaration {
	d := &declaration{key: key, opinions: map[int]opinion{}, again: map[int]opinion{}, since: now}
	d.place = l.oldest.PushBack(d)
	l.open[key] = d
	return d
}

func (l *ledger) forget(d *declaration) {
	delete(l.open, d.key)
	l.oldest.Remove(d.place)
}

// everyone is the opinion that all hold but one.
func (l *ledger) everyone(agreed opinion, rank int, o opinion) map[int]opinion {
	all := map[int]opinion{}
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
		waiting := d.opinions
		if d.broken {
			waiting = d.again
		}
		for _, rank := range ranks(waiting) {
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

// refusal says why no tensor can be like this, "" if one can.
func (o opinion) refusal() string {
	switch {
	case !o.dtype.Valid():
		return fmt.Sprintf("unknown dtype %d", o.dtype)
	case o.bytes > wire.MaxTensorBytes:
		return fmt.Sprintf("%d bytes, at most %d", o.bytes, uint64(wire.MaxTensorBytes))
	case o.bytes%uint64(o.dtype.Size()) != 0:
		return fmt.Sprintf("%d bytes are no whole number of %v", o.bytes, o.dtype)
	}
	return ""
}

func ranks(opinions map[int]opinion) []int {
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
func disagreement(key uint64, opinions map[int]opinion) *pspb.Meta {
	parts := map[opinion]*pspb.Disagreement_Part{}
	m := &pspb.Disagreement{Key: proto.Uint64(key)}
	for _, rank := range ranks(opinions) {
		o := opinions[rank]
		if parts[o] == nil {
			parts[o] = &pspb.Disagreement_Part{Bytes: proto.Uint64(o.bytes), Dtype: proto.Uint32(uint32(o.dtype))}
			m.Part = append(m.Part, parts[o])
		}
		parts[o].Rank = append(parts[o].Rank, uint32(rank))
	}
	return &pspb.Meta{Own: &pspb.Meta_Disagreement{Disagreement: m}}
}
