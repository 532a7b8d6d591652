package balance

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/wire"
)

// What leaving out small shares and rounding may cost, together.
const allowedLoss = 1.005 * 1.001

func TestPlansAreNearTheOptimum(t *testing.T) {
	for seed := range uint64(1000) {
		hosts := randomHosts(rand.New(rand.NewPCG(seed, 3)), 20)
		m := modelOf(t, hosts)
		shares := planOf(t, hosts)
		if _, err := plan.New(shares); err != nil || len(shares) != len(m.nodes) {
			t.Fatalf("seed %d: %v: %v", seed, shares, err)
		}
		for i := 1; i < len(shares); i++ {
			if shares[i-1].Node >= shares[i].Node {
				t.Fatalf("seed %d: %v", seed, shares)
			}
		}
		if got, want := timeOf(t, hosts, shares), m.slowest(m.best()); got > want*allowedLoss*(1+1e-12) || got < want*(1-1e-12) {
			t.Errorf("seed %d: time %g, optimum %g", seed, got, want)
		}
	}
}

// Equal nodes have small equal integers; a share that is not worth its connections is 0.
func TestPlansAreSimple(t *testing.T) {
	weak := equal(4, 2)
	weak[5].Up = 1e6 // of 1e9
	slow := equal(8, 0)
	slow[0].Up, slow[1].Down = 0.5e9, 0.5e9
	for _, tc := range []struct {
		hosts []Host
		want  string
	}{
		{equal(3, 0), "[{9 1} {11 1} {13 1}]"},
		{equal(4, 4), "[{8 1} {9 0} {10 1} {11 0} {12 1} {13 0} {14 1} {15 0}]"},
		{equal(2, 1), "[{8 0} {9 1} {11 1}]"},
		{equal(3, 1), "[{8 2} {9 1} {11 1} {13 1}]"},
		{weak, "[{8 2} {9 1} {10 0} {11 1} {13 1} {15 1}]"},
		{slow, "[{9 0} {11 0} {13 1} {15 1} {17 1} {19 1} {21 1} {23 1}]"},
	} {
		if got := fmt.Sprint(planOf(t, tc.hosts)); got != tc.want {
			t.Errorf("%+v: %s, expected %s", tc.hosts, got, tc.want)
		}
	}
}

// A small share stays where leaving it out would cost more than 0.5%: three workers without a
// server take 4/3; with one whose link has c of theirs, 4/(3+c/3).
func TestASmallShareThatIsWorthItStays(t *testing.T) {
	for _, tc := range []struct {
		link float64
		sums bool
	}{{0.03, false}, {0.06, true}} {
		hosts := equal(3, 1)
		hosts[3].Up = 1e9 * tc.link
		if server := planOf(t, hosts)[0]; server.Node != 8 || server.Share > 0 != tc.sums {
			t.Errorf("a server with %g of the others' rate: %+v", tc.link, server)
		}
	}
}

func TestNonsenseIsAnError(t *testing.T) {
	for name, spoil := range map[string]func(h []Host) []Host{
		"no host":        func(h []Host) []Host { return nil },
		"no node":        func(h []Host) []Host { return []Host{{Up: 1e9, Down: 1e9}} },
		"no worker":      func(h []Host) []Host { return h[2:] },
		"a node twice":   func(h []Host) []Host { return append(h, h[0]) },
		"zero up":        func(h []Host) []Host { h[0].Up = 0; return h },
		"negative down":  func(h []Host) []Host { h[2].Down = -1e9; return h },
		"NaN down":       func(h []Host) []Host { h[1].Down = math.NaN(); return h },
		"infinite up":    func(h []Host) []Host { h[1].Up = math.Inf(1); return h },
		"zero sums":      func(h []Host) []Host { h[1].Nodes[0].Sums = 0; return h },
		"NaN sums":       func(h []Host) []Host { h[1].Nodes[0].Sums = math.NaN(); return h },
		"more than real": func(h []Host) []Host { h[1].Nodes[0].Sums = 1e16; return h },
	} {
		hosts := spoil(equal(2, 1))
		if _, err := Plan(hosts); fault.CodeOf(err) != fault.Value {
			t.Errorf("%s: Plan: %v", name, err)
		}
		if _, err := Time(hosts, []plan.Share{{Node: 9, Share: 1}}); fault.CodeOf(err) != fault.Value {
			t.Errorf("%s: Time: %v", name, err)
		}
	}
}

// A plan that leaves packets without an aggregator never ends a round.
func TestTimeOfUnusablePlans(t *testing.T) {
	for name, shares := range map[string][]plan.Share{
		"none":            nil,
		"all zero":        {{Node: 8, Share: 0}, {Node: 9, Share: 0}},
		"a node is gone":  {{Node: 9, Share: 1}, {Node: 21, Share: 1}},
		"all nodes gone":  {{Node: 21, Share: 1}},
		"the scheduler's": {{Node: wire.SchedulerID, Share: 1}},
	} {
		if got := timeOf(t, equal(2, 1), shares); !math.IsInf(got, 1) {
			t.Errorf("%s: %g", name, got)
		}
	}
}

// Whatever the numbers, Plan returns a plan that can be used, or an error.
func FuzzPlan(f *testing.F) {
	seed := func(numbers ...float64) {
		var data []byte
		for _, x := range numbers {
			data = binary.LittleEndian.AppendUint64(data, math.Float64bits(x))
		}
		f.Add(uint16(0b0101), uint16(0b0111), data)
	}
	seed(1e9, 1e9, 1e10, 1e8, 1e9, 1e10, 1e9, 1e9, 1e10)
	seed(1, 1e15, 1, 1e15, 1, 1e15, 1, 1, 1e15)
	seed(0, math.NaN(), math.Inf(1), -1, 1e300, 5e-324)
	seed(7e10, 9.5e6, 1.06e6, 2.5e7, 2.5e7, 7e10) // the worker's part must not be rounded away
	f.Fuzz(func(t *testing.T, workers, breaks uint16, data []byte) {
		var hosts []Host
		for i := 0; i < 16 && len(data) >= 24; i, data = i+1, data[24:] {
			number := func(k int) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(data[8*k:])) }
			if len(hosts) == 0 || breaks>>i&1 == 1 {
				hosts = append(hosts, Host{Up: number(0), Down: number(1)})
			}
			h := &hosts[len(hosts)-1]
			h.Nodes = append(h.Nodes, Node{uint32(8 + i), workers>>i&1 == 1, number(2)})
		}
		shares, err := Plan(hosts)
		if err != nil {
			return
		}
		if _, err := plan.New(shares); err != nil {
			t.Fatalf("%+v: %v", hosts, err)
		}
		m := modelOf(t, hosts)
		got, want := timeOf(t, hosts, shares), m.slowest(m.best())
		cancelled := 0.0 // of the last digits of 1 - share, where a host has nearly all of the summing
		for _, h := range m.hosts {
			cancelled = max(cancelled, 1e-15*h.base/h.link)
		}
		if !(got > 0 && got <= want*1.01+cancelled && got >= want*(1-1e-9)-cancelled) {
			t.Errorf("%+v: %v: time %g, optimum %g", hosts, shares, got, want)
		}
	})
}
