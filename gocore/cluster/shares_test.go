package cluster

import (
	"fmt"
	"strings"
	"testing"

	"fptps/gocore/wire"
)

// sharesOf is what the scheduler divides among workers and servers, as "servers; workers". set holds the
// shares that nodes have set, by name.
func sharesOf(workers, servers int, host func(id int) string, set map[string]int) string {
	s := &Scheduler{self: Member{Role: RoleScheduler, Protocol: Protocol}, c: Config{Workers: workers, Servers: servers}, members: map[int]*member{}}
	var names [2][]int
	add := func(role Role, id, kind int) {
		share, isSet := set[Name(id)]
		if !isSet {
			share = Unset
		}
		s.members[id] = &member{Member: Member{ID: id, Role: role, Host: host(id), Share: share, Protocol: Protocol}}
		names[kind] = append(names[kind], id)
	}
	for rank := range servers {
		add(RoleServer, wire.ServerID(rank), 0)
	}
	for rank := range workers {
		add(RoleWorker, wire.WorkerID(rank), 1)
	}
	s.divideSumming()
	var text [2][]string
	for kind, ids := range names {
		for _, id := range ids {
			text[kind] = append(text[kind], fmt.Sprint(s.members[id].Share))
		}
	}
	return strings.Join(text[0], " ") + "; " + strings.Join(text[1], " ")
}

func TestSharesOfEqualLinks(t *testing.T) {
	apart := func(id int) string { return fmt.Sprintf("10.0.0.%d", id) }
	for _, tc := range []struct {
		workers, servers int
		want             string
	}{
		{1, 0, "; 1"}, {2, 0, "; 1 1"}, {5, 0, "; 1 1 1 1 1"}, {1, 1, "1; 0"}, {2, 2, "1 1; 0 0"}, {2, 4, "1 1 1 1; 0 0"}, {0, 2, "1 1; "},
		{2, 1, "0; 1 1"},             // the workers' links carry the same whatever their shares
		{3, 1, "2; 1 1 1"},           // 2/5 and 1/5
		{4, 1, "2; 1 1 1 1"},         // 1/3 and 1/6
		{4, 2, "3 3; 1 1 1 1"},       // 3/10 and 1/10
		{8, 1, "4; 2 2 2 2 2 2 2 2"}, // 1/5 and 1/10
	} {
		if got := sharesOf(tc.workers, tc.servers, apart, nil); got != tc.want {
			t.Errorf("%d workers and %d servers: %s, want %s", tc.workers, tc.servers, got, tc.want)
		}
	}
}

// On one host no link is used: servers sum, and leave the processor's time of workers to the training.
func TestSharesOnOneHost(t *testing.T) {
	host := func(int) string { return "10.0.0.1" }
	for want, sizes := range map[string][2]int{"1; 0 0": {2, 1}, "1 1; 0 0 0 0": {4, 2}, "; 1 1": {2, 0}, "1 1; 0": {1, 2}} {
		if got := sharesOf(sizes[0], sizes[1], host, nil); got != want {
			t.Errorf("%v workers and servers: %s, want %s", sizes, got, want)
		}
	}
}

// Nodes behind one link: two machines with two workers each, and one with the server.
func TestSharesOfNodesOnOneHost(t *testing.T) {
	host := func(id int) string {
		if id == wire.ServerID(0) {
			return "server"
		}
		return fmt.Sprintf("workers %d", (id-wire.WorkerID(0))/4)
	}
	// The links of the workers carry two models whatever their shares.
	if got := sharesOf(4, 1, host, nil); got != "0; 1 1 1 1" {
		t.Errorf("shares %s", got)
	}
}

func TestSharesThatAreSet(t *testing.T) {
	apart := func(id int) string { return fmt.Sprint(id) }
	for _, tc := range []struct {
		workers, servers int
		set              map[string]int
		want             string
	}{
		{2, 1, map[string]int{"worker 1": 0}, "1; 0 0"},
		{2, 1, map[string]int{"worker 1": 3}, "1; 0 3"},
		{2, 1, map[string]int{"server 0": 5}, "5; 0 0"},
		{2, 0, map[string]int{"worker 0": 5}, "; 5 1"},
		{2, 1, map[string]int{"server 0": 0, "worker 0": 0, "worker 1": 0}, "0; 0 0"},
	} {
		if got := sharesOf(tc.workers, tc.servers, apart, tc.set); got != tc.want {
			t.Errorf("%d workers, %d servers, set %v: %s, want %s", tc.workers, tc.servers, tc.set, got, tc.want)
		}
	}
}
