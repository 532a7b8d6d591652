package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/kv"
	"fptps/gocore/wire"
)

// program is the training of a worker.
type program struct {
	*actor
	newcomer bool
	step     int
	weighted weighted
}

// await waits for a ticket.
func (p *program) await(ticket *kv.Ticket) error {
	for begin := time.Now(); !ticket.Done(); time.Sleep(time.Millisecond) {
		if p.isDead() {
			return errors.New("dead")
		}
		if time.Since(begin) > longest {
			return fmt.Errorf("step %d: waits for ever: %s", p.step, ticket.Explain().Text)
		}
	}
	_, err := ticket.Wait(0)
	return err
}

func elements(key uint64) int { // one packet to three
	return map[uint64]int{0: 1, 1: 5000, 2: 9001, 3: 700, ruledKey: 9001, asyncKey: 5000}[key]
}

func (p *program) init(key uint64) error {
	tickets, err := p.worker.InitAll([]kv.Init{{Key: key, DType: wire.Int32, Memory: make([]byte, 4*elements(key))}})
	if err != nil {
		return err
	}
	return p.await(tickets[0])
}

// together does what needs a scheduler: a barrier in some steps, and another tensor in the middle of the training.
func (p *program) together() error {
	if p.step == companySteps/2 {
		if err := p.init(companyKeys); err != nil {
			return err
		}
	}
	if p.step%5 != 3 {
		return nil
	}
	p.mu.Lock()
	p.reached = p.step
	p.mu.Unlock()
	if err := p.barrier(func(done func(error)) { p.post.Barrier(0, cluster.WorkerGroup, done) }); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.actors {
		if a.worker != nil && !a.dead && !a.late && a.reached < p.step {
			return fmt.Errorf("passed a barrier that worker %d has not reached", a.worker.Rank)
		}
	}
	return nil
}

func (p *program) train() error {
	for key := range uint64(companyKeys) {
		if err := p.init(key); err != nil {
			return err
		}
	}
	if err := p.initWeights(); err != nil {
		return err
	}
	for ; p.step < companySteps; p.step++ {
		if err := p.admit(); err != nil {
			return err
		}
		if err := p.together(); err != nil {
			return fmt.Errorf("rank %d, step %d: %w", p.worker.Rank, p.step, err)
		}
		if err := p.rounds(); err != nil {
			return fmt.Errorf("rank %d: %w", p.worker.Rank, err)
		}
		if err := p.pushWeights(); err != nil {
			return fmt.Errorf("rank %d: %w", p.worker.Rank, err)
		}
		p.pause(4)
	}
	return nil
}

// admit is what python/fptps/_admission.py does.
func (p *program) admit() error {
	for !p.newcomer {
		p.mu.Lock()
		come := p.points.come()
		var ticket *kv.Ticket
		if come == wait {
			ticket = p.worker.Tickets.New(nil)
			p.points.waiting = ticket
		}
		p.mu.Unlock()
		if come == pass {
			return nil
		}
		if come == stand {
			break
		}
		if err := p.await(ticket); err != nil {
			return err
		}
	}
	var complete wire.Rounds
	if !p.newcomer {
		var err error
		if complete, err = p.worker.Arrive([]byte{byte(p.step)}); err != nil {
			return err
		}
	}
	ticket := p.worker.Tickets.New(nil)
	p.mu.Lock()
	point := p.points.arrive(ticket)
	p.mu.Unlock()
	p.post.Arrived(point, complete)
	if err := p.await(ticket); err != nil || !p.newcomer {
		return err
	}
	err := errors.New("nobody has the state")
	for _, rank := range p.worker.Present(-1) {
		if rank == p.worker.Rank {
			continue
		}
		if err = p.await(p.worker.Fetch(uint32(wire.WorkerID(rank)))); err != nil {
			continue
		}
		p.note(p.actor, "has the state of rank %d", rank)
		p.step, p.newcomer = int(p.worker.ProgramState()[0]), false
		p.mu.Lock()
		p.late = false
		p.mu.Unlock()
		p.post.Fetched()
		p.mu.Lock()
		p.full = true
		p.mu.Unlock()
		return p.pullWeights()
	}
	return err
}

// pushed reports whether a rank pushes a key in a step, or skips it.
func pushed(rank int, key uint64, step int) bool { return (rank+3*int(key)+5*step)%7 > 0 }

func value(rank int, key uint64, step, element int) int32 {
	return int32((rank+1)*(1000*step+100*int(key)+7) + element%13)
}

// rounds pushes all keys, and checks the sums.
func (p *program) rounds() error {
	arrays, tickets := make([][]byte, companyKeys), make([]*kv.Ticket, companyKeys)
	rank, step := p.worker.Rank, p.step
	for key := range uint64(companyKeys) {
		var err error
		if !pushed(rank, key, step) {
			tickets[key], err = p.worker.Skip(key)
		} else {
			array := make([]byte, 4*elements(key))
			for i := range elements(key) {
				binary.LittleEndian.PutUint32(array[4*i:], uint32(value(rank, key, step, i)))
			}
			arrays[key] = array
			tickets[key], err = p.worker.PushPull(key, wire.Int32, array, array, wire.OpSum, 0)
		}
		if err != nil {
			return err
		}
	}
	for key := range uint64(companyKeys) {
		if err := p.await(tickets[key]); err != nil {
			return err
		}
		epoch := tickets[key].Epoch()
		if err := p.compare(arrays[key], key, epoch); err != nil {
			return err
		}
		name := fmt.Sprintf("key %d step %d", key, step)
		p.mu.Lock()
		if p.epochs[name] == nil {
			p.epochs[name] = map[int]int{}
		}
		if !p.dead {
			p.epochs[name][rank] = epoch
		}
		p.mu.Unlock()
	}
	return nil
}

// compare checks a sum against the values of the workers of its epoch.
func (p *program) compare(array []byte, key uint64, epoch int) error {
	workers := p.worker.Present(epoch)
	for i := 0; 4*i < len(array); i++ {
		want := int32(0)
		for _, rank := range workers {
			if pushed(rank, key, p.step) {
				want += value(rank, key, p.step, i)
			}
		}
		if got := int32(binary.LittleEndian.Uint32(array[4*i:])); got != want {
			return fmt.Errorf("key %d step %d element %d: %d, and %d of the workers %v of epoch %d", key, p.step, i, got, want, workers, epoch)
		}
	}
	return nil
}
