package van

import (
	"log/slog"
	"sync"
)

// maxRejectsLogged bounds the number of senders whose rejected messages are logged.
const maxRejectsLogged = 100

// rejects counts rejected messages, and logs them once per sender.
type rejects struct {
	log *slog.Logger
	mu  struct {
		sync.Mutex
		count uint64
		seen  map[string]bool
	}
}

func newRejects(log *slog.Logger) *rejects {
	r := &rejects{log: log}
	r.mu.seen = map[string]bool{}
	return r
}

func (r *rejects) add(sender string, why error) {
	r.mu.Lock()
	r.mu.count++
	tell := !r.mu.seen[sender] && len(r.mu.seen) < maxRejectsLogged
	if tell {
		r.mu.seen[sender] = true
	}
	r.mu.Unlock()
	if tell {
		r.log.Warn("control plane: dropped what a stranger sent; more of it is counted only", "sender", sender, "reason", why)
	}
}

func (r *rejects) count() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.count
}
