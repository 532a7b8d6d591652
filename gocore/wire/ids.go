package wire

import "fmt"

// Node ids are those of dmlc ps-lite.
const (
	SchedulerID = 1

	// Groups add up: 7 is everyone.
	SchedulerGroup = 1
	ServerGroup    = 2
	WorkerGroup    = 4
	AllGroup       = SchedulerGroup + ServerGroup + WorkerGroup
)

// ServerID is the id of the server of a rank.
func ServerID(rank int) int { return 2*rank + 8 }

// WorkerID is the id of the worker of a rank.
func WorkerID(rank int) int { return 2*rank + 9 }

// NodeName is what people call a node: "scheduler", "server 0", "worker 3".
func NodeName(id int) string {
	switch {
	case id == SchedulerID:
		return "scheduler"
	case id >= 8 && id%2 == 0:
		return fmt.Sprintf("server %d", (id-8)/2)
	case id >= 9:
		return fmt.Sprintf("worker %d", (id-9)/2)
	}
	return fmt.Sprintf("node %d", id)
}
