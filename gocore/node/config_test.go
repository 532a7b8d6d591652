package node

import (
	"os"
	"strings"
	"testing"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/van"
)

func environment(extra ...string) map[string]string {
	e := map[string]string{
		"DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": "9000",
		"DMLC_NUM_WORKER": "3", "DMLC_NUM_SERVER": "2", "HOME": "/somewhere",
	}
	for _, setting := range extra {
		name, value, _ := strings.Cut(setting, "=")
		e[name] = value
	}
	return e
}

func TestConfig(t *testing.T) {
	c, err := ParseConfig(environment("PS_HEARTBEAT_INTERVAL=0.5", "FPTPS_SHARE=7"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Role != cluster.RoleWorker || c.SchedulerHost != "10.0.0.1" || c.SchedulerPort != 9000 || c.Workers != 3 || c.Servers != 2 ||
		c.HeartbeatInterval != time.Second/2 || c.HeartbeatTimeout != time.Minute || c.JoinTimeout != time.Minute || c.Share != 7 || c.Alone() {
		t.Errorf("the settings are %+v", c)
	}
	for settings, share := range map[string]int{"DMLC_ROLE=server": cluster.Unset, "DMLC_ROLE=worker": cluster.Unset, "FPTPS_SHARE=0": 0} {
		if c, err := ParseConfig(environment(settings)); err != nil || c.Share != share {
			t.Errorf("%s: share %d, %v; expected %d", settings, c.Share, err, share)
		}
	}
	alone, err := ParseConfig(map[string]string{"DMLC_NUM_WORKER": "", "FPTPS_TOKEN": "x", "PS_VERBOSE": "1"})
	if err != nil || !alone.Alone() || alone.Workers != 1 || alone.Servers != 0 {
		t.Errorf("without a scheduler: %+v, %v", alone, err)
	}
}

func TestTraceSetting(t *testing.T) {
	for value, want := range map[string]uint32{"0": 0, "1": 1, "1/1": 1, "1/64": 64, "1/1000000": 1_000_000} {
		if n, err := ParseTrace(value); err != nil || n != want {
			t.Errorf("%q is 1 in %d, %v; want 1 in %d", value, n, err, want)
		}
	}
	for _, value := range []string{"on", "64", "-1", "1/0", "1/-2", "2/3", "1/1000001", "0.5", "1/", "/64"} {
		if _, err := ParseTrace(value); err == nil || !strings.Contains(err.Error(), "1/64") {
			t.Errorf("%q: %v", value, err)
		}
	}
}

// A stranger can send no long frame to a node that takes no tensors over the control plane.
func TestLongestFrame(t *testing.T) {
	for _, tc := range []struct {
		config Config
		want   int
	}{
		{Config{Role: cluster.RoleWorker}, van.MaxMeta},
		{Config{Role: cluster.RoleScheduler}, van.MaxMeta},
		{Config{Role: cluster.RoleServer}, van.MaxFrame},
		{Config{Role: cluster.RoleWorker, PS: true}, van.MaxFrame},
	} {
		if got := tc.config.longestFrame(); got != tc.want {
			t.Errorf("%+v: %d bytes, want %d", tc.config, got, tc.want)
		}
	}
}

func TestConfigErrorsNameTheSetting(t *testing.T) {
	for _, c := range []struct{ setting, says string }{
		{"DMLC_ROLE=boss", "scheduler, server or worker"},
		{"DMLC_PS_ROOT_PORT=0", "1 to 65535"},
		{"DMLC_PS_ROOT_PORT=nine", "whole number"},
		{"DMLC_PS_ROOT_PORT=", "not set: DMLC_PS_ROOT_PORT"},
		{"DMLC_NUM_WORKER=", "not set: DMLC_NUM_WORKER"},
		{"DMLC_NUM_WORKER=0", "1 to 1024"},
		{"DMLC_NUM_SERVER=-1", "0 to 1024"},
		{"PORT=65536", "0 to 65535"},
		{"FPTPS_DATA_PORT=65536", "0 to 65535"},
		{"FPTPS_SHARE=-1", "0 to 1048576"},
		{"FPTPS_TIMEOUT=soon", "seconds"},
		{"FPTPS_TIMEOUT=-1", "seconds"},
		{"FPTPS_TIMEOUT=NaN", "seconds"},
		{"PS_HEARTBEAT_TIMEOUT=3", "PS_HEARTBEAT_INTERVAL"},
		{"PS_HEARTBEAT_INTERVAL=0", "PS_HEARTBEAT_TIMEOUT"},
		{"FPTPS_DETERMINISTIC=yes", "0 or 1"},
		{"FPTPS_LOG=loud", "debug, info, warning or error"},
		{"FPTPS_LOG=WARN", "debug, info, warning or error"},
		{"FPTPS_LOG_FORMAT=xml", "text or json"},
		{"PS_VERBOSE=3", "0 to 2"},
		{"DMLC_INTERFACE=nosuch0", "no such network interface"},
		{"DMLC_ROLE=server", ""},
	} {
		_, err := ParseConfig(environment(c.setting))
		if c.says == "" {
			if err != nil {
				t.Errorf("%s: %v", c.setting, err)
			}
			continue
		}
		name, _, _ := strings.Cut(c.setting, "=")
		if err == nil || fault.CodeOf(err) != fault.Config || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, expected a Config error that says %q and %s", c.setting, err, c.says, name)
		}
	}
	if _, err := ParseOptions("[]"); fault.CodeOf(err) != fault.Config || err == nil {
		t.Errorf("options that are no object: %v", err)
	}
}

func TestHalfAClustersSettingsAreNotAlone(t *testing.T) {
	for _, setting := range []string{"DMLC_NUM_WORKER=2", "DMLC_NUM_SERVER=0", "DMLC_PS_ROOT_PORT=9000", "DMLC_ROLE=worker"} {
		name, value, _ := strings.Cut(setting, "=")
		_, err := ParseConfig(map[string]string{name: value})
		if err == nil || fault.CodeOf(err) != fault.Config || !strings.Contains(err.Error(), "DMLC_PS_ROOT_URI") {
			t.Errorf("%s alone: %v, expected a Config error that misses DMLC_PS_ROOT_URI", setting, err)
		}
	}
}

func TestInterfaceGivesItsAddress(t *testing.T) {
	c, err := ParseConfig(environment("DMLC_INTERFACE=lo"))
	if err != nil || c.Host != "127.0.0.1" {
		t.Errorf("host %q, %v", c.Host, err)
	}
	c, err = ParseConfig(environment("DMLC_INTERFACE=lo", "DMLC_NODE_HOST=10.1.1.1"))
	if err != nil || c.Host != "10.1.1.1" {
		t.Errorf("DMLC_NODE_HOST goes before DMLC_INTERFACE: %q, %v", c.Host, err)
	}
}

func TestConfigurationPageIsUpToDate(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil || string(page) != ConfigurationPage() {
		t.Errorf("docs/configuration.md is not what the table of settings says (%v): run `make docs`", err)
	}
}
