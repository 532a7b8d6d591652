package ps

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func request(peer int, priority int32, keys ...uint64) *Message {
	return &Message{Peer: peer, Priority: priority, Request: true, KVs: KVs{Keys: keys}}
}

// drain pops all requests and returns the indices at which they were pushed.
func drain(q *queue, all []*Message) []int {
	var order []int
	for m := q.pop(); m != nil; m = q.pop() {
		order = append(order, slices.Index(all, m))
	}
	return order
}

func TestQueue(t *testing.T) {
	for name, c := range map[string]struct {
		requests []*Message
		want     []int
	}{
		"equal ones in order":               {[]*Message{request(9, 0, 1), request(9, 0, 1), request(9, 0, 1)}, []int{0, 1, 2}},
		"urgent first":                      {[]*Message{request(9, 0, 1), request(9, 5, 2), request(11, 7, 1)}, []int{2, 1, 0}},
		"not before its own for the key":    {[]*Message{request(9, 0, 1), request(9, 3, 2), request(9, 5, 1)}, []int{0, 2, 1}},
		"before another's for the key":      {[]*Message{request(9, 0, 1), request(11, 5, 1)}, []int{1, 0}},
		"what is in the way is lifted, too": {[]*Message{request(9, 0, 1), request(9, 1, 1, 2), request(11, 3, 1), request(9, 5, 2)}, []int{0, 1, 3, 2}},
		"a command waits for all before":    {[]*Message{request(9, 0, 1), request(9, 9), request(9, 9, 7)}, []int{0, 1, 2}},
	} {
		var q queue
		for _, m := range c.requests {
			q.push(m)
		}
		if got := drain(&q, c.requests); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// In random sequences, requests of one node for a common key keep their order, and no
// request leaves before a more urgent one that may overtake it.
func TestQueueKeepsOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		var q queue
		var inside []*Message
		for range 60 {
			if random.IntN(3) > 0 {
				m := request(9+2*random.IntN(2), int32(random.IntN(4)), uint64(random.IntN(4)))
				if random.IntN(4) == 0 {
					m.KVs.Keys = append(m.KVs.Keys, 4+uint64(random.IntN(2)))
				}
				inside = append(inside, m)
				q.push(m)
				continue
			}
			m := q.pop()
			if m == nil {
				continue
			}
			at := slices.Index(inside, m)
			for i, other := range inside {
				if i < at && other.Peer == m.Peer && overlap(other, m) {
					t.Fatalf("%v left before %v of the same node", m.KVs.Keys, other.KVs.Keys)
				}
				if other.Priority > urgency(inside, at) {
					t.Fatalf("a request of priority %d left before one of %d", m.Priority, other.Priority)
				}
			}
			inside = slices.Delete(inside, at, at+1)
		}
	}
}

func overlap(a, b *Message) bool {
	x, y := a.KVs.Keys, b.KVs.Keys
	return x[0] <= y[len(y)-1] && y[0] <= x[len(x)-1]
}

// urgency is the highest priority among request number at and the requests that must wait for it.
func urgency(all []*Message, at int) int32 {
	highest := all[at].Priority
	for i, m := range all {
		if m.Priority > highest && blocks(all, i, at) {
			highest = m.Priority
		}
	}
	return highest
}

// blocks reports whether request number at must leave before number i, directly or
// through others.
func blocks(all []*Message, i, at int) bool {
	for j := range i {
		if all[j].Peer == all[i].Peer && overlap(all[j], all[i]) && (j == at || blocks(all, j, at)) {
			return true
		}
	}
	return false
}
