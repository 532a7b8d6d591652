package balance

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Cases worked out by hand. time is in units of the model over a link of 1 GB/s; the
// shares are those of the nodes in order.
func TestKnownOptima(t *testing.T) {
	const third, half = 1.0 / 3, 0.5
	set := func(hosts []Host, i int, up, down float64) []Host {
		hosts[i].Up, hosts[i].Down = up*1e9, down*1e9
		return hosts
	}
	sums := func(hosts []Host, rates ...float64) []Host {
		for i, rate := range rates {
			hosts[i].Nodes[0].Sums = rate * 1e9
		}
		return hosts
	}
	for _, tc := range []struct {
		name   string
		hosts  []Host
		time   float64
		shares []float64
	}{
		// The link of one of two workers carries the same with any shares, so that summing alone decides.
		{"2x0", equal(2, 0), 1, []float64{half, half}},
		{"2x1, summing as fast as the links", sums(equal(2, 1), 1, 1, 1), 1, []float64{third, third, third}},
		{"2x1, one worker sums at half the rate", sums(equal(2, 1), 1, 0.5, 1), 1, []float64{0.4, 0.2, 0.4}},
		{"2x1, slow summing", sums(equal(2, 1), 0.5, 0.5, 10), 1, []float64{0.25, 0.25, half}},
		// Three workers and more: 1+(W-2)a = Wx and Wa+Sx = 1.
		{"3x1", equal(3, 1), 1.2, []float64{0.2, 0.2, 0.2, 0.4}},
		{"4x1", equal(4, 1), 4. / 3, []float64{1. / 6, 1. / 6, 1. / 6, 1. / 6, third}},
		{"4x2", equal(4, 2), 1.2, []float64{0.1, 0.1, 0.1, 0.1, 0.3, 0.3}},
		{"4x4", equal(4, 4), 1, []float64{0, 0, 0, 0, 0.25, 0.25, 0.25, 0.25}},
		{"4x0", equal(4, 0), 1.5, []float64{0.25, 0.25, 0.25, 0.25}},
		// The slow worker needs 2 (4) even without a share; the others finish in 5/3.
		{"4x0, a worker at 1/2", set(equal(4, 0), 0, 0.5, 0.5), 2, []float64{0, third, third, third}},
		{"4x0, a worker at 1/4", set(equal(4, 0), 0, 0.25, 0.25), 4, []float64{0, third, third, third}},
		// At 0.8 it takes a part: (0.8t-1)/2 + 3(t-1)/2 = 1.
		{"4x0, a worker at 0.8", set(equal(4, 0), 0, 0.8, 0.8), 6 / 3.8, []float64{(0.8*6/3.8 - 1) / 2, (6/3.8 - 1) / 2, (6/3.8 - 1) / 2, (6/3.8 - 1) / 2}},
		{"4x4, a server at 1/4", set(equal(4, 4), 4, 0.25, 0.25), 3 / 2.8125,
			[]float64{0.1 / 3, 0.1 / 3, 0.1 / 3, 0.1 / 3, 0.2 / 3, 0.8 / 3, 0.8 / 3, 0.8 / 3}},
		{"4x4, a server at 1/4 up", set(equal(4, 4), 4, 0.25, 1), 3 / 2.8125,
			[]float64{0.1 / 3, 0.1 / 3, 0.1 / 3, 0.1 / 3, 0.2 / 3, 0.8 / 3, 0.8 / 3, 0.8 / 3}},
		{"1x1", sums(equal(1, 1), 3, 3), 0.25, []float64{0.75, 0.25}},
		{"1x0", sums(equal(1, 0), 1), 1, []float64{1}},
		// One host: no link is used.
		{"2x1 on one host", []Host{{1e9, 1e9, []Node{{9, true, 1e9}, {11, true, 2e9}, {8, false, 1e9}}}}, half, []float64{0.25, half, 0.25}},
		// Hosts of one worker and one server: the host's link carries 1+2a.
		{"4x4 on four hosts", []Host{pair(0), pair(1), pair(2), pair(3)}, 1.5,
			[]float64{0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125}},
		// Three of four workers on one host: its link carries 3-2a, the other's 1+2a.
		{"most workers on one host", []Host{{1e9, 1e9, []Node{{9, true, fast}, {11, true, fast}, {13, true, fast}}}, worker(3, 1e9)},
			1, []float64{third, third, third, 0}},
	} {
		m := modelOf(t, tc.hosts)
		shares := m.best()
		if got := m.slowest(shares) * 1e9; !near(got, tc.time, 1e-4) {
			t.Errorf("%s: time %.5f, expected %.5f", tc.name, got, tc.time)
		}
		for i, want := range tc.shares {
			if math.Abs(shares[i]-want) > 1e-4 {
				t.Errorf("%s: shares %.4f, expected %.4f", tc.name, shares, tc.shares)
				break
			}
		}
	}
}

// pair is a host of a worker and a server.
func pair(rank int) Host {
	return Host{1e9, 1e9, []Node{worker(rank, 1).Nodes[0], server(rank, 1).Nodes[0]}}
}

// Three properties of the optimum, whatever the cluster: a change of unit changes nothing; the order of the
// hosts changes nothing; a faster link or node never makes a round longer.
func TestPropertiesOfTheOptimum(t *testing.T) {
	for seed := range uint64(1000) {
		random := rand.New(rand.NewPCG(seed, 0))
		hosts := randomHosts(random, 12)
		m := modelOf(t, hosts)
		shares, byID := m.best(), map[uint32]float64{}
		for i, n := range m.nodes {
			byID[n.ID] = shares[i]
		}
		if sum := total(shares); !near(sum, 1, 1e-12) || slices.Min(shares) < 0 {
			t.Fatalf("seed %d: shares %v, sum %v", seed, shares, sum)
		}
		same := func(what string, other *model) {
			for i, share := range other.best() {
				if math.Abs(share-byID[other.nodes[i].ID]) > 1e-9 {
					t.Errorf("seed %d, %s: %v, before %v", seed, what, other.best(), byID)
				}
			}
		}
		same("all capacities halved", modelOf(t, scaled(hosts, func() float64 { return 0.5 })))
		shuffled := slices.Clone(hosts)
		random.Shuffle(len(hosts), func(i, k int) { shuffled[i], shuffled[k] = shuffled[k], shuffled[i] })
		same("another order", modelOf(t, shuffled))
		chance := random.Float64()
		faster := modelOf(t, scaled(hosts, func() float64 {
			if random.Float64() < chance {
				return 1 + random.Float64()
			}
			return 1
		}))
		if before, after := m.slowest(shares), faster.slowest(faster.best()); after > before*(1+1e-12) {
			t.Errorf("seed %d: with faster links %g, before %g", seed, after, before)
		}
	}
}

// scaled is a copy of hosts with each capacity multiplied by another call of factor.
func scaled(hosts []Host, factor func() float64) []Host {
	copies := slices.Clone(hosts)
	for i := range copies {
		h := &copies[i]
		h.Up, h.Down, h.Nodes = h.Up*factor(), h.Down*factor(), slices.Clone(h.Nodes)
		for k := range h.Nodes {
			h.Nodes[k].Sums *= factor()
		}
	}
	return copies
}

// Below the slowest host, too, the optimum is one: no share can move from one host to another
// so that the slower of the two becomes faster.
func TestNoMoveBetweenTwoHostsHelps(t *testing.T) {
	for seed := range uint64(1000) {
		hosts := randomHosts(rand.New(rand.NewPCG(seed, 0)), 10)
		m := modelOf(t, hosts)
		shares := m.best()
		time := func(h host, share float64) float64 {
			summing, link := 0.0, 0.0
			for _, n := range m.nodes[h.from:h.to] {
				summing += n.Sums
			}
			if h.slope != 0 {
				link = (h.base + h.slope*share) / h.link
			}
			return max(link, m.workers*share/summing)
		}
		for _, from := range m.hosts {
			a := total(shares[from.from:from.to])
			for _, to := range m.hosts {
				b := total(shares[to.from:to.to])
				if from == to || a == 0 {
					continue
				}
				before := max(time(from, a), time(to, b))
				if after := max(time(from, 0.999*a), time(to, b+0.001*a)); after < before*(1-1e-9) {
					t.Errorf("seed %d: %g of %+v to %+v: %g, before %g", seed, 0.001*a, from, to, after, before)
				}
			}
		}
	}
}
