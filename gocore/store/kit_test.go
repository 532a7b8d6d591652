package store

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// all names the packet of the tests.
var all = wire.Clock{First: packetID, Count: 1}

// rig holds a store with one packet of one tensor; its methods take and return float64 values instead of bytes.
type rig struct {
	t      *testing.T
	pool   *aggregate.Pool
	dtype  wire.DType
	policy wire.Policy
	*Store
}

const (
	tensorID = 5
	packetID = 3
)

func newRig(t *testing.T, workers int, policy wire.Policy, dtype wire.DType, initial []float64) *rig {
	pool := aggregate.NewPool()
	r := &rig{t, pool, dtype, policy, New(ranksTo(workers), pool, time.Time{})}
	r.complete(0, initial, nil)
	return r
}

// bytes encodes values as elements of the rig's type.
func (r *rig) bytes(values []float64) []byte {
	var b []byte
	for _, v := range values {
		switch r.dtype {
		case wire.Float64:
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
		case wire.Int64:
			b = binary.LittleEndian.AppendUint64(b, uint64(int64(v)))
		default:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
		}
	}
	if reduce.Wide(r.dtype) {
		reduce.Narrow(r.dtype, b[:len(b)/2], b)
		b = b[:len(b)/2]
	}
	return b
}

// values decodes what bytes encodes.
func (r *rig) values(b []byte) []float64 {
	if reduce.Wide(r.dtype) {
		wide := make([]byte, reduce.AccBytes(r.dtype, len(b)))
		reduce.Widen(r.dtype, wide, b)
		b = wide
	}
	var values []float64
	for len(b) > 0 {
		switch r.dtype {
		case wire.Float64:
			values, b = append(values, math.Float64frombits(binary.LittleEndian.Uint64(b))), b[8:]
		case wire.Int64:
			values, b = append(values, float64(int64(binary.LittleEndian.Uint64(b)))), b[8:]
		default:
			values, b = append(values, float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))), b[4:]
		}
	}
	return values
}

// owned encodes values in a buffer of the pool.
func (r *rig) owned(values []float64) *aggregate.Buffer {
	b := r.bytes(values)
	buffer := r.pool.Get(len(b))
	copy(buffer.Bytes, b)
	return buffer
}

// complete passes the sum of a round to the store and returns what the workers receive. rate is the learning rate of the
// round, nil if no worker set one.
func (r *rig) complete(round uint64, sum []float64, rate *float32) []float64 {
	r.t.Helper()
	s := aggregate.Sum{Policy: r.policy, Header: wire.Header{
		Kind: wire.Sum, DType: r.dtype, Tensor: tensorID, Packet: packetID, Run: 1, Round: round, Contributors: 2,
	}}
	s.Buffer = r.owned(sum)
	s.Header.RawLen = uint32(len(s.Buffer.Bytes))
	s.Header.WireLen = s.Header.RawLen
	if rate != nil {
		s.LearningRate, s.Rated = *rate, true
	}
	if err := r.Complete(&s); err != nil {
		r.t.Fatal(err)
	}
	if round == 0 {
		if s.Buffer != nil || s.Header.WireLen != 0 {
			r.t.Errorf("the reply to round 0 is %+v", s.Header)
		}
		return nil
	}
	defer s.Buffer.Release()
	return r.values(s.Buffer.Bytes)
}

// contribution makes the header of a worker's push.
func (r *rig) contribution(round uint64, raw int) *wire.Header {
	return &wire.Header{
		Kind: wire.Contrib, DType: r.dtype, Tensor: tensorID, Packet: packetID, Run: 1, Round: round,
		Policy: r.policy, RawLen: uint32(raw), WireLen: uint32(raw),
	}
}

func (r *rig) setRule(rule Rule) {
	r.t.Helper()
	if err := r.SetRule(tensorID, rule); err != nil {
		r.t.Fatal(err)
	}
}

// end checks that all buffers are released, except those that the store holds.
func (r *rig) end() {
	r.t.Helper()
	if lent, held := r.pool.Lent(), r.BufferCount(); lent != held {
		r.t.Errorf("%d buffers are lent, the store holds %d", lent, held)
	}
}

// ranksTo lists the ranks of so many workers.
func ranksTo(workers int) (ranks []int) {
	for rank := range workers {
		ranks = append(ranks, rank)
	}
	return ranks
}
