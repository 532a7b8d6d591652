package ps

import (
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// Sum is ps-lite's default handle: a push adds to what the key has, a pull gives it.
// A key that was never pushed is zero. 16-bit floats are summed in float32.
type Sum struct {
	customer *Customer
	store    map[uint64]*stored
}

// stored is a key's sum.
type stored struct {
	dtype wire.DType
	bytes int    // of the value
	acc   []byte // the accumulator
}

// Serve answers the requests of an app until its customer is closed.
func Serve(c *Customer) *Sum {
	s := &Sum{customer: c, store: map[uint64]*stored{}}
	go s.run()
	return s
}

func (s *Sum) run() {
	for !s.customer.isClosed() {
		if e, ok := s.customer.Next(time.Second); ok && e.Request != nil {
			s.serve(e.Request)
		}
	}
}

// serve answers one request, with an error where it makes no sense.
func (s *Sum) serve(m *Message) {
	answer, err := s.answer(m)
	if err != nil {
		s.customer.office.Reject(m.Peer, err.Error())
		err = s.customer.Fail(m, err.Error())
	} else {
		err = s.customer.Respond(m, nil, answer)
	}
	if err != nil {
		s.customer.office.log.Warn("an answer could not be sent", "to", name(m.Peer), "reason", err)
	}
}

func (s *Sum) answer(m *Message) (k KVs, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	if m.Simple {
		return KVs{}, nil
	}
	if m.Push {
		if err := s.push(&m.KVs); err != nil {
			return KVs{}, err
		}
	}
	if m.Pull {
		return s.pull(m.Peer, &m.KVs)
	}
	return KVs{}, nil
}

// push adds all values, or none where one does not fit.
func (s *Sum) push(k *KVs) error {
	if !reduce.Supported(k.DType) {
		return fmt.Errorf("values of %v cannot be summed", k.DType)
	}
	for i, key := range k.Keys {
		if had, bytes := s.store[key], k.length(i)*k.DType.Size(); had != nil && (had.dtype != k.DType || had.bytes != bytes) {
			return fmt.Errorf("key %d: a push of %d bytes of %v, and it has %d bytes of %v", key, bytes, k.DType, had.bytes, had.dtype)
		}
	}
	start := 0
	for i, key := range k.Keys {
		bytes := k.length(i) * k.DType.Size()
		s.add(key, k.DType, k.Vals[start:start+bytes])
		start += bytes
	}
	return nil
}

func (s *Sum) add(key uint64, d wire.DType, value []byte) {
	v := s.store[key]
	if v == nil {
		v = &stored{dtype: d, bytes: len(value), acc: make([]byte, reduce.AccBytes(d, len(value)))}
		s.store[key] = v
	}
	if len(value) == 0 {
		return
	}
	if reduce.Wide(d) {
		reduce.AddWide(d, v.acc, value)
	} else {
		reduce.Add(d, v.acc, value)
	}
}

// pull gives the keys' sums. One that was never pushed is zero, of as many elements as
// the others have or else one.
func (s *Sum) pull(peer int, k *KVs) (KVs, error) {
	answer := KVs{Keys: k.Keys, DType: wire.Float32}
	if k.DType.Valid() {
		answer.DType = k.DType // of a key that was never pushed
	}
	elements := 1
	if i := slices.IndexFunc(k.Keys, func(key uint64) bool { return s.store[key] != nil }); i >= 0 {
		v := s.store[k.Keys[i]]
		answer.DType, elements = v.dtype, v.bytes/v.dtype.Size()
	}
	size := answer.DType.Size()
	same := true
	for _, key := range k.Keys {
		v := s.store[key]
		switch {
		case v == nil:
			s.customer.office.Reject(peer, fmt.Sprintf("a pull of key %d, which was never pushed: it is taken for zero", key))
			answer.Vals = append(answer.Vals, make([]byte, elements*size)...)
			answer.Lens = append(answer.Lens, int32(elements))
			continue
		case v.dtype != answer.DType:
			return KVs{}, fmt.Errorf("keys of %v and %v in one pull", answer.DType, v.dtype)
		}
		at := len(answer.Vals)
		answer.Vals = append(answer.Vals, v.acc[:v.bytes]...)
		if reduce.Wide(v.dtype) && v.bytes > 0 {
			reduce.Narrow(v.dtype, answer.Vals[at:], v.acc)
		}
		answer.Lens = append(answer.Lens, int32(v.bytes/size))
		same = same && v.bytes/size == elements
	}
	if same && elements > 0 {
		answer.Lens = nil // as ps-lite's handle does
	}
	return answer, nil
}
