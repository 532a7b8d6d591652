package ps

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
)

// queue keeps requests until they are taken: the most urgent first, and of equal ones
// the oldest. Two requests of one node for a common key never change places: a more
// urgent one lifts those before it that it must not overtake to its own priority.
// ps-lite's queue keeps no such order. Requests without keys stand for all keys.
type queue struct {
	waiting  requests
	arrivals uint64
}

type waitingRequest struct {
	*Message
	keys     span
	priority int32 // its own, or that of one behind it
	arrival  uint64
	place    int // in the heap
}

func (q *queue) push(m *Message) {
	q.arrivals++
	w := &waitingRequest{Message: m, keys: spanOf(m), priority: m.Priority, arrival: q.arrivals}
	q.lift(w)
	heap.Push(&q.waiting, w)
}

func (q *queue) empty() bool { return len(q.waiting) == 0 }

// pop takes the first request, nil when there is none.
func (q *queue) pop() *Message {
	if len(q.waiting) == 0 {
		return nil
	}
	return heap.Pop(&q.waiting).(*waitingRequest).Message
}

// lift raises what m must not overtake, and what that must not overtake, and so on.
func (q *queue) lift(m *waitingRequest) {
	var before []*waitingRequest
	for _, w := range q.waiting {
		if w.Peer == m.Peer && w.priority < m.priority {
			before = append(before, w)
		}
	}
	slices.SortFunc(before, func(a, b *waitingRequest) int { return cmp.Compare(b.arrival, a.arrival) })
	lifted := []*waitingRequest{m}
	for _, w := range before {
		if slices.ContainsFunc(lifted, func(o *waitingRequest) bool { return w.keys.meets(o.keys) }) {
			w.priority = m.priority
			heap.Fix(&q.waiting, w.place)
			lifted = append(lifted, w)
		}
	}
}

// span is the keys of a request: from first to last, or all where it has none.
type span struct {
	first, last uint64
}

func spanOf(m *Message) span {
	keys := m.KVs.Keys
	if len(keys) == 0 {
		return span{0, math.MaxUint64}
	}
	return span{keys[0], keys[len(keys)-1]}
}

// meets tells whether two requests may have a key in common. That their ranges overlap is enough: order that nobody
// needs costs little.
func (s span) meets(o span) bool { return s.first <= o.last && o.first <= s.last }

// requests is a heap.
type requests []*waitingRequest

// Len implements heap.Interface.
func (r requests) Len() int { return len(r) }

// Less implements heap.Interface.
func (r requests) Less(i, j int) bool {
	return r[i].priority > r[j].priority || r[i].priority == r[j].priority && r[i].arrival < r[j].arrival
}

// Swap implements heap.Interface.
func (r requests) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].place, r[j].place = i, j
}

// Push implements heap.Interface.
func (r *requests) Push(x any) {
	w := x.(*waitingRequest)
	w.place = len(*r)
	*r = append(*r, w)
}

// Pop implements heap.Interface.
func (r *requests) Pop() any {
	last := len(*r) - 1
	w := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
	return w
}
