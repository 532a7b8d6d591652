package node

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
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

// runMember joins a worker or a server to its cluster: listen, ADD_NODE, data connections,
// start barrier. A server then waits for the end.
func (n *Node) runMember() error {
	ctx, cancel := context.WithTimeout(n.ctx, n.config.JoinTimeout)
	defer cancel()
	tr, err := n.listen()
	if err != nil {
		return err
	}
	post, err := n.register(ctx, tr.Port())
	if err != nil {
		return err
	}
	n.Office.Join(post)
	view := post.Joined() // the others may die, or be admitted, from now on, and this node from its first connection on
	me := view.Me()
	if err := n.connect(ctx, tr, view); err != nil {
		return err
	}
	for _, m := range view.Members { // of those that come later it hears
		if m.Newcomer && m.ID != me.ID {
			post.Linked(m)
		}
	}
	if !me.Recovered && !me.Newcomer { // the others have passed that barrier
		if err := n.startBarrier(ctx, post); err != nil {
			return err
		}
	}
	n.mu.Lock()
	if n.mu.state == joining {
		n.mu.state, n.mu.hasJoined = joined, true
		n.mu.began, n.mu.waited = time.Now(), n.Tickets.Waited()
		n.mu.newcomer = me.Newcomer && me.Role == cluster.RoleWorker
	}
	n.mu.Unlock()
	if post.View().Replans {
		if !me.Newcomer { // the others probe at the same time
			tr.Probe(probeBytes(post.View()))
		}
		go n.guard(func() error { n.reportCapacities(tr, post); return nil })
	}
	if n.config.Role == cluster.RoleWorker || n.config.PS {
		n.endLife(nil)
	} else {
		n.Close()
	}
	return nil
}

// listen opens the data plane's listener.
func (n *Node) listen() (*transport.Transport, error) {
	if n.config.Host == "" {
		host, err := cluster.LocalAddress(n.config.SchedulerHost)
		if err != nil {
			return nil, err
		}
		n.config.Host = host
	}
	bind := "" // all interfaces: behind NAT, other hosts use an address that this host does not have
	if ip := net.ParseIP(n.config.Host); ip != nil && ip.IsLoopback() {
		bind = n.config.Host
	}
	tr, err := transport.Listen(transport.Config{
		Host: bind, Port: n.config.DataPort, SendBuffer: n.config.SendBuffer, ReceiveBuffer: n.config.ReceiveBuffer, SharedMemory: n.config.SharedMemory, Schedule: n.config.Schedule, Trace: n.tracer, Log: n.log,
	})
	if err != nil {
		return nil, err
	}
	if err := n.setIfOpen(func() { n.mu.transport = tr }); err != nil {
		tr.Close()
		return nil, err
	}
	return tr, nil
}

// setIfOpen calls set, which stores a part of the node, unless the node was closed
// meanwhile: then the caller must close the part itself.
func (n *Node) setIfOpen(set func()) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.checkOpenLocked(); err != nil {
		return err
	}
	set()
	return nil
}

// register joins the control plane.
func (n *Node) register(ctx context.Context, dataPort int) (*cluster.Postoffice, error) {
	v, err := van.NewZMQ(n.log, n.config.longestFrame())
	if err != nil {
		return nil, err
	}
	events := cluster.Events{Lost: n.onLost, Vacated: n.onVacated, Buried: n.onBuried, Settled: n.onSettled, Recovered: n.onRecovered, Waiting: n.onWaiting, Closed: n.onClosed, Message: n.Office.Deliver, Failed: n.onControlPlaneFailed,
		Promise: n.onPrepare, Commit: n.onCommit, Abort: n.onAbort, Came: n.onCame, Admitted: n.onAdmitted, Gather: n.onGather, Meet: n.onMeet, Resumed: n.onResumed, Doing: n.onDoing, Progress: n.progress}
	post, err := cluster.Join(ctx, v, n.clusterConfig(dataPort), events)
	if err != nil {
		return nil, err
	}
	if err := n.setIfOpen(func() { n.mu.post = post }); err != nil {
		post.Close()
		return nil, err
	}
	go n.guard(func() error { n.answerAll(post); return nil })
	return post, nil
}

// longestFrame bounds the frames that this node accepts on the control plane: servers and programs of fptps.ps also receive
// tensors there, from ps-lite programs; others receive control messages alone.
func (c *Config) longestFrame() int {
	if c.PS || c.Role == cluster.RoleServer {
		return van.MaxFrame
	}
	return van.MaxMeta
}

func (n *Node) clusterConfig(dataPort int) cluster.Config {
	c := n.config
	return cluster.Config{
		Role: c.Role, SchedulerHost: c.SchedulerHost, SchedulerPort: c.SchedulerPort, Host: c.Host, Port: c.Port,
		DataPort: dataPort, Incarnation: incarnation(), Share: c.Share, Place: uint32(c.Rank + 1),
		LinkRate: c.linkRate(), Secret: c.Secret,
		Workers: c.Workers, Servers: c.Servers,
		HeartbeatInterval: c.HeartbeatInterval, HeartbeatTimeout: c.HeartbeatTimeout, Recovers: c.Recovers, Replicas: c.Replicas, MinWorkers: c.MinWorkers, MaxWorkers: c.MaxWorkers, SchedulerTimeout: c.SchedulerTimeout, RecoveryTimeout: c.RecoveryTimeout, Resend: c.Resend, Trace: n.tracer, Log: n.log,
		Attends: c.PS, PSLite: c.PS || c.Role == cluster.RoleServer, Customer: c.Customer, Customers: n.newCustomers,
	}
}

// connect makes the store, the aggregator and the data connections of this node.
func (n *Node) connect(ctx context.Context, tr *transport.Transport, view cluster.View) error {
	t, err := n.tensorsOf(tr, view)
	if err != nil {
		return err
	}
	if err := n.setIfOpen(func() { n.mu.worker, n.mu.handlers, n.mu.view = t.worker, t.lanes, view }); err != nil {
		return err
	}
	rank := view.Rank()
	n.logRank.Store(&rank)
	dial, accept := connections(view, t.sums)
	handlers := []transport.Handler{plane{t.lanes[0], n.Office}} // lane 0 carries messages of apps too
	for _, h := range t.lanes[1:] {
		handlers = append(handlers, h)
	}
	self := transport.Identity{ID: uint32(view.Self), Incarnation: view.Me().Incarnation, Token: view.Token}
	n.recordIncarnations(view.Members...)
	n.Office.Link(tr, slices.Concat(dial, accept)...) // before any of them can send
	endure(tr, view)
	tr.Start(self, incarnations(view, accept), payloadRate(view.Me().LinkRate), handlers...)
	for i := range handlers {
		if err := n.connectLane(ctx, tr.Lane(i), view, dial, accept); err != nil {
			return err
		}
		dial = slices.DeleteFunc(dial, func(id int) bool { return id == wire.SchedulerID }) // the scheduler has one lane
	}
	close(n.connected)
	for _, m := range view.Members {
		if m.Vacant {
			n.onVacated(m.ID, "it died before this node joined")
		}
	}
	return nil
}

// recordIncarnations records the incarnations that this node is about to connect to.
func (n *Node) recordIncarnations(members ...cluster.Member) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range members {
		n.mu.incarnations[m.ID] = m.Incarnation
	}
}

// incarnationOf is the incarnation of the latest data connection with a node.
func (n *Node) incarnationOf(id int) uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.incarnations[id]
}

// sleep waits for d; false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// tensors holds a node's parts that handle tensors.
type tensors struct {
	worker *kv.Worker
	sums   []uint32      // nodes that sum, or may later
	lanes  []*kv.Handler // of the data plane
}

// tensorsOf makes the tensors of this node. In a cluster of fptps.ps, or with ps-lite programs in it, there are no tensors; the
// data plane then carries the messages between fptps's own nodes.
func (n *Node) tensorsOf(tr *transport.Transport, view cluster.View) (*tensors, error) {
	if view.PSLite() || view.Classic() {
		if n.config.Deterministic {
			return nil, fault.New(fault.Config, "FPTPS_DETERMINISTIC=1, but in this cluster servers add up the pushes of ps-lite's classes in the order of their arrival: unset it")
		}
		if n.config.Role == cluster.RoleWorker && !n.config.PS {
			return nil, fault.New(fault.Config, "programs of dmlc ps-lite are in this cluster: use fptps.ps.KVWorker, which speaks to them")
		}
		t := &tensors{lanes: []*kv.Handler{n.handler(view)}}
		t.sums = idsOf(view.Servers())
		return t, nil
	}
	if n.config.Recovers && !view.Recovers {
		n.log.Warn("FPTPS_RECOVERY=1 has no effect here: the scheduler has to run with it")
	}
	shares, err := planOf(view)
	if err != nil {
		return nil, err
	}
	if err := tr.Divide(lanesOf(view)); err != nil {
		return nil, err
	}
	lanes := make([]kv.DataPlane, lanesOf(view))
	for i := range lanes {
		lanes[i] = tr.Lane(i)
	}
	t := &tensors{sums: shares.Aggregators()}
	if view.Recovers && n.config.WholeSums {
		return nil, fault.New(fault.Config, "FPTPS_SCHEDULE=fifo in a cluster with FPTPS_RECOVERY=1: no sum may wait for the whole tensor then")
	}
	if view.Replans || view.Recovers {
		t.sums = idsOf(append(view.Servers(), view.Workers()...))
	}
	if n.config.Role == cluster.RoleWorker {
		t.worker = n.newWorker(view, shares, t.sums, lanes)
		weigh(tr, view, shares)
	}
	if view.Recovers { // so may newcomers
		t.sums = idsOf(view.Members[:len(view.Members)-1])
	}
	t.lanes = n.handlers(view, t, lanes)
	if view.Replicates {
		n.backUp(t, view)
	}
	return t, nil
}

// planOf is the first plan. A newcomer learns the others' when it is admitted.
func planOf(view cluster.View) (*plan.Plan, error) {
	if view.Me().Newcomer {
		return plan.New([]plan.Share{{Node: uint32(view.Self), Share: 1}})
	}
	return plan.New(view.Shares())
}

func idsOf(members []cluster.Member) []uint32 {
	ids := make([]uint32, len(members))
	for i, m := range members {
		ids[i] = uint32(m.ID)
	}
	return ids
}

// handler makes a handler without worker and aggregator.
func (n *Node) handler(view cluster.View) *kv.Handler {
	return &kv.Handler{Self: uint32(view.Self), OnLost: n.onConnectionLost, OnFailed: n.onDataPlaneFailed}
}

// handlers makes a handler for each lane. A packet has the same lane on all nodes, so each
// lane sums its own packets.
func (n *Node) handlers(view cluster.View, t *tensors, lanes []kv.DataPlane) []*kv.Handler {
	var all []*kv.Handler
	for _, lane := range lanes {
		h := n.handler(view)
		h.Worker = t.worker
		if slices.Contains(t.sums, h.Self) {
			h.Aggregator = kv.NewAggregator(uint32(view.Self), aggregate.NewMembersAt(view.Epoch, ranksOf(view.Workers())), lane, n.config.WholeSums, n.log)
			h.Aggregator.Trace = n.tracer
			if view.Recovers {
				h.Aggregator.Recover()
			}
		}
		all = append(all, h)
	}
	return all
}

// connectLane makes the connections of one lane.
func (n *Node) connectLane(ctx context.Context, lane *transport.Transport, view cluster.View, dial, accept []int) error {
	if view.Me().Recovered || view.Me().Newcomer {
		return n.connectLaneAs(ctx, lane, view, dial, accept)
	}
	for _, id := range dial {
		m := view.Member(id)
		if err := lane.Dial(ctx, uint32(id), m.Incarnation, dataAddress(m)); err != nil {
			return err
		}
	}
	return lane.Await(ctx, toUint32(slices.Concat(dial, accept)))
}

// newWorker makes the key-value store of a worker.
func (n *Node) newWorker(view cluster.View, shares *plan.Plan, aggregators []uint32, lanes []kv.DataPlane) *kv.Worker {
	create := kv.NewWorker
	if view.Me().Newcomer {
		create = kv.NewNewcomer
	}
	return create(kv.WorkerConfig{
		Rank: view.Rank(), Workers: ranksOf(view.Workers()), Epoch: view.Epoch, Plan: shares, Lanes: lanes, Tickets: n.Tickets, Log: n.log, Deterministic: n.config.Deterministic,
		Recovers: view.Recovers, Aggregators: aggregators, Stateful: func(what string) { n.post().Stateful(what) }, Stalled: n.onStalled, Observe: n.latency.Observer(), Trace: n.tracer,
		Declare: func(list []kv.Declaration) {
			declared := make([]cluster.Declaration, len(list))
			for i, d := range list {
				declared[i] = cluster.Declaration(d)
			}
			n.post().Declare(declared)
		},
		Name: func(node uint32) string { return cluster.Name(int(node)) },
	})
}

// connections returns the ids of the nodes to dial, and of those that dial this node. Every node has a
// data connection with the scheduler, whose end shows a death; each worker has one with
// every server and aggregator, and in a cluster with replicas servers have them with each other. A worker dials a server, and of two workers
// or servers the one of higher rank dials. Programs of ps-lite have none.
func connections(view cluster.View, aggregators []uint32) (dial, accept []int) {
	me := view.Me()
	for _, m := range view.Members {
		switch {
		case m.ID == me.ID || m.PSLite() || m.Vacant:
		case m.Role == cluster.RoleScheduler:
			dial = append(dial, m.ID)
		case me.Role == cluster.RoleScheduler:
			accept = append(accept, m.ID)
		case !exchangesTensors(me, m, aggregators) && !workerAndServer(me, m) && !view.Replicates:
		case dials(me, m):
			dial = append(dial, m.ID)
		default:
			accept = append(accept, m.ID)
		}
	}
	slices.Sort(dial) // the scheduler first, so that it notices a death while the node dials the others
	return dial, accept
}

// dials reports whether of two nodes with a connection the first one dials. The scheduler never does.
func dials(me, m cluster.Member) bool {
	if me.Role != m.Role {
		return me.Role == cluster.RoleWorker
	}
	return me.ID > m.ID
}

// exchangesTensors reports whether two nodes exchange tensors: one is a worker, the other
// sums.
func exchangesTensors(a, b cluster.Member, aggregators []uint32) bool {
	works := func(m cluster.Member) bool { return m.Role == cluster.RoleWorker }
	sums := func(m cluster.Member) bool { return slices.Contains(aggregators, uint32(m.ID)) }
	return a.ID != b.ID && (works(a) && sums(b) || works(b) && sums(a))
}

// workerAndServer reports whether two nodes are a worker and a server, which exchange messages of apps.
func workerAndServer(a, b cluster.Member) bool {
	return a.Role == cluster.RoleWorker && b.Role == cluster.RoleServer || a.Role == cluster.RoleServer && b.Role == cluster.RoleWorker
}

// endure has broken connections made again, in a cluster that goes on after deaths: there a node that is taken for dead is lost for good.
func endure(tr *transport.Transport, view cluster.View) {
	if !view.Recovers {
		return
	}
	addresses := map[uint32]string{}
	for _, m := range view.Members {
		addresses[uint32(m.ID)] = dataAddress(m)
	}
	tr.Endure(addresses)
}

func incarnations(view cluster.View, ids []int) map[uint32]uint64 {
	all := map[uint32]uint64{}
	for _, id := range ids {
		all[uint32(id)] = view.Member(id).Incarnation
	}
	return all
}

func ranksOf(workers []cluster.Member) (ranks []int) {
	for _, m := range workers {
		ranks = append(ranks, m.Rank())
	}
	return ranks
}

func toUint32(ids []int) []uint32 {
	out := make([]uint32, len(ids))
	for i, id := range ids {
		out[i] = uint32(id)
	}
	return out
}

// startBarrier waits until every node has all its connections.
func (n *Node) startBarrier(ctx context.Context, post *cluster.Postoffice) error {
	done := make(chan error, len(post.Customers()))
	for _, customer := range post.Customers() {
		post.Barrier(customer, cluster.AllGroup, func(err error) { done <- err }) // all of them end at the same time
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		if err := n.checkOpen(); err != nil {
			return err
		}
		text := "the start barrier: not every node has its data connections after " + n.config.JoinTimeout.String()
		missing := n.missingFrom("barrier")
		if len(missing) > 0 {
			text += "; missing: " + strings.Join(missing, ", ")
		}
		return fault.New(fault.Timeout, "%s. Check that the nodes reach each other's addresses (DMLC_NODE_HOST, DMLC_INTERFACE)", text).With(fault.About{Missing: missing})
	}
}

// onLost handles the scheduler's verdict that a node is dead.
func (n *Node) onLost(id int, why string) {
	n.noteDead(id)
	go n.guard(func() error {
		return fault.New(fault.NodeLost, "%s was lost: %s. The cluster cannot go on without it", cluster.Name(id), why).With(wire.AboutNode(id))
	})
}

func (n *Node) noteDead(id int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.dead = append(n.mu.dead, id)
}

// onConnectionLost handles the end of a data connection.
func (n *Node) onConnectionLost(node uint32, err error) {
	if err == nil || n.isDead(int(node)) {
		return
	}
	if post := n.post(); post != nil {
		post.Suspect(int(node), n.incarnationOf(int(node)), fmt.Sprint(err))
	}
}

// onControlPlaneFailed handles a failure of this node's control plane.
func (n *Node) onControlPlaneFailed(err error) { go n.guard(func() error { return err }) }

// onOfficeFailed handles the failure of a thread that serves messages.
func (n *Node) onOfficeFailed(err error) { go n.guard(func() error { return err }) }

// onDataPlaneFailed handles a failure of this node's data plane.
func (n *Node) onDataPlaneFailed(err error) {
	go n.guard(func() error { return fault.New(fault.Internal, "the data plane failed: %v", err) })
}
