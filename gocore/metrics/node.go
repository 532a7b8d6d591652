// Package metrics presents the figures of a node and of a cluster to Prometheus, and serves them over HTTP.
package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/transport"
)

// Node are the figures of a node at a moment.
type Node struct {
	Name, Role string // "worker 1", "worker"; the name is "" until the node has joined
	Rank       int

	Worker  *kv.WorkerStats // nil: it is no worker
	Waited  time.Duration   // a worker's program, for tickets
	Stalled time.Duration   // a worker's round that has waited longest for other workers

	Data             transport.Stats
	Traffic          map[uint32]transport.Traffic // by peer
	Queued           map[uint32]int               // packets, by peer
	Up, Down         float64                      // what the link carries, in bytes per second; 0: not known
	Stated           float64                      // what it was said to carry; 0: nothing was said
	RejectedMessages uint64                       // of the control plane
}

// figure is a metric of one value, without labels of its own.
type figure[T any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(T) float64
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("fptps_"+name, help, labels, nil)
}

func counter[T any](name, help string, value func(T) float64) figure[T] {
	return figure[T]{describe(name, help), prometheus.CounterValue, value}
}

func gauge[T any](name, help string, value func(T) float64) figure[T] {
	return figure[T]{describe(name, help), prometheus.GaugeValue, value}
}

var workerFigures = []figure[*kv.WorkerStats]{
	counter("rounds_total", "Rounds of all tensors: a push of one tensor is one.", func(s *kv.WorkerStats) float64 { return float64(s.Rounds) }),
	counter("steps_total", "Steps of the training, if set_tensor_count() says how many pushes make one.", func(s *kv.WorkerStats) float64 { return float64(s.Steps) }),
	counter("pushed_bytes_total", "Bytes of the arrays that the program has pushed.", func(s *kv.WorkerStats) float64 { return float64(s.BytesPushed) }),
	counter("pulled_bytes_total", "Bytes of sums, and of rows of tables, that the program has received.", func(s *kv.WorkerStats) float64 { return float64(s.BytesPulled) }),
	gauge("tensors", "Tensors that this worker has declared.", func(s *kv.WorkerStats) float64 { return float64(s.Tensors) }),
	gauge("plan", "Number of the plan of the summing; that of the start is 0.", func(s *kv.WorkerStats) float64 { return float64(s.Plan) }),
}

var nodeFigures = []figure[Node]{
	counter("sent_packets_total", "Packets sent to other nodes.", func(n Node) float64 { return float64(n.Data.PacketsSent) }),
	counter("received_packets_total", "Packets received from other nodes.", func(n Node) float64 { return float64(n.Data.PacketsReceived) }),
	counter("local_packets_total", "Packets of this node to itself.", func(n Node) float64 { return float64(n.Data.PacketsLocal) }),
	counter("probe_sent_bytes_total", "Bytes sent only to measure links.", func(n Node) float64 { return float64(n.Data.ProbeBytes) }),
	counter("write_calls_total", "System calls that send data.", func(n Node) float64 { return float64(n.Data.Writes) }),
	counter("read_calls_total", "System calls that receive data.", func(n Node) float64 { return float64(n.Data.Reads) }),
	counter("connections_resumed_total", "Broken data connections that were made again.", func(n Node) float64 { return float64(n.Data.Resumed) }),
	counter("handshakes_rejected_total", "Data connections of strangers that were refused.", func(n Node) float64 { return float64(n.Data.Rejected) }),
	counter("messages_rejected_total", "Control messages of strangers that were dropped.", func(n Node) float64 { return float64(n.RejectedMessages) }),
	counter("malformed_packets_total", "Data connections that were closed because of a malformed packet.", func(n Node) float64 { return float64(n.Data.Malformed) }),
	counter("dropped_sends_total", "Sends to a node without connection, or whose connection broke first.", func(n Node) float64 { return float64(n.Data.Dropped) }),
}

var (
	waitSeconds   = describe("wait_seconds_total", "Time for which the program has waited for a ticket.")
	stallSeconds  = describe("stall_seconds", "For how long the oldest round has waited for other workers; 0: for less than 2 s.")
	nodeInfo      = describe("node_info", "1; the labels say which node this is.", "node", "role", "rank")
	sumShare      = describe("sum_share_ratio", "A node's part of the summing by this worker's plan: 1 is all.", "aggregator")
	sentBytes     = describe("sent_bytes_total", "Payload sent to a node.", "peer")
	receivedBytes = describe("received_bytes_total", "Payload received from a node.", "peer")
	queuedPackets = describe("send_queue_packets", "Packets that wait to be sent to a node.", "peer")
	linkMeasured  = describe("link_measured_bytes_per_second", "What this node's link carries, as measured.", "direction")
	linkStated    = describe("link_stated_bytes_per_second", "What this node's link carries by FPTPS_LINK_RATE or its network interface.")
)

// nodeCollector presents a node. It implements prometheus.Collector.
type nodeCollector struct{ look func() Node }

// Describe implements prometheus.Collector.
func (c nodeCollector) Describe(out chan<- *prometheus.Desc) {
	for _, f := range workerFigures {
		out <- f.desc
	}
	for _, f := range nodeFigures {
		out <- f.desc
	}
	for _, d := range []*prometheus.Desc{waitSeconds, stallSeconds, nodeInfo, sumShare, sentBytes, receivedBytes, queuedPackets, linkMeasured, linkStated} {
		out <- d
	}
}

// guard runs a Collect, which is called on a goroutine of the registry's: no panic may leave it.
func guard(d *prometheus.Desc, out chan<- prometheus.Metric, collect func()) {
	if err := fault.Catch(func() error { collect(); return nil }); err != nil {
		out <- prometheus.NewInvalidMetric(d, err)
	}
}

// Collect implements prometheus.Collector.
func (c nodeCollector) Collect(out chan<- prometheus.Metric) {
	guard(nodeInfo, out, func() { c.collect(out) })
}

func (c nodeCollector) collect(out chan<- prometheus.Metric) {
	n := c.look()
	give := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	if n.Name != "" {
		give(nodeInfo, prometheus.GaugeValue, 1, n.Name, n.Role, strconv.Itoa(n.Rank))
	}
	for _, f := range nodeFigures {
		give(f.desc, f.kind, f.value(n))
	}
	if n.Worker != nil {
		for _, f := range workerFigures {
			give(f.desc, f.kind, f.value(n.Worker))
		}
		give(waitSeconds, prometheus.CounterValue, n.Waited.Seconds())
		give(stallSeconds, prometheus.GaugeValue, n.Stalled.Seconds())
		for name, share := range n.Worker.Shares {
			give(sumShare, prometheus.GaugeValue, share, name)
		}
	}
	for id, t := range n.Traffic {
		give(sentBytes, prometheus.CounterValue, float64(t.Sent), cluster.Name(int(id)))
		give(receivedBytes, prometheus.CounterValue, float64(t.Received), cluster.Name(int(id)))
	}
	for id, packets := range n.Queued {
		give(queuedPackets, prometheus.GaugeValue, float64(packets), cluster.Name(int(id)))
	}
	for direction, rate := range map[string]float64{"up": n.Up, "down": n.Down} {
		if rate > 0 {
			give(linkMeasured, prometheus.GaugeValue, rate, direction)
		}
	}
	if n.Stated > 0 {
		give(linkStated, prometheus.GaugeValue, n.Stated)
	}
}
