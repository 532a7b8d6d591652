package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

func known(x float64) *float64 { return &x }

// source is of a scheduler that is a worker, too, so that it has every metric.
func source() Source {
	rank, late := 1, "worker 1"
	latency := NewLatency()
	latency.Observer()(-3, 5*time.Millisecond)
	status := cluster.Status{
		State: "running", Plan: 4, Epoch: 2, Slowest: &late, Refused: 5, Strays: 6, Died: 7,
		Totals: cluster.Totals{Rounds: 8, Pushed: 9, Sent: 10, Received: 11, Waited: 12.5},
		Nodes: []cluster.Node{
			{Name: "worker 1", Role: "worker", Rank: &rank, State: "running", Steps: 13, Metrics: "10.0.0.2:9401", WaitShare: known(.25), Share: known(.5),
				Up: known(80), Down: known(160), LinkUp: known(800), LinkDown: known(1600), UseUp: known(.1), UseDown: known(.2)},
			{Name: "worker 2", Role: "worker", Rank: &rank, State: "silent", Steps: 12},
			{Name: "server", Role: "server", State: "joining"},
		},
	}
	node := Node{
		Name: "worker 1", Role: "worker", Rank: 1, Waited: 1500 * time.Millisecond, Stalled: 2 * time.Second,
		Worker:  &kv.WorkerStats{Tensors: 1, Rounds: 2, Steps: 3, BytesPushed: 4, BytesPulled: 5, Plan: 6, Shares: map[string]float64{"server 0": .75}},
		Data:    transport.Stats{PacketsSent: 7, PacketsReceived: 8, PacketsLocal: 9, ProbeBytes: 10, Writes: 11, Reads: 12, Resumed: 13, Rejected: 14, Malformed: 15, Dropped: 16},
		Traffic: map[uint32]transport.Traffic{uint32(wire.ServerID(0)): {Sent: 17, Received: 18}}, Queued: map[uint32]int{uint32(wire.ServerID(0)): 19},
		Up: 20, Down: 21, Stated: 22, RejectedMessages: 23,
	}
	return Source{
		Node: func() Node { return node }, Latency: latency, Address: func() string { return "10.0.0.1:9400" },
		Cluster: func() (cluster.Status, bool) { return status, true },
	}
}

// get asks a source's handler.
func get(t *testing.T, s Source, path string) string {
	t.Helper()
	w := httptest.NewRecorder()
	handler(s).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	return w.Body.String()
}

const wanted = `
fptps_node_info{node="worker 1",rank="1",role="worker"} 1
fptps_rounds_total 2
fptps_steps_total 3
fptps_pushed_bytes_total 4
fptps_pulled_bytes_total 5
fptps_tensors 1
fptps_plan 6
fptps_wait_seconds_total 1.5
fptps_stall_seconds 2
fptps_sum_share_ratio{aggregator="server 0"} 0.75
fptps_sent_packets_total 7
fptps_received_packets_total 8
fptps_local_packets_total 9
fptps_probe_sent_bytes_total 10
fptps_write_calls_total 11
fptps_read_calls_total 12
fptps_connections_resumed_total 13
fptps_handshakes_rejected_total 14
fptps_malformed_packets_total 15
fptps_dropped_sends_total 16
fptps_sent_bytes_total{peer="server 0"} 17
fptps_received_bytes_total{peer="server 0"} 18
fptps_send_queue_packets{peer="server 0"} 19
fptps_link_measured_bytes_per_second{direction="up"} 20
fptps_link_measured_bytes_per_second{direction="down"} 21
fptps_link_stated_bytes_per_second 22
fptps_messages_rejected_total 23
fptps_push_latency_seconds_bucket{priority="-3..-2",le="0.0032"} 0
fptps_push_latency_seconds_bucket{priority="-3..-2",le="0.0064"} 1
fptps_push_latency_seconds_sum{priority="-3..-2"} 0.005
fptps_push_latency_seconds_count{priority="-3..-2"} 1
fptps_cluster_plan 4
fptps_cluster_epoch 2
fptps_cluster_joins_refused_total 5
fptps_cluster_messages_dropped_total 6
fptps_cluster_deaths_total 7
fptps_cluster_rounds_total 8
fptps_cluster_pushed_bytes_total 9
fptps_cluster_sent_bytes_total 10
fptps_cluster_received_bytes_total 11
fptps_cluster_wait_seconds_total 12.5
fptps_cluster_steps 13
fptps_cluster_nodes{role="server",state="joining"} 1
fptps_cluster_nodes{role="worker",state="running"} 1
fptps_cluster_nodes{role="worker",state="silent"} 1
fptps_cluster_slowest_worker{node="worker 1"} 1
fptps_cluster_node_steps{node="worker 1"} 13
fptps_cluster_node_steps{node="worker 2"} 12
fptps_cluster_node_wait_ratio{node="worker 1"} 0.25
fptps_cluster_node_sum_share_ratio{node="worker 1"} 0.5
fptps_cluster_node_bytes_per_second{direction="up",node="worker 1"} 10
fptps_cluster_node_bytes_per_second{direction="down",node="worker 1"} 20
fptps_cluster_node_link_bytes_per_second{direction="up",node="worker 1"} 100
fptps_cluster_node_link_bytes_per_second{direction="down",node="worker 1"} 200
fptps_cluster_node_link_use_ratio{direction="up",node="worker 1"} 0.1
fptps_cluster_node_link_use_ratio{direction="down",node="worker 1"} 0.2
`

func TestEveryMetric(t *testing.T) {
	text := get(t, source(), "/metrics")
	got := []string{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "fptps_") && (!strings.Contains(line, "_bucket{") || strings.Contains(wanted, line)) {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := strings.Split(strings.TrimSpace(wanted), "\n")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if !strings.Contains(text, "process_cpu_seconds_total ") {
		t.Error("no metrics of the process")
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	for _, name := range names() {
		if !strings.Contains(wanted, "\n"+name) {
			t.Errorf("%s is not collected", name)
		}
	}
}

// TestANodeThatHasNotJoined has neither a name, nor a worker, nor a data plane.
func TestANodeThatHasNotJoined(t *testing.T) {
	s := Source{Node: func() Node { return Node{Role: "server"} }, Cluster: func() (cluster.Status, bool) { return cluster.Status{}, false }, Address: func() string { return "a:1" }}
	text := get(t, s, "/metrics")
	if !strings.Contains(text, "fptps_sent_packets_total 0") || strings.Contains(text, "node_info") || strings.Contains(text, "rounds") {
		t.Error(text)
	}
	if got := get(t, s, "/targets"); got != `[{"targets":["a:1"]}]`+"\n" {
		t.Errorf("%q", got)
	}
}

func TestTargets(t *testing.T) {
	var got []targetGroup
	if err := json.Unmarshal([]byte(get(t, source(), "/targets")), &got); err != nil || fmt.Sprint(got) != "[{[10.0.0.1:9400 10.0.0.2:9401]}]" {
		t.Errorf("%v, %v", got, err)
	}
}

// TestPanicsAreErrors: a panic while the registry collects would end the interpreter.
func TestPanicsAreErrors(t *testing.T) {
	s := Source{Node: func() Node { panic("oh") }, Cluster: func() (cluster.Status, bool) { panic("no") }}
	w := httptest.NewRecorder()
	handler(s).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "oh") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestGroupsOfPriorities(t *testing.T) {
	for priority, want := range map[int32]string{
		0: "0", 1: "1", 2: "2..3", 3: "2..3", 4: "4..7", 1000: "512..1023", math.MaxInt32: "1073741824..2147483647",
		-1: "-1", -2: "-3..-2", -3: "-3..-2", -160: "-255..-128", math.MinInt32: "-2147483648",
	} {
		if got := group(priority); got != want {
			t.Errorf("%d is in %q, want %q", priority, got, want)
		}
	}
}

// serve serves until the end of the test.
func serve(t *testing.T, port int, first bool) (*Server, error) {
	t.Helper()
	s, err := Serve("127.0.0.1", port, first, source())
	if err == nil {
		t.Cleanup(s.Close)
	}
	return s, err
}

func TestPortsOfOneHost(t *testing.T) {
	one, err := serve(t, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	port := one.Address().Port
	two, err := serve(t, port, false)
	if err != nil || two.Address().Port <= port {
		t.Errorf("the second one: %v", err)
	}
	if _, err := serve(t, port, true); fault.CodeOf(err) != fault.Config || !strings.Contains(err.Error(), "FPTPS_METRICS_PORT") {
		t.Errorf("a port that has to be free: %v", err)
	}
	if _, err := Serve("203.0.113.77", 9400, false, source()); fault.CodeOf(err) != fault.Config {
		t.Errorf("an address of another host: %v", err)
	}
}

func TestServer(t *testing.T) {
	s, err := serve(t, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.Get("http://" + s.Address().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil || !strings.Contains(string(text), "\nfptps_rounds_total 2\n") {
		t.Errorf("%s, %v", text, err)
	}
	if fd, err := s.Socket(); err != nil || fd < 3 {
		t.Errorf("socket %d, %v", fd, err)
	}
	s.Close()
	if _, err := net.Dial("tcp", s.Address().String()); err == nil {
		t.Error("it listens after Close")
	}
}

// TestClientsAreBounded: beyond maxClients a connection is closed, and a client that goes makes room.
func TestClientsAreBounded(t *testing.T) {
	s, err := serve(t, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(c net.Conn) error {
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		_, err := io.ReadFull(c, make([]byte, 15))
		return err
	}
	var clients []net.Conn
	for i := range maxClients + 1 {
		c, err := net.Dial("tcp", s.Address().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := ask(c); (err == nil) != (i < maxClients) {
			t.Fatalf("client %d: %v", i, err)
		}
		clients = append(clients, c)
	}
	clients[0].Close()
	for served := false; !served; { // the server may not have noticed yet
		c, err := net.Dial("tcp", s.Address().String())
		if err != nil {
			t.Fatal(err)
		}
		served = ask(c) == nil
		c.Close()
	}
}
