package node

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"fptps/gocore/kv"
	"fptps/gocore/store"
	"fptps/gocore/wire"
)

// In plays with replicas the aggregators keep the weights of two more keys: each push adds 1 to the elements of its rank. No push of a worker that
// lives may be lost or count twice, whichever nodes die and come.
const (
	ruledKey = 10 + iota // an optimiser applies the sums
	asyncKey             // each push is applied when it arrives

	rankElements = 16 // element e belongs to rank e modulo this
)

var companyRule = store.Rule{Kind: store.SGD, Rate: 1, Momentum: 0.5}

// weighted is what a worker knows of the weights.
type weighted struct {
	steps            float32 // that it has pushed
	velocity, weight float32 // of its own elements of ruledKey
}

func (p *program) initWeights() error {
	if p.config.Replicas == 0 {
		return nil
	}
	zeros := func(key uint64) []byte { return make([]byte, 4*elements(key)) }
	tickets, err := p.worker.InitAll([]kv.Init{
		{Key: ruledKey, DType: wire.Float32, Memory: zeros(ruledKey)},
		{Key: asyncKey, DType: wire.Float32, Policy: wire.Async, Memory: zeros(asyncKey)},
	})
	if err != nil {
		return err
	}
	for _, ticket := range tickets {
		if err := p.await(ticket); err != nil {
			return err
		}
	}
	ticket, err := p.worker.SetRule([]uint64{ruledKey}, companyRule)
	if err != nil {
		return err
	}
	return p.await(ticket)
}

// pushWeights pushes both keys, and checks the weights that come back.
func (p *program) pushWeights() error {
	if p.config.Replicas == 0 {
		return nil
	}
	mine := &p.weighted
	mine.steps++
	mine.velocity = float32(companyRule.Momentum)*mine.velocity + 1
	mine.weight -= mine.velocity
	var tickets []*kv.Ticket
	outs := [][]byte{make([]byte, 4*elements(ruledKey)), make([]byte, 4*elements(asyncKey))}
	for i, key := range []uint64{ruledKey, asyncKey} {
		gradient := make([]byte, len(outs[i]))
		for e := p.worker.Rank; e < len(gradient)/4; e += rankElements {
			binary.LittleEndian.PutUint32(gradient[4*e:], math.Float32bits(1))
		}
		ticket, err := p.worker.PushPull(key, wire.Float32, gradient, outs[i], wire.OpSum, 0)
		if err != nil {
			return err
		}
		tickets = append(tickets, ticket)
	}
	for i, want := range []float32{mine.weight, mine.steps} {
		if err := p.await(tickets[i]); err != nil {
			return fmt.Errorf("weights: %w", err)
		}
		for e := p.worker.Rank; e < len(outs[i])/4; e += rankElements {
			if got := math.Float32frombits(binary.LittleEndian.Uint32(outs[i][4*e:])); got != want {
				return fmt.Errorf("step %d: weight %d of key %d is %v, and %v after %v pushes", p.step, e, ruledKey+i, got, want, mine.steps)
			}
		}
	}
	return p.agree(p.step, outs[0])
}

// agree checks that all workers have the same weights after a step.
func (p *program) agree(step int, weights []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch known := p.weights[step]; {
	case p.dead || step < 0:
	case known == nil:
		p.weights[step] = weights
	case !bytes.Equal(known, weights):
		return fmt.Errorf("step %d: other weights than another worker", step)
	}
	return nil
}

// pullWeights checks the weights that a newcomer finds on the aggregators.
func (p *program) pullWeights() error {
	if p.config.Replicas == 0 {
		return nil
	}
	weights := make([]byte, 4*elements(ruledKey))
	ticket, err := p.worker.Pull(ruledKey, wire.Float32, weights)
	if err != nil {
		return err
	}
	if err := p.await(ticket); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	return p.agree(p.step-1, weights)
}

// mayDie reports whether no weights are lost with a node. The lock is held.
func (c *company) mayDie(victim *actor) bool {
	if c.config.Replicas == 0 {
		return true
	}
	for _, backup := range c.orphans {
		if backup == victim.whole || backup == victim.id { // as long as there is no verdict on its node
			return false
		}
	}
	for _, a := range c.actors {
		if a.began && !a.dead && a.id == victim.whole {
			return true
		}
	}
	return false
}

// loses reports whether the cluster has ended as weights were lost; why is how it has ended. That may happen if the scheduler dies, too: it alone had heard
// that a node had another backup.
func (c *company) loses(why string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = c.lost || c.lives > 1 && (strings.Contains(why, "as the aggregators keep") || strings.Contains(why, "Nobody else has its part"))
	return c.lost
}
