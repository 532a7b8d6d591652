package ps

import (
	"fmt"
	"maps"
	"slices"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
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

	out    []byte       // the caller's array, nil: none
	dtype  wire.DType   // of it
	keys   int          // of all that were asked
	before map[int]int  // keys of the nodes before each; nil where there is one node
	landed map[int]bool // whose values go straight to out
	lent   [][]byte     // the depot's memory among parts
}

// Result is the end of a request.
type Result struct {
	Timestamp int32
	Err       error
	KVs       KVs  // of a pull; without keys where all have equally many elements in the caller's array
	Landed    bool // its values are in the caller's array

	lent [][]byte // the depot's memory among KVs
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

// Fill says that the answers to a pull may go straight to an array of the caller's, which stays there until the end of
// the request.
func (t *Tracker) Fill(ts int32, out []byte, d wire.DType) {
	p := t.open[ts]
	p.out, p.dtype, p.landed = out, d, map[int]bool{}
	if len(p.asked) == 1 {
		for _, keys := range p.asked {
			p.keys = len(keys)
		}
		return
	}
	p.before = map[int]int{}
	for _, id := range slices.Sorted(maps.Keys(p.asked)) { // servers, in the order of their keys
		p.before[id] = p.keys
		p.keys += len(p.asked[id])
	}
}

// Land gives the place in the caller's array for the answer of a node, of so many bytes; nil where it has none. That
// place is known where all keys have equally many elements, or the node has all keys.
func (t *Tracker) Land(ts int32, id, bytes int, d wire.DType, lens bool) []byte {
	p := t.open[ts]
	if p == nil || p.out == nil || p.landed[id] || d != p.dtype {
		return nil
	}
	keys, waits := p.asked[id]
	if !waits || bytes*p.keys != len(p.out)*len(keys) || lens && len(keys) < p.keys {
		return nil
	}
	p.landed[id] = true
	from := len(p.out) / p.keys * p.before[id]
	return p.out[from : from+bytes : from+bytes]
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
	if !waits || p.landed[m.Peer] && !m.landed { // while something may still be written to the array, the request is not over
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
		if m.lent != nil {
			p.lent = append(p.lent, m.lent)
		}
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
	r := &Result{Timestamp: ts, Err: p.err, lent: p.lent}
	switch {
	case p.err != nil || !p.pull:
	case len(p.landed) > 0 && len(p.landed) == len(p.parts):
		r.Landed = true
		r.KVs = KVs{Vals: p.out, DType: p.dtype}
		if len(p.parts) == 1 { // else each key has equally many
			r.KVs = p.parts[0]
		}
	default:
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
