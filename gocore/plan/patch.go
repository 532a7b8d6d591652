package plan

// Patch divides the packets of a dead node among its heirs, as evenly as possible. Nodes that know of the same deaths, in the
// same order, make the same patches. The key's hash picks the heirs of small tensors.
func Patch(key uint64, runs []Run, dead uint32, heirs []uint32) []Run {
	patched := make([]Run, 0, len(runs)+len(heirs))
	n := uint64(len(heirs))
	shift := hash(key) >> 32 % n
	for _, run := range runs {
		if run.Node != dead {
			patched = append(patched, run)
			continue
		}
		from := run.First
		for i := range n {
			to := run.First + uint32(uint64(run.Count)*(i+1)/n)
			if to > from {
				patched = append(patched, Run{Node: heirs[(i+shift)%n], First: from, Count: to - from, Lane: run.Lane})
			}
			from = to
		}
	}
	return patched
}

// RunsOf lists the runs of a node.
func RunsOf(runs []Run, node uint32) []Run {
	var own []Run
	for _, run := range runs {
		if run.Node == node {
			own = append(own, run)
		}
	}
	return own
}
