package node

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// TestMain also plays the process in which TestGOMAXPROCS has a node start.
func TestMain(m *testing.M) {
	if os.Getenv("FPTPS_TEST_PROCS") != "" {
		before := runtime.GOMAXPROCS(0)
		setProcs()
		os.Stdout.WriteString(strconv.Itoa(before) + " " + strconv.Itoa(runtime.GOMAXPROCS(0)))
		return
	}
	os.Exit(m.Run())
}

// TestGOMAXPROCS: a node adds to what Go takes for itself, which heeds the cores and the quota of its cgroup, and leaves what
// the user has set.
func TestGOMAXPROCS(t *testing.T) {
	procs := func(setting string) (before, after int) {
		t.Helper()
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "FPTPS_TEST_PROCS=1", "GOMAXPROCS="+setting)
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		first, second, _ := strings.Cut(string(out), " ")
		before, _ = strconv.Atoi(first)
		after, _ = strconv.Atoi(second)
		return before, after
	}
	for _, setting := range []string{"1", "7"} {
		if _, after := procs(setting); strconv.Itoa(after) != setting {
			t.Errorf("GOMAXPROCS=%s became %d", setting, after)
		}
	}
	if before, after := procs(""); after != before+spareProcs {
		t.Errorf("%d became %d without a setting", before, after)
	}
}
