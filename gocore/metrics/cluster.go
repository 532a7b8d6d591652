package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"fptps/gocore/cluster"
)

var clusterFigures = []figure[cluster.Status]{
	counter("cluster_rounds_total", "Rounds of all workers.", func(s cluster.Status) float64 { return float64(s.Totals.Rounds) }),
	counter("cluster_pushed_bytes_total", "Bytes of the arrays that all workers' programs have pushed.", func(s cluster.Status) float64 { return float64(s.Totals.Pushed) }),
	counter("cluster_sent_bytes_total", "Payload that all nodes have sent to others.", func(s cluster.Status) float64 { return float64(s.Totals.Sent) }),
	counter("cluster_received_bytes_total", "Payload that all nodes have received from others.", func(s cluster.Status) float64 { return float64(s.Totals.Received) }),
	counter("cluster_wait_seconds_total", "Time for which the workers' programs have waited for tickets.", func(s cluster.Status) float64 { return s.Totals.Waited }),
	counter("cluster_deaths_total", "Nodes that were lost.", func(s cluster.Status) float64 { return float64(s.Died) }),
	counter("cluster_joins_refused_total", "Strangers and nodes of other clusters that asked to join and were refused.", func(s cluster.Status) float64 { return float64(s.Refused) }),
	counter("cluster_messages_dropped_total", "Control messages of processes that are no nodes of this cluster.", func(s cluster.Status) float64 { return float64(s.Strays) }),
	gauge("cluster_steps", "Steps of the worker that is furthest.", mostSteps),
	gauge("cluster_plan", "Number of the plan of the summing; that of the start is 0.", func(s cluster.Status) float64 { return float64(s.Plan) }),
	gauge("cluster_epoch", "How often the workers have changed.", func(s cluster.Status) float64 { return float64(s.Epoch) }),
}

var (
	clusterNodes = describe("cluster_nodes", "Nodes by role and state.", "role", "state")
	clusterLate  = describe("cluster_slowest_worker", "1 for the worker for which the others wait.", "node")
	clusterWait  = describe("cluster_node_wait_ratio", "Part of the last seconds for which a worker's program has waited.", "node")
	clusterSteps = describe("cluster_node_steps", "A worker's steps.", "node")
	clusterSum   = describe("cluster_node_sum_share_ratio", "A node's part of the summing: 1 is all.", "node")
	clusterRate  = describe("cluster_node_bytes_per_second", "Payload of the last seconds.", "node", "direction")
	clusterLink  = describe("cluster_node_link_bytes_per_second", "What a node's link carries.", "node", "direction")
	clusterUse   = describe("cluster_node_link_use_ratio", "Part of a node's link that was used in the last seconds.", "node", "direction")
)

func mostSteps(s cluster.Status) float64 {
	most := uint64(0)
	for _, n := range s.Nodes {
		most = max(most, n.Steps)
	}
	return float64(most)
}

// clusterCollector presents a cluster, on its scheduler. It implements prometheus.Collector.
type clusterCollector struct {
	look func() (cluster.Status, bool) // false: the scheduler does not listen yet
}

// Describe implements prometheus.Collector.
func (c clusterCollector) Describe(out chan<- *prometheus.Desc) {
	for _, f := range clusterFigures {
		out <- f.desc
	}
	for _, d := range []*prometheus.Desc{clusterNodes, clusterLate, clusterWait, clusterSteps, clusterSum, clusterRate, clusterLink, clusterUse} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c clusterCollector) Collect(out chan<- prometheus.Metric) {
	guard(clusterNodes, out, func() { c.collect(out) })
}

func (c clusterCollector) collect(out chan<- prometheus.Metric) {
	s, ok := c.look()
	if !ok {
		return
	}
	give := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for _, f := range clusterFigures {
		out <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(s))
	}
	if s.Slowest != nil {
		give(clusterLate, 1, *s.Slowest)
	}
	states := map[[2]string]int{}
	for _, n := range s.Nodes {
		states[[2]string{n.Role, n.State}]++
		if n.Rank == nil { // it joins
			continue
		}
		if n.Role == cluster.RoleWorker.String() {
			give(clusterSteps, float64(n.Steps), n.Name)
		}
		known := func(d *prometheus.Desc, unit float64, value *float64, labels ...string) {
			if value != nil {
				give(d, *value*unit, append([]string{n.Name}, labels...)...)
			}
		}
		known(clusterWait, 1, n.WaitShare)
		known(clusterSum, 1, n.Share)
		known(clusterRate, 1./8, n.Up, "up")
		known(clusterRate, 1./8, n.Down, "down")
		known(clusterLink, 1./8, n.LinkUp, "up")
		known(clusterLink, 1./8, n.LinkDown, "down")
		known(clusterUse, 1, n.UseUp, "up")
		known(clusterUse, 1, n.UseDown, "down")
	}
	for key, count := range states {
		give(clusterNodes, float64(count), key[0], key[1])
	}
}
