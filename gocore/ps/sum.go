package ps

import (
	"fmt"
	"slices"
	"sync/atomic"

	"fptps/gocore/fault"
	"fptps/gocore/reduce"
	"fptps/gocore/van"
	"fptps/gocore/wire"
)

// Sum is ps-lite's default handle: a push adds to the value of the key, a pull returns
// it. A key that was never pushed is zero. 16-bit floats are summed in float32.
type Sum struct {
	server KVServer
	store  map[uint64]*entry
}

// entry is the sum of a key.
type entry struct {
	dtype   wire.DType
	bytes   int           // of the value
	acc     []byte        // the accumulator
	readers *atomic.Int32 // answers that are still being sent from acc; add then copies acc before it writes
}

// Serve answers the requests of an app until its customer is closed.
func Serve(c *Customer) *Sum {
	s := &Sum{server: KVServer{c}, store: map[uint64]*entry{}}
	c.mu.Lock()
	c.mu.serve = s.serve
	c.mu.Unlock()
	go s.server.office.guard(s.run)
	return s
}

// run serves queued requests.
func (s *Sum) run() {
	for m := s.server.awaitRequest(); m != nil; m = s.server.awaitRequest() {
		s.server.serveAdmitted(m)
	}
}

// serve answers one request, with an error if it is invalid.
func (s *Sum) serve(m *Message) {
	answer, done, err := s.answer(m)
	if err != nil {
		s.server.office.Reject(m.Peer, err.Error())
		err = s.server.Fail(m, err.Error())
	} else {
		err = s.server.respond(m, answer, done)
	}
	if err != nil {
		s.server.office.log.Warn("an answer could not be sent", "to", name(m.Peer), "reason", err)
	}
}

// answer returns the values that answer a request; they are read until done is called.
func (s *Sum) answer(m *Message) (k KVs, done func(), err error) {
	err = fault.Catch(func() (err error) {
		k, done, err = s.make(m)
		return err
	})
	return k, done, err
}

func (s *Sum) make(m *Message) (k KVs, done func(), err error) {
	if m.Simple {
		return KVs{}, nil, nil
	}
	if m.Push {
		if err := s.push(&m.KVs); err != nil {
			return KVs{}, nil, err
		}
	}
	if !m.Pull {
		return KVs{}, nil, nil
	}
	if len(m.KVs.Keys) == 1 {
		if v := s.store[m.KVs.Keys[0]]; v != nil && v.bytes > 0 && !reduce.Wide(v.dtype) {
			v.readers.Add(1)
			readers := v.readers
			return KVs{Keys: m.KVs.Keys, Vals: v.acc[:v.bytes], DType: v.dtype}, func() { readers.Add(-1) }, nil
		}
	}
	k, err = s.pull(m.Peer, &m.KVs)
	vals := k.Vals
	return k, func() { s.server.office.pool.put(vals) }, err
}

// push adds all values, or none if any has another length or dtype than before.
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
		v = &entry{dtype: d, bytes: len(value), acc: make([]byte, reduce.AccBytes(d, len(value))), readers: new(atomic.Int32)}
		s.store[key] = v
	}
	if len(value) == 0 {
		return
	}
	if v.readers.Load() > 0 {
		copied := s.server.office.pool.get(len(v.acc))
		copy(copied, v.acc)
		v.acc, v.readers = copied, new(atomic.Int32)
	}
	if reduce.Wide(d) {
		reduce.AddWide(d, v.acc, value)
	} else {
		reduce.Add(d, v.acc, value)
	}
}

// bytes is the total length of the keys' sums; a key that was never pushed counts unknown bytes. It stops counting beyond
// the longest frame.
func (s *Sum) bytes(keys []uint64, unknown int) int {
	total := 0
	for i := 0; i < len(keys) && total <= van.MaxFrame; i++ {
		if v := s.store[keys[i]]; v != nil {
			total += v.bytes
		} else {
			total += unknown
		}
	}
	return total
}

// pull returns the keys' sums. A key that was never pushed is zero, with as many elements
// as the first known key, or one element.
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
	total := s.bytes(k.Keys, elements*size)
	if total > van.MaxFrame {
		return KVs{}, fmt.Errorf("a pull of %d keys: their values are longer than %d bytes", len(k.Keys), van.MaxFrame)
	}
	answer.Vals = s.server.office.pool.get(total)[:0]
	same := true
	for _, key := range k.Keys {
		v := s.store[key]
		switch {
		case v == nil:
			s.server.office.Reject(peer, fmt.Sprintf("a pull of key %d, which was never pushed: zero is assumed", key))
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
