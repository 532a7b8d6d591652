package cluster

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/plan"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// onHosts makes members with the ids 9, 11, ... (workers), each on the host that is named.
func onHosts(names ...string) (members []*member) {
	for rank, name := range names {
		members = append(members, &member{Member: Member{ID: wire.WorkerID(rank), Role: RoleWorker, Host: name, Share: 1}})
	}
	return members
}

func TestCapacitiesOfHosts(t *testing.T) {
	apart := onHosts("a", "b", "c")
	for name, tc := range map[string]struct {
		members []*member
		reports map[int]Capacity
		want    string // up/down of each host; "": nothing is known
	}{
		"nothing is known":                      {apart, map[int]Capacity{9: {Carried: 50}}, ""},
		"the others count as fast":              {apart, map[int]Capacity{9: {Up: 100}}, "100/100 100/100 100/100"},
		"a slow one":                            {apart, map[int]Capacity{9: {Up: 100, Down: 40}, 11: {Down: 95}}, "95/40 95/95 95/95"},
		"one was measured too high":             {apart, map[int]Capacity{9: {Up: 108, Down: 100}, 11: {Up: 93}, 13: {Down: 80}}, "100/100 100/100 100/80"},
		"one is much faster":                    {apart, map[int]Capacity{9: {Up: 200, Down: 100}, 11: {Up: 100}}, "200/100 100/200 200/200"},
		"no fast one was measured":              {apart, map[int]Capacity{9: {Up: 20}, 11: {Carried: 100}}, "20/100 100/100 100/100"},
		"a burst is no fast link":               {apart, map[int]Capacity{9: {Up: 80}, 11: {Carried: 100}}, "80/80 80/80 80/80"},
		"nodes that share a link see a part":    {onHosts("a", "a", "b"), map[int]Capacity{9: {Up: 50}, 11: {Up: 50}, 13: {Down: 100}}, "100/100 100/100"},
		"one that has a link of its own beside": {onHosts("a", "a", "b"), map[int]Capacity{9: {Up: 100}, 13: {Down: 30}}, "100/100 100/30"},
	} {
		p := planner{reports: tc.reports}
		hosts, known := p.hosts(tc.members)
		got := ""
		for i, h := range hosts {
			if i > 0 {
				got += " "
			}
			got += fmt.Sprintf("%g/%g", h.Up, h.Down)
		}
		if !known {
			got = ""
		}
		if got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

// A path bounds what a server sums to what a worker can exchange with it over the path, W times its rate; two workers share theirs.
func TestSlowPathsLimitSums(t *testing.T) {
	apart := append(onHosts("a", "b", "c"), &member{Member: Member{ID: wire.ServerID(0), Role: RoleServer, Host: "d"}},
		&member{Member: Member{ID: wire.ServerID(1), Role: RoleServer, Host: "e"}})
	together := append(onHosts("a", "b", "b"), &member{Member: Member{ID: wire.ServerID(0), Role: RoleServer, Host: "d"}})
	paths := func(id int, rates map[uint32]float64) map[int]Capacity {
		return map[int]Capacity{9: {Up: 100}, id: {Up: 100, Paths: rates}}
	}
	for name, tc := range map[string]struct {
		members []*member
		reports map[int]Capacity
		want    string
	}{
		"none":                               {apart, paths(8, nil), "sums map[] []"},
		"worker to server":                   {apart, paths(8, map[uint32]float64{9: 10}), "sums map[8:30] [worker 0 to server 0 carries 10]"},
		"server to worker":                   {apart, paths(11, map[uint32]float64{8: 10}), "sums map[8:30] [server 0 to worker 1 carries 10]"},
		"the slower one counts":              {apart, paths(8, map[uint32]float64{9: 10, 11: 8}), "sums map[8:24] [worker 1 to server 0 carries 8 worker 0 to server 0 carries 10]"},
		"between workers":                    {apart, paths(11, map[uint32]float64{13: 10}), "sums map[11:15 13:15] [worker 2 to worker 1 carries 10]"},
		"between servers nothing passes":     {apart, paths(8, map[uint32]float64{10: 1}), "sums map[] []"},
		"the server's link allows no more":   {apart, paths(8, map[uint32]float64{9: 31}), "sums map[] []"},
		"as slow as the worker's link":       {apart, map[int]Capacity{9: {Up: 10}, 8: {Up: 100, Paths: map[uint32]float64{9: 9.5}}}, "sums map[] []"},
		"an equal part of the worker's link": {apart, map[int]Capacity{9: {Up: 10}, 8: {Up: 100, Paths: map[uint32]float64{9: 2.4}}}, "sums map[] []"},
		"an equal part of a fast link":       {apart, paths(8, map[uint32]float64{9: 25}), "sums map[8:75] [worker 0 to server 0 carries 25]"},
		"less than that": {
			apart, map[int]Capacity{9: {Up: 10}, 8: {Up: 100, Paths: map[uint32]float64{9: 2}}}, "sums map[8:6] [worker 0 to server 0 carries 2]",
		},
		"an equal part of the server's link": {apart, map[int]Capacity{9: {Up: 100}, 8: {Up: 20, Paths: map[uint32]float64{9: 5}}}, "sums map[] []"},
		"of nodes that share a link":         {together, paths(8, map[uint32]float64{11: 10}), "sums map[] []"},
		"of a node that is not there":        {apart, paths(15, map[uint32]float64{9: 10, 17: 10}), "sums map[] []"},
		"links were not measured, paths were": {
			apart, map[int]Capacity{8: {Carried: 100, Paths: map[uint32]float64{9: 10}}}, "sums map[8:30] [worker 0 to server 0 carries 10]",
		},
	} {
		p := planner{reports: tc.reports}
		list, known := p.hosts(tc.members)
		slow, sums, texts := p.limitSums(list), map[uint32]float64{}, []string{}
		for _, h := range list {
			for _, n := range h.Nodes {
				if n.Sums < 1000 {
					sums[n.ID] = n.Sums
				}
			}
		}
		for _, path := range slow {
			texts = append(texts, fmt.Sprintf("%s to %s carries %g", Name(path.from), Name(path.to), path.rate))
		}
		if got := fmt.Sprint("sums ", sums, " ", texts); got != tc.want || !known {
			t.Errorf("%s: %s, want %s; known: %v", name, got, tc.want, known)
		}
	}
}

func TestSlowProcessorsLimitLinks(t *testing.T) {
	for name, tc := range map[string]struct {
		members []*member
		reports map[int]Capacity
		want    string
	}{
		"none":                           {onHosts("a", "b", "c"), map[int]Capacity{9: {Up: 100}}, "[] 100/100 100/100 100/100"},
		"one":                            {onHosts("a", "b", "c"), map[int]Capacity{9: {Up: 100}, 11: {Processor: 30}}, "[worker 1: 30] 100/100 30/30 100/100"},
		"no link was measured":           {onHosts("a", "b", "c"), map[int]Capacity{9: {Carried: 100}, 11: {Processor: 30}}, "[worker 1: 30] 100/100 30/30 100/100"},
		"about as fast as the others":    {onHosts("a", "b", "c"), map[int]Capacity{9: {Up: 100}, 11: {Processor: 80}}, "[] 100/100 100/100 100/100"},
		"its link is slower":             {onHosts("a", "b", "c"), map[int]Capacity{9: {Up: 100}, 11: {Down: 20, Processor: 30}}, "[] 100/100 100/20 100/100"},
		"two":                            {onHosts("a", "b", "c"), map[int]Capacity{9: {Up: 100, Processor: 50}, 11: {Processor: 40}}, "[worker 0: 50 worker 1: 40] 50/50 40/40 100/100"},
		"nodes that share the processor": {onHosts("a", "a", "b"), map[int]Capacity{9: {Up: 100, Processor: 20}, 13: {Up: 100}}, "[] 100/100 100/100"},
	} {
		p := planner{reports: tc.reports}
		list, known := p.hosts(tc.members)
		got := fmt.Sprint(limited(p.limitLinks(list), tc.members))
		for _, h := range list {
			got += fmt.Sprintf(" %g/%g", h.Up, h.Down)
		}
		if got != tc.want || !known {
			t.Errorf("%s: %s, want %s; known: %v", name, got, tc.want, known)
		}
	}
}

// limited lists slow processors in the order of the members.
func limited(slow map[uint32]float64, members []*member) (texts []string) {
	for _, m := range members {
		if rate, ok := slow[uint32(m.ID)]; ok {
			texts = append(texts, fmt.Sprintf("%s: %g", Name(m.ID), rate))
		}
	}
	return texts
}

// Of many paths to a node the slowest counts, in whatever order they come.
func TestTheSlowestPathCounts(t *testing.T) {
	members := append(onHosts("a", "b", "c", "d", "e"), &member{Member: Member{ID: wire.ServerID(0), Role: RoleServer, Host: "s"}})
	p := planner{reports: map[int]Capacity{8: {Up: 100, Paths: map[uint32]float64{9: 3, 11: 4, 13: 1, 15: 5, 17: 2}}}}
	for range 20 {
		list, _ := p.hosts(members)
		p.limitSums(list)
		if got := list[5].Nodes[0].Sums; got != 5 {
			t.Fatalf("server 0 can sum %g, want 5", got)
		}
	}
}

// A report keeps no more than a path from each other member.
func TestSensiblePaths(t *testing.T) {
	s := &Scheduler{members: map[int]*member{}}
	for _, m := range append(onHosts("a", "b"), &member{Member: Member{ID: wire.SchedulerID, Role: RoleScheduler}}) {
		s.members[m.ID] = m
	}
	var list []*pspb.Capacity_Path
	for _, each := range []struct {
		node int32
		rate float64
	}{{9, 1e6}, {11, math.NaN()}, {11, -1e6}, {11, math.Inf(1)}, {11, 2e6}, {11, 3e6}, {13, 1e6}, {1, 1e6}, {-9, 1e6}, {0, 1e6}, {math.MaxInt32, 1e6}} {
		list = append(list, &pspb.Capacity_Path{Node: proto.Int32(each.node), Rate: proto.Float64(each.rate)})
	}
	if got := s.sensiblePaths(9, append(list, nil, &pspb.Capacity_Path{})); !maps.Equal(got, map[uint32]float64{11: 2e6}) {
		t.Errorf("%v", got)
	}
}

// Paths as fast as the links, or shares of a link that were taken for paths, change no plan.
func TestFastPathsChangeNoPlan(t *testing.T) {
	members := onHosts("a", "b", "c", "d")
	for rank := range 4 {
		members = append(members, &member{Member: Member{ID: wire.ServerID(rank), Role: RoleServer, Host: fmt.Sprint(rank), Share: 1}})
	}
	for _, m := range members[:4] {
		m.Share = 0
	}
	now, random := time.Unix(0, 0), rand.New(rand.NewPCG(3, 4))
	p := planner{active: true, shares: sharesIn(members), reports: map[int]Capacity{}}
	for range 1000 {
		for _, m := range members {
			c := Capacity{Up: 1e7, Down: 1e7, Paths: map[uint32]float64{}}
			for _, peer := range members {
				if peer != m && random.IntN(3) == 0 {
					c.Paths[uint32(peer.ID)] = 1e7 * (0.24 + random.Float64())
				}
			}
			p.report(now, m.ID, c)
		}
		if c := p.look(now, members); c != nil {
			t.Fatalf("a new plan: %s", c.why)
		}
		now = now.Add(observeTime)
	}
}

// What is measured jumps all the time: the more often the plan has changed, the more a change has to gain.
func TestPlansSettleDespiteNoise(t *testing.T) {
	members := onHosts("a", "b", "c", "d")
	now := time.Unix(0, 0)
	p := planner{active: true, shares: sharesIn(members), reports: map[int]Capacity{}}
	changes, random := 0, rand.New(rand.NewPCG(1, 2))
	for range 3000 { // every 100 ms for 5 minutes
		for _, m := range members {
			rate := 1e7 * (0.7 + 0.3*random.Float64())
			p.report(now, m.ID, Capacity{Up: rate, Down: rate})
		}
		if c := p.look(now, members); c != nil {
			for _, m := range members {
				p.promised(now, m.ID, c.number, wire.Rounds{}, len(members))
			}
			changes++
		}
		now = now.Add(100 * time.Millisecond)
	}
	if changes < 1 || changes > 20 {
		t.Errorf("%d changes in 5 minutes", changes)
	}
}

// A plan's number in a header has 16 bits. 0 stays that of the first plan.
func TestNumbersOfPlansWrap(t *testing.T) {
	members := onHosts("a", "b", "c")
	now := time.Unix(0, 0)
	p := planner{active: true, shares: sharesIn(members), reports: map[int]Capacity{}, number: 1<<16 - 1}
	p.report(now, 9, Capacity{Up: 1e7, Down: 1e7})
	p.report(now, 11, Capacity{Up: 1e6, Down: 1e6})
	for range looks {
		now = now.Add(observeTime)
		if c := p.look(now, members); c != nil {
			if c.number != 1<<16+1 {
				t.Errorf("plan %d follows", c.number)
			}
			return
		}
	}
	t.Error("no plan follows")
}

func TestPercent(t *testing.T) {
	shares := []plan.Share{{Node: 8, Share: 3}, {Node: 9, Share: 1}, {Node: 11, Share: 4}}
	for id, want := range map[int]int{8: 38, 9: 13, 11: 50, 13: 0} {
		if got := percent(shares, id); got != want {
			t.Errorf("node %d has %d%%, want %d%%", id, got, want)
		}
	}
}

func sharesIn(members []*member) []plan.Share {
	var view View
	for _, m := range members {
		view.Members = append(view.Members, m.Member)
	}
	return view.Shares()
}
