package wire

import (
	"fmt"
	"strconv"
	"strings"

	"fptps/gocore/fault"
)

// Node ids are as in dmlc ps-lite.
const (
	SchedulerID = 1

	// Groups are added: 7 is all nodes.
	SchedulerGroup = 1
	ServerGroup    = 2
	WorkerGroup    = 4
	AllGroup       = SchedulerGroup + ServerGroup + WorkerGroup
)

// ServerID is the id of the server of a rank.
func ServerID(rank int) int { return 2*rank + 8 }

// WorkerID is the id of the worker of a rank.
func WorkerID(rank int) int { return 2*rank + 9 }

// RankOfWorker is the rank of the worker with an id; -1 for other nodes.
func RankOfWorker(id int) int {
	if id < WorkerID(0) || id%2 == 0 {
		return -1
	}
	return (id - WorkerID(0)) / 2
}

// Admissions is the name of the wait until all workers come to the place where newcomers are admitted.
const Admissions = "the admission of new workers"

// Deaths is the name of the wait, after the death of a worker, until all nodes have heard of it.
const Deaths = "the news of a death"

// AboutNode is what errors about a node have as its role and rank.
func AboutNode(id int) fault.About {
	role, number, _ := strings.Cut(NodeName(id), " ")
	rank, err := strconv.Atoi(number)
	switch {
	case id == SchedulerID:
		return fault.About{Role: role}
	case id < ServerID(0) || err != nil:
		return fault.About{}
	}
	return fault.About{Role: role, Rank: &rank}
}

// NodeName is the role and rank of a node: "scheduler", "server 0", "worker 3".
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
