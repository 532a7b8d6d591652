package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing/synctest"
	"time"

	"fptps/gocore/aggregate"
	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/plan"
	"fptps/gocore/transport"
	"fptps/gocore/van"
	"fptps/gocore/wire"
)

// actor is a node of a company. Its fields are under the company's lock once it is ready.
type actor struct {
	*company
	role       cluster.Role
	number     int // from 1, in the order in which they were started
	van        van.Van
	post       *cluster.Postoffice
	worker     *kv.Worker // nil: it is a server
	aggregator *kv.Aggregator
	ready      chan struct{} // closed when these are there
	chain      chan func()   // what follows from verdicts and admissions, in order
	cut        map[uint32]bool
	points     points
	backup     int  // 0: none, or there are no replicas
	whole      int  // the backup that has everything, as the scheduler knows; 0: none
	burials    int  // so far
	id         int  // of the node
	epoch      int  // the last one that has begun here
	late       bool // it has come when the others had begun, and takes no part yet
	reached    int  // the last step with a barrier
	began      bool // it is past the start, and may die
	full       bool // it has the state of the training
	attached   bool // it takes packets
	dead       bool
	finished   bool
}

func (a *actor) isDead() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.dead
}

// isThere reports whether a newcomer takes packets, or never will.
func (c *company) isThere(id int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.actors {
		if a.id == id {
			return a.attached || a.dead
		}
	}
	return c.over
}

func (a *actor) isLate() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.late
}

func (a *actor) isOver() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.over
}

// live is the life of a node.
func (a *actor) live(config cluster.Config) error {
	ctx, cancel := context.WithTimeout(a.joining, time.Minute)
	defer cancel()
	post, err := cluster.Join(ctx, a.van, config, a.events())
	if a.isOver() || fault.CodeOf(err) == fault.Connect && strings.Contains(err.Error(), "up to FPTPS_MAX_WORKERS") {
		if err == nil {
			post.Close()
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer post.Close()
	a.pause(10) // meanwhile it hears of deaths and of others that come
	view := post.Joined()
	members := aggregate.NewMembersAt(view.Epoch, ranksOf(view.Workers()))
	plane := a.data.Join(uint32(view.Self))
	shares, err := planOf(view)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.late = view.Me().Newcomer
	a.post, a.cut, a.id = post, map[uint32]bool{}, view.Self
	a.aggregator = kv.NewAggregator(uint32(view.Self), members, plane, false, a.config.Log)
	a.aggregator.Recover()
	if a.role == cluster.RoleWorker {
		create := kv.NewWorker
		if view.Me().Newcomer {
			create = kv.NewNewcomer
		}
		a.worker = create(kv.WorkerConfig{
			Rank: view.Rank(), Workers: ranksOf(view.Workers()), Epoch: view.Epoch, Plan: shares, Lanes: []kv.DataPlane{plane}, Tickets: kv.NewTickets(),
			Log: a.config.Log, Recovers: true, Aggregators: idsOf(append(view.Servers(), view.Workers()...)),
			Declare: func(list []kv.Declaration) {
				for _, d := range list {
					post.Declare([]cluster.Declaration{cluster.Declaration(d)})
				}
			},
			Name: func(node uint32) string { return cluster.Name(int(node)) }, Stateful: post.Stateful,
		})
	}
	if view.Replicates {
		if !view.Me().Newcomer {
			a.backup = view.BackupFor(view.Self)
			a.whole = a.backup
		}
		a.aggregator.BackUp(uint32(a.backup), a.backedUp)
	}
	plane.Attach(&door{a, &kv.Handler{
		Self: uint32(view.Self), Worker: a.worker, Aggregator: a.aggregator, OnLost: func(uint32, error) {}, OnFailed: func(err error) { a.t.Errorf("%s: %v", cluster.Name(view.Self), err) },
	}})
	a.attached = true
	a.mu.Unlock()
	close(a.ready)
	for _, m := range view.Members {
		if m.Newcomer && m.ID != view.Self {
			post.Linked(m)
		}
	}
	a.members.Go(func() {
		for do := range a.chain {
			do()
		}
	})
	defer close(a.chain)
	if !view.Me().Newcomer {
		if err := a.barrier(func(done func(error)) { post.Barrier(0, cluster.AllGroup, done) }); err != nil {
			return err
		}
	}
	a.mu.Lock()
	a.began, a.full = true, a.worker != nil && !view.Me().Newcomer
	a.mu.Unlock()
	last := wire.Rounds{}
	if a.worker != nil {
		p := &program{actor: a, newcomer: view.Me().Newcomer}
		if err := p.train(); err != nil {
			if p.newcomer { // the others have ended the training, or nobody had its state
				<-post.Leave("it was not admitted: " + err.Error())
				return nil
			}
			return err
		}
		last = a.worker.Rounds()
		a.mu.Lock()
		a.finished, a.over = true, true
		a.end()
		a.mu.Unlock()
	}
	err = a.barrier(func(done func(error)) { post.End(last, done) })
	a.waits <- struct{}{} // one at a time; a mutex would not count as a wait
	synctest.Wait()       // what was queued before is handled
	<-a.waits
	return err
}

func (a *actor) barrier(enter func(done func(error))) error {
	done := make(chan error, 1)
	enter(func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-time.After(longest):
		return errors.New("waits in a barrier for ever")
	}
}

// door drops the packets of dead nodes, and of nodes whose connections have ended; of those that die it drops some.
type door struct {
	*actor
	handler *kv.Handler
}

func (d *door) closed(peer uint32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dead || d.cut[peer]
}

func (d *door) Place(peer uint32, h *wire.Header) (transport.Destination, error) {
	if d.closed(peer) {
		return transport.Destination{Bytes: make([]byte, h.WireLen)}, nil
	}
	return d.handler.Place(peer, h)
}

func (d *door) Arrived(peer uint32, h *wire.Header, l transport.Destination) error {
	if d.closed(peer) {
		if l.Owner != nil {
			l.Owner.Release()
		}
		return nil
	}
	if err := d.handler.Arrived(peer, h, l); err != nil {
		return fmt.Errorf("%s, a packet of %s: %w", cluster.Name(d.post.View().Self), cluster.Name(int(peer)), err)
	}
	return nil
}

func (d *door) Local(h *wire.Header, payload []byte) error { return d.handler.Local(h, payload) }
func (d *door) Lost(peer uint32, err error)                { d.handler.Lost(peer, err) }
func (d *door) Tick(now time.Time)                         { d.handler.Tick(now) }
func (d *door) Failed(err error)                           { d.handler.Failed(err) }

// inTurn does something after the verdicts and admissions before it, once the node is ready.
func (a *actor) inTurn(do func()) {
	a.chain <- func() {
		<-a.ready
		a.pause(3)
		do()
	}
}

// events are what the other files of this package do on verdicts and admissions, without sockets.
func (a *actor) events() cluster.Events {
	withWorker := func(do func(w *kv.Worker)) {
		select {
		case <-a.ready:
			if a.worker != nil {
				do(a.worker)
			}
		default:
		}
	}
	return cluster.Events{
		Lost: func(id int, why string) {
			a.loses(why)
			go withWorker(func(w *kv.Worker) { w.Fail(fmt.Errorf("%s was lost: %s", cluster.Name(id), why)) })
		},
		Buried: func(b cluster.Burial) {
			id, epoch := b.ID, b.Epoch
			a.note(a, "%s is buried, epoch %d, heir %s", cluster.Name(id), epoch, cluster.Name(b.Heir))
			a.mu.Lock()
			if a.cut != nil {
				a.cut[uint32(id)] = true
			}
			a.mu.Unlock()
			if epoch > 0 {
				withWorker(func(w *kv.Worker) { w.Freeze(uint32(id)) })
			}
			a.inTurn(func() {
				a.note(a, "buries %s", cluster.Name(id))
				a.mu.Lock()
				a.cut[uint32(id)] = true
				a.mu.Unlock()
				if epoch > 0 {
					<-a.aggregator.Bury(wire.RankOfWorker(id))
					a.succeed(b)
				}
				if a.worker != nil {
					a.worker.Bury(kv.Death{Node: uint32(id), Heir: uint32(b.Heir), Settles: epoch > 0})
				}
				a.survived(epoch)
			})
		},
		Settled: func(complete wire.Rounds) {
			a.inTurn(func() {
				a.note(a, "settled %v %v", complete.Counts, complete.Last)
				if err := a.worker.Settle(complete); err != nil {
					a.t.Error(err)
				}
				if !a.worker.Meeting() {
					a.mu.Lock()
					stood := a.points.admitted()
					a.mu.Unlock()
					a.finish(stood)
				}
			})
		},
		Came: func(m cluster.Member) {
			a.members.Go(func() {
				<-a.ready
				a.pause(5)
				for !a.isThere(m.ID) {
					time.Sleep(time.Millisecond)
				}
				a.post.Linked(m)
			})
		},
		Admitted: func(m cluster.Member, epoch int, points uint64) {
			a.inTurn(func() {
				a.note(a, "admits %s, epoch %d", cluster.Name(m.ID), epoch)
				if a.epoch = max(a.epoch, epoch); a.backup == 0 && !a.post.View().Me().Newcomer {
					a.succeed(cluster.Burial{})
				}
				rank := -1
				if m.Role == cluster.RoleWorker {
					rank = m.Rank()
					<-a.aggregator.Join(rank)
				}
				if a.worker != nil {
					a.worker.Join(uint32(m.ID), rank)
				}
				if m.ID == a.post.View().Self {
					a.mu.Lock()
					a.points.passed = points
					a.mu.Unlock()
				}
				a.survived(epoch)
			})
		},
		Gather: func() uint64 {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.points.gather()
		},
		Meet: func(point uint64) {
			a.mu.Lock()
			waited, stood := a.points.meetAt(point)
			a.mu.Unlock()
			a.finish(waited)
			if stood != nil {
				a.worker.Depart()
				a.finish(stood)
			}
		},
		Promise: func() (begun wire.Rounds) {
			withWorker(func(w *kv.Worker) { begun = w.Promise() })
			return begun
		},
		Commit: func(number uint32, p *plan.Plan, first wire.Rounds) {
			a.note(a, "plan %d %v from rounds %v %v", number, p.Shares(), first.Counts, first.Last)
			withWorker(func(w *kv.Worker) { w.Commit(number, p, first) })
		},
		Abort: func() { withWorker((*kv.Worker).Abort) },
		Closed: func(id int, last wire.Rounds) {
			withWorker(func(w *kv.Worker) {
				if err := w.Closed(id, last); err != nil {
					a.t.Error(err)
				}
			})
		},
		Resumed: func(m cluster.Member) { a.note(a, "obeys scheduler %d", m.Incarnation) },
		Failed:  func(err error) { a.t.Error(err) },
	}
}

// succeed is what Node.succeed does. Only the chain calls it.
func (a *actor) succeed(b cluster.Burial) {
	view := a.post.View()
	a.epoch = max(a.epoch, b.Epoch)
	a.mu.Lock()
	a.burials++
	if b.ID != 0 && (b.Heir == view.Self || a.whole == b.ID) {
		a.whole = 0
	}
	if b.Heir == view.Self {
		delete(a.orphans, b.ID)
	}
	a.mu.Unlock()
	if a.backup == b.ID || a.backup == 0 {
		a.backup = view.BackupFor(view.Self)
	}
	if view.Replicates {
		<-a.aggregator.Succeed(uint32(b.ID), b.Heir == view.Self, uint32(a.backup), a.epoch)
	}
}

func (a *actor) backedUp(node uint32, epoch int) {
	a.post.BackedUp(int(node), epoch)
	a.mu.Lock()
	burials := a.burials
	a.mu.Unlock()
	a.members.Go(func() {
		time.Sleep(20 * time.Millisecond) // until the scheduler has heard it
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.burials == burials {
			a.whole = int(node)
		}
	})
}

func (a *actor) survived(epoch int) {
	if epoch == 0 {
		return
	}
	complete, known := wire.Rounds{}, true
	if a.worker != nil {
		complete, known = a.worker.Complete()
	}
	a.note(a, "has settled epoch %d: %v %v %v", epoch, complete.Counts, complete.Last, known)
	a.post.Survived(epoch, complete, !known)
}

func (a *actor) finish(ticket *kv.Ticket) {
	if ticket != nil {
		a.worker.Tickets.Finish(ticket, nil)
	}
}
