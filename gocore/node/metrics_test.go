package node

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// fetch gets a page of a node's metrics.
func fetch(t *testing.T, address, path string) string {
	t.Helper()
	answer, err := http.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", address, text, err)
	}
	return string(text)
}

func TestMetricsOfACluster(t *testing.T) {
	c := start(t, 2, 1, "FPTPS_METRICS_PORT=0")
	c.initAll(0, wire.PacketBytes)
	for round := range 3 {
		c.checkRound(round, []int{wire.PacketBytes})
	}
	all := append([]*Node{c.scheduler, c.servers[0]}, c.workers...)
	bytes := float64(4 * wire.PacketBytes) // with round 0, in which only rank 0 pushes
	for i, want := range []string{
		`fptps_node_info{node="scheduler",rank="0",role="scheduler"} 1`,
		fmt.Sprintf(`fptps_received_bytes_total{peer="worker 0"} %v`, bytes),
		fmt.Sprintf(`fptps_sent_bytes_total{peer="server 0"} %v`, bytes),
		`fptps_push_latency_seconds_count{priority="0"} 3`,
	} {
		if text := fetch(t, all[i].metricsAddress(), "/metrics"); !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("node %d does not show %s:\n%s", i, want, text)
		}
	}
	c.end()
	for i, n := range all {
		if _, err := http.Get("http://" + n.metricsAddress() + "/metrics"); err == nil {
			t.Errorf("node %d serves metrics after its end", i)
		}
	}
}

// TestTargetsOfACluster: the scheduler knows where all metrics are, when all have reported.
func TestTargetsOfACluster(t *testing.T) {
	c := start(t, 2, 1, "FPTPS_METRICS_PORT=0")
	var want []string
	for _, n := range append([]*Node{c.scheduler, c.servers[0]}, c.workers...) {
		want = append(want, n.metricsAddress())
	}
	var got []struct{ Targets []string }
	for len(got) == 0 || len(got[0].Targets) < 4 { // a report comes each second
		if err := json.Unmarshal([]byte(fetch(t, want[0], "/targets")), &got); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(got[0].Targets, want) {
		t.Errorf("%v, not %v", got, want)
	}
	c.end()
}

func TestMetricsAlone(t *testing.T) {
	config, err := ParseConfig(environment("FPTPS_METRICS_PORT=0"))
	if err != nil {
		t.Fatal(err)
	}
	config.SchedulerHost, config.SchedulerPort = "", 0
	n := Open(config)
	if done, err := n.Life().Wait(patience); !done || err != nil {
		t.Fatal(err)
	}
	if text := fetch(t, n.metricsAddress(), "/metrics"); !strings.Contains(text, `fptps_node_info{node="worker 0",rank="0",role="worker"} 1`) {
		t.Error(text)
	}
	if fds := n.Sockets(); len(fds) != 1 {
		t.Errorf("a forked child closes %v", fds)
	}
	n.Close().Wait(patience)
}

func TestMetricsSettings(t *testing.T) {
	for value, want := range map[string]int{"": -1, "0": 0, "9400": 9400} {
		if c, err := ParseConfig(environment("FPTPS_METRICS_PORT=" + value)); err != nil || c.MetricsPort != want || c.MetricsHost != "127.0.0.1" {
			t.Errorf("%q: %+v, %v", value, c, err)
		}
	}
	if _, err := ParseConfig(environment("FPTPS_METRICS_PORT=on")); fault.CodeOf(err) != fault.Config {
		t.Errorf("on: %v", err)
	}
}
