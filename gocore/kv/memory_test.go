package kv

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"fptps/gocore/wire"
)

const (
	memoryTensors = 64
	tensorPackets = 4 // of which every aggregator sums as many
	modelPackets  = memoryTensors * tensorPackets
)

// accounts counts the buffers, of a packet each, that the aggregators of a cluster use for a model of modelPackets.
type accounts struct {
	*cluster
	tickets []*Ticket
	arrays  [][][]byte // by rank and tensor
	paused  sync.Mutex // held: no packet is delivered
	most    int        // that any aggregator has used since reset
}

// newAccounts makes a cluster whose worker of rank 0 has initialised the model: every byte is initial.
func newAccounts(t *testing.T, workerShares, serverShares []uint32, initial byte) *accounts {
	a := &accounts{arrays: make([][][]byte, len(workerShares))}
	a.cluster = newCluster(t, workerShares, serverShares, nil, func(int, *wire.Header) {
		a.paused.Lock()
		defer a.paused.Unlock()
		a.most = max(a.most, slices.Max(a.lent()))
	})
	for rank, w := range a.workers {
		for key := range uint64(memoryTensors) {
			array := bytes.Repeat([]byte{initial}, tensorPackets*wire.PacketBytes)
			a.arrays[rank] = append(a.arrays[rank], array)
			a.await(w.Init(key, wire.Uint8, wire.Sync, array))
		}
	}
	a.end()
	return a
}

func (a *accounts) await(ticket *Ticket, err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
	a.tickets = append(a.tickets, ticket)
}

// push has some ranks push the whole model, with their rank + 1 in every byte, at the same time. It returns once nothing moves.
func (a *accounts) push(ranks ...int) {
	a.t.Helper()
	a.paused.Lock()
	for key := range uint64(memoryTensors) {
		for _, rank := range ranks {
			array := a.arrays[rank][key]
			copy(array, bytes.Repeat([]byte{byte(rank + 1)}, len(array)))
			a.await(a.workers[rank].PushPull(key, wire.Uint8, array, array, wire.OpSum, 0))
		}
	}
	a.most = 0
	a.paused.Unlock()
	synctest.Wait()
}

// end checks that all tickets have ended.
func (a *accounts) end() {
	a.t.Helper()
	synctest.Wait()
	for _, ticket := range a.tickets {
		if done, err := ticket.Wait(0); !done || err != nil {
			a.t.Fatalf("%s: done %v, error %v", ticket.Explain().Text, done, err)
		}
	}
	a.tickets = nil
}

// lent is the number of buffers that each aggregator uses: the servers', then the workers'.
func (a *accounts) lent() (all []int) {
	for _, aggregator := range a.aggregators {
		all = append(all, aggregator.pool.Lent())
	}
	return all
}

// TestMemoryOfAggregators: an aggregator keeps the initial value of its part of the model until the first round, which takes
// no more beside it than the packets under way; zeros take nothing, and nothing is left between rounds.
func TestMemoryOfAggregators(t *testing.T) {
	const underWay = 2 * tensorPackets
	for name, c := range map[string]struct {
		workers, servers []uint32
		part             int // packets of the model that each aggregator sums
	}{
		"1x0": {[]uint32{1}, nil, modelPackets},
		"2x0": {[]uint32{1, 1}, nil, modelPackets / 2},
		"2x1": {[]uint32{0, 0}, []uint32{1}, modelPackets},
		"4x2": {[]uint32{0, 0, 0, 0}, []uint32{1, 1}, modelPackets / 2},
		"2x2": {[]uint32{1, 1}, []uint32{1, 1}, modelPackets / 4},
	} {
		for _, initial := range []byte{7, 0} {
			synctest.Test(t, func(t *testing.T) {
				a := newAccounts(t, c.workers, c.servers, initial)
				defer a.close()
				kept := 0
				if initial != 0 {
					kept = c.part
				}
				if got := slices.Max(a.lent()); got != kept {
					t.Errorf("%s, %d: %d buffers after init, expected %d", name, initial, got, kept)
				}
				ranks := []int{0, 1, 2, 3}[:len(c.workers)]
				for round := range 3 {
					a.push(ranks...)
					if a.most == 0 || a.most > kept+underWay {
						t.Errorf("%s, %d, round %d: %d buffers, at most %d and %d are expected", name, initial, round, a.most, kept, underWay)
					}
					if got := slices.Max(a.lent()); got != 0 {
						t.Errorf("%s, %d, round %d: %d buffers are left", name, initial, round, got)
					}
					a.end()
					kept = 0
				}
			})
		}
	}
}

// TestMemoryOfAnEarlyWorker: what a worker contributes before the others takes memory on other nodes, and none on its own.
func TestMemoryOfAnEarlyWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAccounts(t, []uint32{1, 1, 1, 1}, nil, 7)
		defer a.close()
		const part = modelPackets / 4
		for _, kept := range []int{part, 0} {
			a.push(1)
			if got, want := a.lent(), []int{kept + part, kept, kept + part, kept + part}; !slices.Equal(got, want) {
				t.Errorf("buffers %v, expected %v", got, want)
			}
			a.push(0)
			if got, want := a.lent(), []int{kept + part, kept + part, kept + part, kept + part}; !slices.Equal(got, want) {
				t.Errorf("buffers %v, expected %v", got, want)
			}
			a.push(3, 2)
			a.end()
			for rank, arrays := range a.arrays {
				for key, array := range arrays {
					if !bytes.Equal(array, bytes.Repeat([]byte{1 + 2 + 3 + 4}, len(array))) {
						t.Fatalf("rank %d, key %d: a wrong sum", rank, key)
					}
				}
			}
		}
	})
}
