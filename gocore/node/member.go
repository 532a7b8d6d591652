package node

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/plan"
	"fptps/gocore/transport"
	"fptps/gocore/van"
	"fptps/gocore/wire"
)

// runMember brings a worker or a server into its cluster: listen, ADD_NODE,
// data connections, the start barrier. A server then waits for the end.
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
	if err := n.connect(ctx, tr, post.View()); err != nil {
		return err
	}
	if !post.View().Me().Recovered { // as in ps-lite: the others have had that barrier
		if err := n.allHere(ctx, post); err != nil {
			return err
		}
	}
	n.mu.Lock()
	if n.mu.state == joining {
		n.mu.state, n.mu.hasJoined = joined, true
	}
	n.mu.Unlock()
	if n.config.Role == cluster.RoleWorker || n.config.PS {
		n.endLife(nil)
	} else {
		n.Close(true)
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
	bind := "" // another host may know this one by an address that is not its own
	if ip := net.ParseIP(n.config.Host); ip != nil && ip.IsLoopback() {
		bind = n.config.Host
	}
	tr, err := transport.Listen(transport.Config{
		Host: bind, SendBuffer: n.config.SendBuffer, ReceiveBuffer: n.config.ReceiveBuffer, Share: n.config.Van, Schedule: n.config.Schedule, Log: n.log,
	})
	if err != nil {
		return nil, err
	}
	if err := n.own(func() { n.mu.transport = tr }); err != nil {
		tr.Close()
		return nil, err
	}
	return tr, nil
}

// own stores a part of the node, unless the node has ended meanwhile: then nobody
// but the caller would ever close it.
func (n *Node) own(store func()) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.wellLocked(); err != nil {
		return err
	}
	store()
	return nil
}

// register joins the control plane.
func (n *Node) register(ctx context.Context, dataPort int) (*cluster.Postoffice, error) {
	v, err := van.NewZMQ(n.log)
	if err != nil {
		return nil, err
	}
	events := cluster.Events{Lost: n.lost, Vacated: n.vacated, Recovered: n.recovered, Waiting: n.waiting, Message: n.Office.Deliver, Failed: n.controlPlaneFailed}
	post, err := cluster.Join(ctx, v, n.clusterConfig(dataPort), events)
	if err != nil {
		return nil, err
	}
	if err := n.own(func() { n.mu.post = post }); err != nil {
		post.Close()
		return nil, err
	}
	return post, nil
}

func (n *Node) clusterConfig(dataPort int) cluster.Config {
	c := n.config
	return cluster.Config{
		Role: c.Role, SchedulerHost: c.SchedulerHost, SchedulerPort: c.SchedulerPort, Host: c.Host, Port: c.Port,
		DataPort: dataPort, Incarnation: incarnation(), Share: uint32(c.Share), Place: uint32(c.Rank + 1),
		LinkRate: c.linkRate(), Secret: c.Secret,
		Workers: c.Workers, Servers: c.Servers,
		HeartbeatInterval: c.HeartbeatInterval, HeartbeatTimeout: c.HeartbeatTimeout, RecoveryTimeout: c.RecoveryTimeout, Log: n.log,
		Attends: c.PS, PSLite: c.PS || c.Role == cluster.RoleServer, Customer: c.Customer, Customers: n.others,
	}
}

// connect builds what this node does with data, and its connections.
func (n *Node) connect(ctx context.Context, tr *transport.Transport, view cluster.View) error {
	t, err := n.tensorsOf(tr, view)
	if err != nil {
		return err
	}
	if err := n.own(func() { n.mu.worker, n.mu.view = t.worker, view }); err != nil {
		return err
	}
	dial, accept := connections(view, t.aggregators)
	handlers := []transport.Handler{plane{t.lanes[0], n.Office}} // messages have the first lane
	for _, h := range t.lanes[1:] {
		handlers = append(handlers, h)
	}
	self := transport.Identity{ID: uint32(view.Self), Incarnation: view.Me().Incarnation, Token: view.Token}
	n.Office.Link(tr, slices.Concat(dial, accept)...) // before any of them can send
	tr.Start(self, incarnations(view, accept), ratesOf(view, t.aggregators), handlers...)
	for i := range handlers {
		if err := n.meet(ctx, tr.Lane(i), view, dial, accept); err != nil {
			return err
		}
		dial = slices.DeleteFunc(dial, func(id int) bool { return id == wire.SchedulerID }) // which has one lane
	}
	close(n.connected)
	for _, m := range view.Members {
		if m.Vacant {
			n.vacated(m.ID, "it died before this node came")
		}
	}
	return nil
}

// sleep tells whether ctx lasts so long.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// tensors is what a node does with them.
type tensors struct {
	worker      *kv.Worker
	aggregators []uint32      // the nodes that values are sent to
	lanes       []*kv.Handler // of the data plane
}

// tensorsOf makes that of this node. Where all nodes take part as programs of ps-lite do, or one is such a program, no
// tensors travel; messages do, between the nodes that are fptps's.
func (n *Node) tensorsOf(tr *transport.Transport, view cluster.View) (*tensors, error) {
	if view.PSLite() || view.Classic() {
		if n.config.Role == cluster.RoleWorker && !n.config.PS {
			return nil, fault.New(fault.Config, "programs of dmlc ps-lite are in this cluster: use fptps.ps.KVWorker, which speaks to them")
		}
		t := &tensors{lanes: []*kv.Handler{n.handler(view)}}
		for _, m := range view.Servers() {
			t.aggregators = append(t.aggregators, uint32(m.ID))
		}
		return t, nil
	}
	shares, err := sharesOf(view)
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
	t := &tensors{aggregators: shares.Aggregators()}
	if n.config.Role == cluster.RoleWorker {
		t.worker = n.newWorker(view, shares, lanes)
	}
	t.lanes = n.handlers(view, t, lanes)
	return t, nil
}

// handler is one that takes no packets.
func (n *Node) handler(view cluster.View) *kv.Handler {
	return &kv.Handler{Self: uint32(view.Self), OnLost: n.connectionLost, OnFailed: n.dataPlaneFailed}
}

// handlers is what this node does with packets, lane by lane: a packet has its lane on
// all nodes, so that each lane sums its own.
func (n *Node) handlers(view cluster.View, t *tensors, lanes []kv.DataPlane) []*kv.Handler {
	workers := []uint32{}
	for _, m := range view.Workers() {
		workers = append(workers, uint32(m.ID))
	}
	var all []*kv.Handler
	for _, lane := range lanes {
		h := n.handler(view)
		h.Worker = t.worker
		if slices.Contains(t.aggregators, h.Self) {
			h.Aggregator = kv.NewAggregator(workers, lane, n.config.WholeSums, n.log)
		}
		all = append(all, h)
	}
	return all
}

// meet makes the connections of one lane.
func (n *Node) meet(ctx context.Context, lane *transport.Transport, view cluster.View, dial, accept []int) error {
	for _, id := range dial {
		m := view.Member(id)
		address := net.JoinHostPort(m.Host, strconv.Itoa(m.DataPort))
		err := lane.Dial(ctx, uint32(id), m.Incarnation, address)
		for err != nil && view.Me().Recovered && sleep(ctx, retryTime) { // who has not heard of this node yet refuses it
			err = lane.Dial(ctx, uint32(id), m.Incarnation, address)
		}
		if err != nil {
			return err
		}
	}
	return lane.Await(ctx, toUint32(slices.Concat(dial, accept)))
}

// newWorker makes the key-value store of a worker.
func (n *Node) newWorker(view cluster.View, shares *plan.Plan, lanes []kv.DataPlane) *kv.Worker {
	return kv.NewWorker(kv.WorkerConfig{
		Rank: view.Rank(), Plan: shares, Lanes: lanes, Tickets: n.Tickets, Log: n.log,
		Declare: n.post().Declare,
		Name:    func(node uint32) string { return cluster.Name(int(node)) },
	})
}

// sharesOf is the plan that every node makes of the members' shares, in the order of their ids.
func sharesOf(view cluster.View) (*plan.Plan, error) {
	var shares []plan.Share
	for _, m := range view.Members {
		if m.Role != cluster.RoleScheduler {
			shares = append(shares, plan.Share{Node: uint32(m.ID), Share: m.Share})
		}
	}
	slices.SortFunc(shares, func(a, b plan.Share) int { return int(a.Node) - int(b.Node) })
	return plan.New(1, shares)
}

// connections says whom this node has data connections with: whom it dials, and
// who dials it. Every node has one with the scheduler, whose end is the news of a
// death; each worker has one with every server and aggregator. Of a pair the worker dials
// the server, and the worker of higher rank dials the other worker. Programs of ps-lite have none.
func connections(view cluster.View, aggregators []uint32) (dial, accept []int) {
	me := view.Me()
	for _, m := range view.Members {
		switch {
		case m.ID == me.ID || m.PSLite() || m.Vacant:
		case m.Role == cluster.RoleScheduler:
			dial = append(dial, m.ID)
		case me.Role == cluster.RoleScheduler:
			accept = append(accept, m.ID)
		case !exchange(me, m, aggregators) && !workerAndServer(me, m):
		case me.Role == cluster.RoleWorker && (m.Role == cluster.RoleServer || me.ID > m.ID):
			dial = append(dial, m.ID)
		default:
			accept = append(accept, m.ID)
		}
	}
	slices.Sort(dial) // the scheduler first: it is to know who dies while it dials the others
	return dial, accept
}

// exchange tells whether values travel between two nodes: one of them is a worker
// and the other sums.
func exchange(a, b cluster.Member, aggregators []uint32) bool {
	works := func(m cluster.Member) bool { return m.Role == cluster.RoleWorker }
	sums := func(m cluster.Member) bool { return slices.Contains(aggregators, uint32(m.ID)) }
	return a.ID != b.ID && (works(a) && sums(b) || works(b) && sums(a))
}

// workerAndServer tells whether two nodes are that: applications' messages travel between them.
func workerAndServer(a, b cluster.Member) bool {
	return a.Role == cluster.RoleWorker && b.Role == cluster.RoleServer || a.Role == cluster.RoleServer && b.Role == cluster.RoleWorker
}

func incarnations(view cluster.View, ids []int) map[uint32]uint64 {
	all := map[uint32]uint64{}
	for _, id := range ids {
		all[uint32(id)] = view.Member(id).Incarnation
	}
	return all
}

func toUint32(ids []int) []uint32 {
	out := make([]uint32, len(ids))
	for i, id := range ids {
		out[i] = uint32(id)
	}
	return out
}

// allHere is the start barrier: every node has all its connections.
func (n *Node) allHere(ctx context.Context, post *cluster.Postoffice) error {
	done := make(chan error, len(post.Customers()))
	for _, customer := range post.Customers() {
		post.Barrier(customer, cluster.AllGroup, func(err error) { done <- err }) // all end together
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		if err := n.well(); err != nil {
			return err
		}
		text := "the start barrier: not every node has its data connections after " + n.config.JoinTimeout.String()
		if missing := n.missing("barrier"); missing != "" {
			text += "; missing: " + missing
		}
		return fault.New(fault.Timeout, "%s. Check that the nodes reach each other's addresses (DMLC_NODE_HOST, DMLC_INTERFACE)", text)
	}
}

// lost takes the scheduler's verdict that a node is dead.
func (n *Node) lost(id int, why string) {
	n.noteDead(id)
	go n.guard(func() error {
		return fault.New(fault.NodeLost, "%s was lost: %s. The cluster cannot go on without it", cluster.Name(id), why)
	})
}

func (n *Node) noteDead(id int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.dead = append(n.mu.dead, id)
}

// connectionLost takes the news that a data connection ended.
func (n *Node) connectionLost(node uint32, err error) {
	if err == nil || n.isDead(int(node)) {
		return
	}
	if post := n.post(); post != nil {
		post.Suspect(int(node), fmt.Sprint(err))
	}
}

// controlPlaneFailed takes the news that this node's control plane broke.
func (n *Node) controlPlaneFailed(err error) { go n.guard(func() error { return err }) }

// dataPlaneFailed takes the news that this node's own data plane broke.
func (n *Node) dataPlaneFailed(err error) {
	go n.guard(func() error { return fault.New(fault.Internal, "the data plane failed: %v", err) })
}
