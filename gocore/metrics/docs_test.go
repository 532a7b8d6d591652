package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// names are all metrics of fptps, and those of the process that the docs use.
func names() (all []string) {
	described := make(chan *prometheus.Desc, 1000)
	nodeCollector{}.Describe(described)
	clusterCollector{}.Describe(described)
	NewLatency().Describe(described)
	close(described)
	for d := range described {
		all = append(all, strings.Split(d.String(), `"`)[1])
	}
	return all
}

// TestDashboardNamesMetrics: each query of docs/grafana.json is about metrics that exist.
func TestDashboardNamesMetrics(t *testing.T) {
	text, err := os.ReadFile("../../docs/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	known, queries := append(names(), "process_cpu_seconds_total", "process_resident_memory_bytes"), 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries++
			for _, name := range regexp.MustCompile(`\b(fptps|process)_\w+`).FindAllString(target.Expr, -1) {
				if !slices.Contains(known, strings.TrimSuffix(name, "_bucket")) {
					t.Errorf("%s: there is no %s", target.Expr, name)
				}
			}
		}
	}
	if queries < 20 {
		t.Errorf("only %d queries", queries)
	}
}

// TestDocsListMetrics: docs/seeing.md has each metric in a table, and no other.
func TestDocsListMetrics(t *testing.T) {
	text, err := os.ReadFile("../../docs/seeing.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `fptps_.*? \\|").FindAllString(string(text), -1) {
		listed = append(listed, regexp.MustCompile("fptps_[a-z_]+").FindAllString(row, -1)...)
	}
	want := names()
	slices.Sort(listed)
	slices.Sort(want)
	if !slices.Equal(listed, want) {
		t.Errorf("docs/seeing.md lists\n%s\nwant\n%s", strings.Join(listed, "\n"), strings.Join(want, "\n"))
	}
}
