package pybind

import (
	"time"

	"fptps/gocore/cluster"
)

// AskStatus asks the scheduler at an address for the state of its cluster, and returns it as JSON (cluster.Status). It waits for
// ms milliseconds at most.
func AskStatus(host string, port int64, secret string, ms int64) (status string, err error) {
	defer encodeError(&err)
	json, err := cluster.AskStatus(host, int(port), secret, time.Duration(ms)*time.Millisecond)
	return string(json), err
}

// Status returns the same of a scheduler in this process; "" before it listens.
func Status(h int64) (status string, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return "", err
	}
	state, ok := found.node.Status()
	if !ok {
		return "", nil
	}
	return marshal(state)
}
