package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/wire"
)

// company is a store with workers that push one round at a time.
type company struct {
	t        *testing.T
	rng      *rand.Rand
	r        *rig
	replica  *Store // gets the same pushes
	ledger   ledger
	ranks    []int    // of the living workers
	base     []uint64 // by rank: the rounds that a newcomer has taken over
	answered []uint64
}

// pushUntil has all living workers push, in random order, until each has the given rounds behind it.
func (c *company) pushUntil(rounds uint64) {
	sent := slices.Clone(c.answered)
	for c.behind(rounds) {
		rank := c.ranks[c.rng.IntN(len(c.ranks))]
		if sent[rank] > c.answered[rank] || sent[rank] >= rounds {
			continue
		}
		sent[rank]++
		values := c.ledger.push(rank, sent[rank]-c.base[rank])
		c.take(c.r.pushed(c.t, rank, sent[rank], values))
		h := c.r.contribution(sent[rank], len(values)*8)
		replies, err := c.replica.Push(rank, h, c.r.bytes(values), nil, nil)
		if err != nil {
			c.t.Fatal(err)
		}
		for i := range replies {
			replies[i].Buffer.Release()
		}
	}
}

func (c *company) behind(rounds uint64) bool {
	return slices.ContainsFunc(c.ranks, func(rank int) bool { return c.answered[rank] < rounds })
}

// take checks replies: each value has all rounds of its worker, once each.
func (c *company) take(replies []Reply) {
	for i := range replies {
		reply := &replies[i]
		c.answered[reply.Rank]++
		own := c.ledger.rounds(c.r.values(reply.Buffer.Bytes))
		reply.Buffer.Release()
		if reply.Header.Round != c.answered[reply.Rank] || c.base[reply.Rank]+own[reply.Rank] != c.answered[reply.Rank] {
			c.t.Fatalf("worker %d: round %d is answered with %d rounds after the %d before its time", reply.Rank, reply.Header.Round, own[reply.Rank], c.base[reply.Rank])
		}
	}
}

// join admits a worker; ranks between have died before they were admitted, or come later.
func (c *company) join(rank int) {
	rounds := c.answered[c.ranks[0]]
	c.r.Join(rank)
	for len(c.answered) <= rank {
		c.answered, c.base = append(c.answered, rounds), append(c.base, rounds)
	}
	c.answered[rank], c.base[rank] = rounds, rounds
	c.ranks = append(c.ranks, rank)
}

func (c *company) bury(rank int) {
	c.take(c.r.Bury(rank, nil))
	c.replica.Bury(rank, nil)
	c.ranks = slices.DeleteFunc(c.ranks, func(other int) bool { return other == rank })
}

// Newcomers take over the rounds of the others: these and they go on from the same round, for any policy. A replica has the same, whether it hears of them before or after it
// has got a packet.
func TestNewcomersTakeOverRounds(t *testing.T) {
	for seed := range uint64(50) {
		for _, policy := range []wire.Policy{wire.Async, wire.Bounded(0), wire.Bounded(2)} {
			t.Run(fmt.Sprint(policy, " ", seed), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 5))
				r := newRig(t, 3, policy, wire.Int64, make([]float64, 2*8))
				c := &company{t, rng, r, r.NewReplica(), ledger{t, 8}, ranksTo(3), make([]uint64, 3), make([]uint64, 3)}
				a := r.describe(tensorID, packetID)
				early := a.Arrived
				if err := c.replica.Arrive(tensorID, packetID, a); err != nil {
					t.Fatal(err)
				}
				c.pushUntil(4)
				c.join(3)
				c.replica.Join(3)
				c.pushUntil(6)
				c.bury(rng.IntN(3))
				c.pushUntil(7)
				c.joinBoth(6)
				c.pushUntil(9)
				c.joinBoth(5)
				c.pushUntil(10)
				want := append(slices.Clone(c.answered[:4]), 7, 10, 10)
				for name, s := range map[string]*Store{"store": r.Store, "replica": c.replica} {
					if clock := s.Clock(tensorID, all); !slices.Equal(clock, want) {
						t.Errorf("the clock of the %s is %v, expected %v", name, clock, want)
					}
				}
				if _, err := r.Push(7, r.contribution(11, 0), nil, r.owned(make([]float64, 16)), nil); err == nil {
					t.Error("a push of a rank that nobody has")
				}
				if len(early) != 3 {
					t.Errorf("a description has changed: %v", early)
				}
				c.replica.Discard()
				r.end()
			})
		}
	}
}

// joinBoth admits a worker while a copy of the packet is on its way to the replica: that hears of the worker earlier or later.
func (c *company) joinBoth(rank int) {
	if c.rng.IntN(2) == 0 {
		c.replica.Join(rank)
		c.copyTo()
		c.join(rank)
	} else {
		c.join(rank)
		c.copyTo()
		c.replica.Join(rank)
	}
}

// copyTo copies the packet to the replica.
func (c *company) copyTo() {
	a := c.r.describe(tensorID, packetID)
	if err := c.replica.Arrive(tensorID, packetID, a); err != nil {
		c.t.Fatal(err)
	}
}

// The clock that a program has set goes on for newcomers, as that of the lowest rank.
func TestNewcomersTakeOverAClock(t *testing.T) {
	r := newRig(t, 2, wire.Sync, wire.Float32, []float64{1, 2})
	r.setRule(Rule{Kind: SGD, Rate: 1})
	r.complete(1, []float64{1, 1}, nil)
	if err := r.Resume(tensorID, all, []uint64{10, 20}); err != nil {
		t.Fatal(err)
	}
	r.Bury(0, nil)
	r.Join(3)
	r.complete(2, []float64{1, 1}, nil)
	if clock := r.Clock(tensorID, all); !slices.Equal(clock, []uint64{11, 21, 21, 21}) {
		t.Errorf("the clock is %v", clock)
	}
	late := New([]int{1}, r.pool, time.Time{}) // of a server that came when ranks 0, 2 and 3 had died
	if err := late.Arrive(9, 4, Arrival{DType: wire.Float32, Bytes: 8, Round: 5, Offset: []uint64{3, 1, 2, 3}}); err != nil {
		t.Fatal(err)
	}
	if clock := late.Clock(9, wire.Clock{First: 4, Count: 1}); !slices.Equal(clock, []uint64{8, 6, 7, 8}) {
		t.Errorf("the clock there is %v", clock)
	}
	late.Discard()
	r.end()
}

// Rounds of tensors that are declared when a rank has died do not wait for it.
func TestRanksThatDiedBefore(t *testing.T) {
	pool := aggregate.NewPool()
	r := &rig{t, pool, wire.Int64, wire.Bounded(0), New([]int{0, 2}, pool, time.Time{})}
	r.complete(0, make([]float64, 2), nil)
	if replies := r.pushed(t, 0, 1, []float64{1, 1}); len(replies) != 0 {
		t.Errorf("%d replies before worker 2 has pushed", len(replies))
	}
	replies := r.pushed(t, 2, 1, []float64{1, 1})
	if len(replies) != 2 {
		t.Errorf("%d replies when both have pushed", len(replies))
	}
	for i := range replies {
		replies[i].Buffer.Release()
	}
	r.end()
}
