package ps

import (
	"cmp"
	"container/heap"
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
	priority int32 // its own, or that of one behind it
	arrival  uint64
	place    int // in the heap
}

func (q *queue) push(m *Message) {
	q.arrivals++
	w := &waitingRequest{Message: m, priority: m.Priority, arrival: q.arrivals}
	q.lift(w)
	heap.Push(&q.waiting, w)
}

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
		if slices.ContainsFunc(lifted, w.meets) {
			w.priority = m.priority
			heap.Fix(&q.waiting, w.place)
			lifted = append(lifted, w)
		}
	}
}

// meets tells whether two requests may have a key in common. That their ranges
// overlap is enough: order that nobody needs costs little.
func (w *waitingRequest) meets(o *waitingRequest) bool {
	a, b := w.KVs.Keys, o.KVs.Keys
	if len(a) == 0 || len(b) == 0 {
		return true
	}
	return a[0] <= b[len(b)-1] && b[0] <= a[len(a)-1]
}

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
