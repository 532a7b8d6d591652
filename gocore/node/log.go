package node

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

// LogFormat is how lines of the log look.
type LogFormat int

const (
	LogText LogFormat = iota // key=value
	LogJSON                  // an object on each line
)

// logTime is the form of times. python/fptps/_logs.py writes the same lines, of Python's records.
const logTime = "2006-01-02T15:04:05.000Z07:00"

// nodeLog adds the node's rank to the records of a log, once it is known.
type nodeLog struct {
	slog.Handler
	rank *atomic.Pointer[int]
}

// newLog makes the log of a node. A record is one line, written by one call, so that lines of several processes do not mix.
func newLog(c Config, out io.Writer) (*slog.Logger, *atomic.Pointer[int]) {
	options := &slog.HandlerOptions{Level: c.LogLevel, ReplaceAttr: plainAttr}
	var lines slog.Handler = slog.NewTextHandler(out, options)
	if c.LogFormat == LogJSON {
		lines = slog.NewJSONHandler(out, options)
	}
	lines = lines.WithAttrs([]slog.Attr{slog.String("logger", "fptps"), slog.String("role", c.Role.String())})
	rank := &atomic.Pointer[int]{}
	return slog.New(nodeLog{lines, rank}), rank
}

// plainAttr writes times in one form, and durations as in text.
func plainAttr(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindTime:
		a.Value = slog.StringValue(a.Value.Time().Format(logTime))
	case slog.KindDuration:
		a.Value = slog.StringValue(a.Value.Duration().Round(time.Millisecond).String())
	}
	return a
}

func (l nodeLog) Handle(ctx context.Context, r slog.Record) error {
	rank := l.rank.Load()
	if rank == nil {
		return l.Handler.Handle(ctx, r)
	}
	ranked := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	ranked.AddAttrs(slog.Int("rank", *rank))
	r.Attrs(func(a slog.Attr) bool { ranked.AddAttrs(a); return true })
	return l.Handler.Handle(ctx, ranked)
}

func (l nodeLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return nodeLog{l.Handler.WithAttrs(attrs), l.rank}
}

func (l nodeLog) WithGroup(name string) slog.Handler {
	return nodeLog{l.Handler.WithGroup(name), l.rank}
}
