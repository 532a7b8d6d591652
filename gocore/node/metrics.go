package node

import (
	"net"
	"strconv"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/metrics"
)

// serveMetrics serves this node's metrics, if asked for, until it closes.
func (n *Node) serveMetrics() error {
	port := n.config.MetricsPort
	if port < 0 {
		return nil
	}
	source := metrics.Source{Node: n.figures, Address: n.metricsAddress}
	scheduler := n.config.Role == cluster.RoleScheduler
	switch {
	case scheduler:
		source.Cluster = n.Status
	case n.config.Role == cluster.RoleWorker:
		n.latency = metrics.NewLatency()
		source.Latency = n.latency
	}
	if port > 0 && !scheduler && !n.config.Alone() {
		port++ // the first one is for a scheduler on this host
	}
	server, err := metrics.Serve(n.config.MetricsHost, port, scheduler, source)
	if err != nil {
		return err
	}
	if err := n.setIfOpen(func() { n.mu.metrics = server }); err != nil {
		server.Close()
		return err
	}
	n.log.Info("metrics are at http://" + n.metricsAddress() + "/metrics")
	return nil
}

// metricsAddress is where other hosts find this node's metrics, host:port; "" if nowhere.
func (n *Node) metricsAddress() string {
	n.mu.Lock()
	server := n.mu.metrics
	n.mu.Unlock()
	if server == nil {
		return ""
	}
	address := server.Address()
	host := address.IP.String()
	if address.IP.IsUnspecified() && n.config.Host != "" {
		host = n.config.Host
	}
	return net.JoinHostPort(host, strconv.Itoa(address.Port))
}

// figures are what this node's metrics show now.
func (n *Node) figures() metrics.Node {
	n.mu.Lock()
	worker, tr, view, joined, post, scheduler := n.mu.worker, n.mu.transport, n.mu.view, n.mu.hasJoined, n.mu.post, n.mu.scheduler
	n.mu.Unlock()
	f := metrics.Node{Role: n.config.Role.String(), Waited: n.Tickets.Waited()}
	switch {
	case joined && n.config.Alone():
		f.Name = "worker 0"
	case joined:
		f.Name, f.Rank = cluster.Name(view.Self), view.Rank()
	}
	if worker != nil {
		stats := worker.Stats()
		f.Worker, f.Stalled = &stats, worker.Delay(time.Now()).For
	}
	if tr != nil {
		f.Data, f.Traffic, f.Queued = tr.Stats(), tr.Traffic(), tr.Queued()
		f.Up, f.Down = tr.LinkRates()
		if rate := n.config.linkRate(); rate > 0 {
			f.Stated = payloadRate(uint64(rate))
		}
	}
	if post != nil {
		f.RejectedMessages = post.Rejected()
	}
	if scheduler != nil {
		f.RejectedMessages = scheduler.Rejected()
	}
	return f
}
