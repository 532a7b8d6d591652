package cluster

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"fptps/gocore/plan"
	"fptps/gocore/wire"
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
		"nothing is known":                      {apart, map[int]Capacity{9: {CarriedUp: 50}}, ""},
		"the others count as fast":              {apart, map[int]Capacity{9: {Up: 100}}, "100/100 100/100 100/100"},
		"a slow one":                            {apart, map[int]Capacity{9: {Up: 100, Down: 40}, 11: {Down: 95}}, "100/40 100/100 100/100"},
		"no fast one was measured":              {apart, map[int]Capacity{9: {Up: 20}, 11: {CarriedDown: 100}}, "20/100 100/100 100/100"},
		"a burst is no fast link":               {apart, map[int]Capacity{9: {Up: 80}, 11: {CarriedDown: 100}}, "80/80 80/80 80/80"},
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
