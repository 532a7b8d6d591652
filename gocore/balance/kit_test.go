package balance

import (
	"math"
	"math/rand/v2"
	"testing"

	"fptps/gocore/plan"
	"fptps/gocore/wire"
)

// fast is a rate of summing that limits nothing.
const fast = 1e14

func worker(rank int, link float64) Host { return host1(wire.WorkerID(rank), true, link) }

func server(rank int, link float64) Host { return host1(wire.ServerID(rank), false, link) }

func host1(id int, worker bool, link float64) Host {
	return Host{Up: link, Down: link, Nodes: []Node{{uint32(id), worker, fast}}}
}

// equal is a cluster of workers and servers with links of 1 GB/s.
func equal(workers, servers int) []Host {
	var hosts []Host
	for rank := range workers {
		hosts = append(hosts, worker(rank, 1e9))
	}
	for rank := range servers {
		hosts = append(hosts, server(rank, 1e9))
	}
	return hosts
}

// randomHosts has up to nodes nodes, at least one of them a worker. A third of the clusters have
// several nodes on a host, and in a third summing is as slow as the links.
func randomHosts(random *rand.Rand, nodes int) []Host {
	rate := func(spread float64) float64 { return math.Round(1e9 * math.Exp(-spread*random.Float64())) }
	perHost, sums, spread := 1, 100.0, 4*random.Float64()
	if random.IntN(3) == 0 {
		perHost = 4
	}
	if random.IntN(3) == 0 {
		sums = 1
	}
	var hosts []Host
	workers, servers := 0, 0
	for count := 1 + random.IntN(nodes); workers+servers < count; {
		h := Host{Up: rate(spread), Down: rate(spread)}
		for range 1 + random.IntN(perHost) {
			if workers == 0 || random.IntN(3) > 0 {
				h.Nodes = append(h.Nodes, Node{uint32(wire.WorkerID(workers)), true, sums * rate(spread)})
				workers++
			} else {
				h.Nodes = append(h.Nodes, Node{uint32(wire.ServerID(servers)), false, sums * rate(spread)})
				servers++
			}
		}
		hosts = append(hosts, h)
	}
	random.Shuffle(len(hosts), func(i, k int) { hosts[i], hosts[k] = hosts[k], hosts[i] })
	return hosts
}

func modelOf(t testing.TB, hosts []Host) *model {
	t.Helper()
	m, err := newModel(hosts)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// best is the solution of the linear programme.
func (m *model) best() []float64 {
	sums := make([]float64, len(m.nodes))
	for i, n := range m.nodes {
		sums[i] = n.Sums
	}
	return m.fill(sums)
}

func planOf(t testing.TB, hosts []Host) []plan.Share {
	t.Helper()
	shares, err := Plan(hosts)
	if err != nil {
		t.Fatal(err)
	}
	return shares
}

func timeOf(t testing.TB, hosts []Host, shares []plan.Share) float64 {
	t.Helper()
	seconds, err := Time(hosts, shares)
	if err != nil {
		t.Fatal(err)
	}
	return seconds
}

// near reports whether two numbers differ by at most a relative error.
func near(a, b, relative float64) bool {
	return math.Abs(a-b) <= relative*max(math.Abs(a), math.Abs(b))
}
