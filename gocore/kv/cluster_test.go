package kv

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fptps/gocore/wire"
)

func TestClusters(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			synctest.Test(t, func(t *testing.T) { playCluster(t, rng) })
		})
	}
}

func playCluster(t *testing.T, rng *rand.Rand) {
	workerShares, serverShares := make([]uint32, 1+rng.IntN(5)), make([]uint32, rng.IntN(4))
	for i := range serverShares {
		serverShares[i] = 1 + rng.Uint32N(4)
	}
	for i := range workerShares {
		if len(serverShares) == 0 || rng.IntN(2) == 0 {
			workerShares[i] = 1 + rng.Uint32N(4)
		}
	}
	workers := len(workerShares)
	scripts := newScripts(rng, workers, 2+rng.IntN(8), 5)
	byID := make([]*script, len(scripts)+1)
	c := newCluster(t, workerShares, serverShares, picker(rng), func(rank int, h *wire.Header) {
		if h.Kind != wire.Sum {
			return
		}
		s := byID[h.Tensor]
		if s == nil {
			t.Errorf("a sum of tensor %d", h.Tensor)
		} else if want := s.urgency(h.Round); h.Priority != want || int(h.Contributors) != workers {
			t.Errorf("rank %d: the sum of key %d round %d has priority %d (expected %d), %d contributors",
				rank, s.key, h.Round, h.Priority, want, h.Contributors)
		}
	})
	declare := c.workers[0].Declare
	c.workers[0].Declare = each(func(key uint64, t wire.Tensor, done func(uint32, error)) {
		declare([]Declaration{{key, t, func(id uint32, err error) {
			for i := range scripts {
				if scripts[i].key == key {
					byID[id] = &scripts[i] // read once sums arrive, which this worker's contribution precedes
				}
			}
			done(id, err)
		}}})
	})
	var players sync.WaitGroup
	for _, w := range c.workers {
		p := &player{cluster: c, Worker: w, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), scripts: scripts}
		players.Go(p.play)
	}
	players.Wait()
	c.close()
	if strings.Contains(c.log.String(), "no progress") {
		t.Error(c.log.String())
	}
	for _, w := range c.workers {
		if got, want := w.Stats().Rounds, uint64(len(scripts)*len(scripts[0].rounds)); got != want {
			t.Errorf("rank %d has played %d rounds, expected %d", w.Rank, got, want)
		}
	}
}

// TestStallsNameTheMissingWorker: one rank keeps its push back; after some seconds
// of virtual time the others' tickets and the log name it.
func TestStallsNameTheMissingWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, []uint32{1, 0, 0}, []uint32{1}, nil, func(int, *wire.Header) {})
		defer c.close()
		const bytes = 4 * wire.PacketBytes // for every key both aggregators sum some of it
		var inits []*Ticket
		for _, w := range c.workers {
			ticket, err := w.Init(6, wire.Float32, wire.Sync, make([]byte, bytes))
			if err != nil {
				t.Fatal(err)
			}
			inits = append(inits, ticket)
		}
		for rank, w := range c.workers {
			if err := wait(t, w, inits[rank]); err != nil {
				t.Fatal(err)
			}
		}
		push := func(w *Worker) *Ticket {
			ticket, err := w.Push(6, wire.Float32, make([]byte, bytes), wire.OpSum, 0)
			if err != nil {
				t.Fatal(err)
			}
			return ticket
		}
		first, second := push(c.workers[0]), push(c.workers[2])
		next, err := c.workers[2].Skip(6)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * LogAfter) // virtual: the network's clock passes
		synctest.Wait()
		const text = "key 6 round 1: the sums of 0 of 4 packets are here; missing: worker 1"
		for _, e := range []struct {
			rank   int
			ticket *Ticket
			want   string
		}{{0, first, text}, {2, second, text}, {2, next, "waits for the operation before it: " + text}} {
			if got := e.ticket.Explain(); got.Text != e.want || got.Key != uint64(6) || !slices.Equal(got.Missing, []string{"worker 1"}) {
				t.Errorf("rank %d: %+v", e.rank, got)
			}
		}
		last := push(c.workers[1])
		for _, e := range []struct {
			rank   int
			ticket *Ticket
		}{{0, first}, {2, second}, {1, last}} {
			if err := wait(t, c.workers[e.rank], e.ticket); err != nil {
				t.Error(err)
			}
		}
		if text := next.Explain().Text; text != "key 6 round 2: the sums of 0 of 4 packets are here" {
			t.Errorf("the next round starts with %q", text)
		}
		first, last = push(c.workers[0]), push(c.workers[1])
		for rank, ticket := range []*Ticket{first, last, next} {
			if err := wait(t, c.workers[rank], ticket); err != nil {
				t.Error(err)
			}
		}
		if !strings.Contains(c.log.String(), `level=WARN msg="no progress for 5 s" key=6 round=1 missing="worker 1" other_keys=0`) {
			t.Errorf("the log is %q", c.log.String())
		}
	})
}
