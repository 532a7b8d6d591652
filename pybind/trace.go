package pybind

import (
	"fptps/gocore/fault"
	"fptps/gocore/node"
)

// StartTrace begins to trace a node. sampling is as in FPTPS_TRACE.
func StartTrace(h int64, sampling string) (zero int64, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return 0, err
	}
	n, err := node.ParseTrace(sampling)
	switch {
	case err != nil:
		return 0, fault.New(fault.Value, "sampling=%s: %v", sampling, err)
	case n == 0:
		return 0, fault.New(fault.Value, "sampling=%s: nothing would be traced", sampling)
	}
	return 0, found.node.StartTrace(n)
}

// StopTrace ends the trace of a node, and writes its part of the timeline into a file. It returns the name of the file; with an
// empty path one in the folder of FPTPS_TRACE_DIR.
func StopTrace(h int64, path string) (written string, err error) {
	defer encodeError(&err)
	found, err := find(h)
	if err != nil {
		return "", err
	}
	return found.node.StopTrace(path)
}
