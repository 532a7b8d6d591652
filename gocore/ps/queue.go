package ps

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
)

// queue orders requests by priority, and equal ones by arrival. Requests of one node for
// a common key keep their order by priority inheritance: a request that must not be
// overtaken takes the priority of the most urgent one behind it. (ps-lite's queue does
// not keep that order.) A request without keys stands for all keys.
type queue struct {
	waiting  requests
	arrivals uint64
}

type waitingRequest struct {
	*Message
	keys     keyRange
	priority int32 // its own, or an inherited one
	arrival  uint64
	place    int // index in the heap
}

func (q *queue) push(m *Message) {
	q.arrivals++
	w := &waitingRequest{Message: m, keys: keyRangeOf(m), priority: m.Priority, arrival: q.arrivals}
	q.inheritPriority(w)
	heap.Push(&q.waiting, w)
}

func (q *queue) empty() bool { return len(q.waiting) == 0 }

// pop removes the first request; nil if the queue is empty.
func (q *queue) pop() *Message {
	if len(q.waiting) == 0 {
		return nil
	}
	return heap.Pop(&q.waiting).(*waitingRequest).Message
}

// inheritPriority raises the requests that m must not overtake to m's priority, then the requests that those must not
// overtake, and so on.
func (q *queue) inheritPriority(m *waitingRequest) {
	var before []*waitingRequest
	for _, w := range q.waiting {
		if w.Peer == m.Peer && w.priority < m.priority {
			before = append(before, w)
		}
	}
	slices.SortFunc(before, func(a, b *waitingRequest) int { return cmp.Compare(b.arrival, a.arrival) })
	raised := []*waitingRequest{m}
	for _, w := range before {
		if slices.ContainsFunc(raised, func(o *waitingRequest) bool { return w.keys.overlaps(o.keys) }) {
			w.priority = m.priority
			heap.Fix(&q.waiting, w.place)
			raised = append(raised, w)
		}
	}
}

// keyRange covers the keys of a request, from first to last; all keys for a request without any.
type keyRange struct {
	first, last uint64
}

func keyRangeOf(m *Message) keyRange {
	keys := m.KVs.Keys
	if len(keys) == 0 {
		return keyRange{0, math.MaxUint64}
	}
	return keyRange{keys[0], keys[len(keys)-1]}
}

// meets reports whether two requests may have a key in common. It compares their ranges alone: an order that is not
// needed costs little.
func (s keyRange) overlaps(o keyRange) bool { return s.first <= o.last && o.first <= s.last }

// requests is a heap of waiting requests.
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
