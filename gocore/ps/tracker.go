package ps

import (
	"fmt"
	"maps"
	"slices"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// Tracker keeps, for each open request of a customer, the nodes that have not answered.
// It is pure. Unlike ps-lite's it forgets a request at its end.
type Tracker struct {
	next int32
	open map[int32]*pendingRequest
}

// pendingRequest is a request without all its answers.
type pendingRequest struct {
	pull       bool
	unanswered map[int][]uint64 // nodes without an answer yet, and the keys that each was asked for
	parts      []KVs
	err        error

	out        []byte       // the caller's array; nil if there is none
	dtype      wire.DType   // of out
	keys       int          // number of keys of all nodes
	keysBefore map[int]int  // number of keys of the nodes before each node; nil with a single node
	inPlace    map[int]bool // nodes whose values are received directly into out
	pooled     [][]byte     // buffers of the pool that parts refer to
}

// Result is the end of a request.
type Result struct {
	Timestamp int32
	Err       error
	KVs       KVs  // of a pull; without keys if they are in the caller's array, with equal lengths
	InPlace   bool // the values are in the caller's array

	pooled [][]byte // buffers of the pool that KVs refers to
}

// Start opens a request and returns its timestamp. asked has at least one node.
func (t *Tracker) Start(pull bool, asked map[int][]uint64) int32 {
	if t.open == nil {
		t.open = map[int32]*pendingRequest{}
	}
	ts := t.next
	for t.open[ts] != nil {
		ts = nextTimestamp(ts)
	}
	t.next = nextTimestamp(ts)
	t.open[ts] = &pendingRequest{pull: pull, unanswered: asked}
	return ts
}

// SetOut sets the array that the answers to a pull may be received into. It must stay valid until the end of the request.
func (t *Tracker) SetOut(ts int32, out []byte, d wire.DType) {
	p := t.open[ts]
	p.out, p.dtype, p.inPlace = out, d, map[int]bool{}
	if len(p.unanswered) == 1 {
		for _, keys := range p.unanswered {
			p.keys = len(keys)
		}
		return
	}
	p.keysBefore = map[int]int{}
	for _, id := range slices.Sorted(maps.Keys(p.unanswered)) { // servers: the order of ids is the order of keys
		p.keysBefore[id] = p.keys
		p.keys += len(p.unanswered[id])
	}
}

// AnswerBuffer returns the part of the caller's array that an answer of the given size belongs in; nil if there is no array or
// the part is unknown. It is known if all keys have the same length, or if the node was asked for all keys.
func (t *Tracker) AnswerBuffer(ts int32, id, bytes int, d wire.DType, lens bool) []byte {
	p := t.open[ts]
	if p == nil || p.out == nil || p.inPlace[id] || d != p.dtype {
		return nil
	}
	keys, waits := p.unanswered[id]
	if !waits || bytes*p.keys != len(p.out)*len(keys) || lens && len(keys) < p.keys {
		return nil
	}
	p.inPlace[id] = true
	from := len(p.out) / p.keys * p.keysBefore[id]
	return p.out[from : from+bytes : from+bytes]
}

func nextTimestamp(ts int32) int32 { return (ts + 1) & (1<<31 - 1) }

// Answer handles a response. The result is nil while other nodes have not answered. The
// error is for a response without an open request.
func (t *Tracker) Answer(m *Message) (*Result, error) {
	p := t.open[m.Timestamp]
	if p == nil {
		return nil, fmt.Errorf("an answer to request %d, which is not under way", m.Timestamp)
	}
	keys, waits := p.unanswered[m.Peer]
	if !waits || p.inPlace[m.Peer] && !m.inPlace { // the request must not end while the receive loop may still write to the array
		return nil, fmt.Errorf("an answer to request %d from a node that was not asked, or has answered already", m.Timestamp)
	}
	delete(p.unanswered, m.Peer)
	switch {
	case m.Failure != "":
		p.fail(fault.New(fault.Remote, "%s answered request %d with an error: %s", name(m.Peer), m.Timestamp, m.Failure))
	case p.pull && !slices.Equal(keys, m.KVs.Keys):
		p.fail(fault.New(fault.Remote, "%s answered request %d for %d keys with %d others", name(m.Peer), m.Timestamp, len(keys), len(m.KVs.Keys)))
	case p.pull:
		p.parts = append(p.parts, m.KVs)
		if m.pooled != nil {
			p.pooled = append(p.pooled, m.pooled)
		}
	}
	return t.finish(m.Timestamp, p), nil
}

// FailPeer fails the open requests to a node, and returns the results of those that end now.
func (t *Tracker) FailPeer(id int, why error) []*Result {
	var ended []*Result
	for ts, p := range t.open {
		if _, waits := p.unanswered[id]; !waits {
			continue
		}
		delete(p.unanswered, id)
		p.fail(why)
		if r := t.finish(ts, p); r != nil {
			ended = append(ended, r)
		}
	}
	slices.SortFunc(ended, func(a, b *Result) int { return int(a.Timestamp) - int(b.Timestamp) })
	return ended
}

// Missing lists the nodes that have not answered a request.
func (t *Tracker) Missing(ts int32) []int {
	var ids []int
	if p := t.open[ts]; p != nil {
		for id := range p.unanswered {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (p *pendingRequest) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

func (t *Tracker) finish(ts int32, p *pendingRequest) *Result {
	if len(p.unanswered) > 0 {
		return nil
	}
	delete(t.open, ts)
	r := &Result{Timestamp: ts, Err: p.err, pooled: p.pooled}
	switch {
	case p.err != nil || !p.pull:
	case len(p.inPlace) > 0 && len(p.inPlace) == len(p.parts):
		r.InPlace = true
		r.KVs = KVs{Vals: p.out, DType: p.dtype}
		if len(p.parts) == 1 { // else all keys have the same length
			r.KVs = p.parts[0]
		}
	default:
		r.KVs, r.Err = join(p.parts)
	}
	return r
}

// join concatenates the servers' parts of a pull, in the order of keys.
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
