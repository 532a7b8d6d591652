package ps

import (
	"fmt"
	"slices"

	"fptps/gocore/fault"
)

// Tracker knows of each request of a customer who has not answered it yet. It is
// pure, and forgets a request at its end, unlike ps-lite's.
type Tracker struct {
	next int32
	open map[int32]*pending
}

// pending is a request on its way.
type pending struct {
	pull  bool
	asked map[int][]uint64 // who has not answered, and the keys that each was asked for
	parts []KVs
	err   error
}

// Result is the end of a request.
type Result struct {
	Timestamp int32
	Err       error
	KVs       KVs // of a pull
}

// Start opens a request and names it. asked has at least one node.
func (t *Tracker) Start(pull bool, asked map[int][]uint64) int32 {
	if t.open == nil {
		t.open = map[int32]*pending{}
	}
	ts := t.next
	for t.open[ts] != nil {
		ts = following(ts)
	}
	t.next = following(ts)
	t.open[ts] = &pending{pull: pull, asked: asked}
	return ts
}

func following(ts int32) int32 { return (ts + 1) & (1<<31 - 1) }

// Answer takes a response. The result is nil while others are still to answer; the
// error is for a response that nobody has asked for.
func (t *Tracker) Answer(m *Message) (*Result, error) {
	p := t.open[m.Timestamp]
	if p == nil {
		return nil, fmt.Errorf("an answer to request %d, which is not under way", m.Timestamp)
	}
	keys, waits := p.asked[m.Peer]
	if !waits {
		return nil, fmt.Errorf("an answer to request %d, which did not ask that node, or twice", m.Timestamp)
	}
	delete(p.asked, m.Peer)
	switch {
	case m.Failure != "":
		p.fail(fault.New(fault.Remote, "%s answered request %d with an error: %s", name(m.Peer), m.Timestamp, m.Failure))
	case p.pull && !slices.Equal(keys, m.KVs.Keys):
		p.fail(fault.New(fault.Remote, "%s answered request %d for %d keys with %d others", name(m.Peer), m.Timestamp, len(keys), len(m.KVs.Keys)))
	case p.pull:
		p.parts = append(p.parts, m.KVs)
	}
	return t.finish(m.Timestamp, p), nil
}

// Lose ends what is asked of a node, with the reason, and gives the requests that end by it.
func (t *Tracker) Lose(id int, why error) []*Result {
	var ended []*Result
	for ts, p := range t.open {
		if _, waits := p.asked[id]; !waits {
			continue
		}
		delete(p.asked, id)
		p.fail(why)
		if r := t.finish(ts, p); r != nil {
			ended = append(ended, r)
		}
	}
	slices.SortFunc(ended, func(a, b *Result) int { return int(a.Timestamp) - int(b.Timestamp) })
	return ended
}

// Missing lists who has not answered a request.
func (t *Tracker) Missing(ts int32) []int {
	var ids []int
	if p := t.open[ts]; p != nil {
		for id := range p.asked {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (p *pending) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

func (t *Tracker) finish(ts int32, p *pending) *Result {
	if len(p.asked) > 0 {
		return nil
	}
	delete(t.open, ts)
	r := &Result{Timestamp: ts, Err: p.err}
	if p.err == nil && p.pull {
		r.KVs, r.Err = join(p.parts)
	}
	return r
}

// join puts the servers' parts of a pull together, in the order of keys.
func join(parts []KVs) (KVs, error) {
	if len(parts) == 0 {
		return KVs{}, nil
	}
	if len(parts) == 1 {
		return parts[0], nil
	}
	slices.SortFunc(parts, func(a, b KVs) int {
		if a.Keys[0] < b.Keys[0] {
			return -1
		}
		return 1
	})
	all := KVs{DType: parts[0].DType}
	for _, p := range parts {
		if p.DType != all.DType {
			return KVs{}, fault.New(fault.Remote, "one server answered with %v, another with %v", all.DType, p.DType)
		}
		all.Keys = append(all.Keys, p.Keys...)
		all.Vals = append(all.Vals, p.Vals...)
		for i := range p.Keys {
			all.Lens = append(all.Lens, int32(p.length(i)))
		}
	}
	return all, nil
}
