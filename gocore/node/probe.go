package node

import (
	"fmt"

	"fptps/gocore/cluster"
	"fptps/gocore/transport"
)

// probeBytes returns what this node sends each peer to probe the links: to every node on another host with which it would
// exchange tensors if that summed, as any may under a later plan. Every link, with all nodes behind it, carries transport.ProbeBytes at
// most in each direction. All nodes have the same view, so each knows what the others send.
func probeBytes(view cluster.View) map[uint32]int {
	members := append(view.Servers(), view.Workers()...)
	pairs := map[string]int{} // of nodes that send to each other over the link of a host
	for _, a := range members {
		for _, b := range members {
			if probes(a, b) {
				pairs[a.Host]++
			}
		}
	}
	me, bytes := view.Me(), map[uint32]int{}
	for _, m := range members {
		if probes(me, m) {
			bytes[uint32(m.ID)] = transport.ProbeBytes / max(pairs[me.Host], pairs[m.Host])
		}
	}
	return bytes
}

// probes reports whether two nodes probe the links between them.
func probes(a, b cluster.Member) bool {
	return a.Host != b.Host && (a.Role == cluster.RoleWorker || b.Role == cluster.RoleWorker)
}

// probed says what a probe has brought.
func probed(bytes uint64, c cluster.Capacity) string {
	rate := func(bytesPerSecond float64) string {
		if bytesPerSecond == 0 {
			return "an unknown rate"
		}
		return cluster.Megabits(bytesPerSecond)
	}
	return fmt.Sprintf("the probe of the links is over: %.1f MB sent; this one sends %s, receives %s", float64(bytes)/1e6, rate(c.Up), rate(c.Down))
}
