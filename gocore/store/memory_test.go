package store

import (
	"slices"
	"testing"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/wire"
)

// TestZerosTakeNoMemory: an initial value of zeros has a buffer only once pushes update it, and is zeros to all readers.
func TestZerosTakeNoMemory(t *testing.T) {
	zeros := []float64{0, 0}
	for name, c := range map[string]struct {
		use     func(r *rig)
		buffers int // that the store holds then
	}{
		"nothing":      {func(*rig) {}, 0},
		"a plain sum":  {func(r *rig) { r.complete(1, []float64{3, 4}, nil) }, 0},
		"an optimiser": {func(r *rig) { r.setRule(Rule{Kind: SGD, Rate: 1}) }, 1},
		"its update": {func(r *rig) {
			r.setRule(Rule{Kind: SGD, Rate: 1})
			if got := r.complete(1, []float64{3, -4}, nil); !slices.Equal(got, []float64{-3, 4}) {
				r.t.Errorf("the weights are %v", got)
			}
		}, 1},
		"another size":  {func(r *rig) { r.refuses(1, []float64{3}) }, 0},
		"a value again": {func(r *rig) { r.value(zeros); r.value(zeros) }, 0},
		"its state": {func(r *rig) {
			b, err := r.Read(tensorID, packetID, Part(ArrayValue, 0), len(r.bytes(zeros)))
			if err != nil || !slices.Equal(r.values(b.Bytes), zeros) {
				r.t.Fatal(b, err)
			}
			b.Release()
		}, 1},
	} {
		pool := aggregate.NewPool()
		r := &rig{t, pool, wire.Float32, wire.Sync, New([]int{0, 1}, pool, time.Time{})}
		r.owned([]float64{9, 9}).Release() // memory that is no zeros
		header := *r.contribution(0, 8)
		header.Kind, header.WireLen = wire.Sum, 0
		if err := r.Complete(&aggregate.Sum{Header: header}); err != nil {
			t.Fatal(err)
		}
		c.use(r)
		if r.BufferCount() != c.buffers {
			t.Errorf("%s: the store holds %d buffers, expected %d", name, r.BufferCount(), c.buffers)
		}
		r.end()
	}
}

// value checks what a pull of the packet's value gives.
func (r *rig) value(want []float64) {
	r.t.Helper()
	dtype, b, err := r.Value(tensorID, packetID)
	if err != nil || dtype != r.dtype || !slices.Equal(r.values(b.Bytes), want) {
		r.t.Fatal(dtype, b, err)
	}
	b.Release()
}

// refuses checks that a sum leads to an error.
func (r *rig) refuses(round uint64, sum []float64) {
	r.t.Helper()
	s := aggregate.Sum{Policy: r.policy, Buffer: r.owned(sum)}
	s.Header = *r.contribution(round, len(s.Buffer.Bytes))
	if r.Complete(&s) == nil {
		r.t.Error("it is taken")
	}
}
