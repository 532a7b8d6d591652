package node

import (
	"bytes"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestLogLevels(t *testing.T) {
	for settings, want := range map[string]slog.Level{
		"": slog.LevelWarn, "PS_VERBOSE=0": slog.LevelWarn, "PS_VERBOSE=1": slog.LevelInfo, "PS_VERBOSE=2": slog.LevelDebug,
		"FPTPS_LOG=debug": slog.LevelDebug, "FPTPS_LOG=info": slog.LevelInfo, "FPTPS_LOG=warning": slog.LevelWarn, "FPTPS_LOG=error": slog.LevelError,
		"PS_VERBOSE=2 FPTPS_LOG=error": slog.LevelError, "FPTPS_LOG=info PS_VERBOSE=0": slog.LevelInfo,
	} {
		c, err := ParseConfig(environment(strings.Fields(settings)...))
		if err != nil || c.LogLevel != want {
			t.Errorf("%q: level %v, %v; want %v", settings, c.LogLevel, err, want)
		}
	}
}

// python/fptps/_logs.py writes the same lines: tests/test_logs.py.
func TestLogLines(t *testing.T) {
	for format, want := range map[string]string{
		"text": `time=T level=WARN msg="early \"word\"" logger=fptps role=server reason="a b"
time=T level=ERROR msg=late logger=fptps role=server rank=2 for=1.5s key=3
`,
		"json": `{"time":"T","level":"WARN","msg":"early \"word\"","logger":"fptps","role":"server","reason":"a b"}
{"time":"T","level":"ERROR","msg":"late","logger":"fptps","role":"server","rank":2,"for":"1.5s","key":3}
`,
	} {
		c, err := ParseConfig(environment("DMLC_ROLE=server", "FPTPS_LOG_FORMAT="+format))
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		log, rank := newLog(c, &out)
		log.Info("below the level")
		log.Warn(`early "word"`, "reason", errors.New("a b"))
		two := 2
		rank.Store(&two)
		log.Error("late", "for", 1500*time.Millisecond, "key", 3)
		got := regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(Z|[+-]\d\d:\d\d)`).ReplaceAllString(out.String(), "T")
		if got != want {
			t.Errorf("%s:\n%s\nwant\n%s", format, got, want)
		}
	}
}
