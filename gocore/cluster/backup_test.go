package cluster

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire/pspb"
)

func TestBackupFor(t *testing.T) {
	member := func(id int, role Role, host string) Member { return Member{ID: id, Role: role, Host: host} }
	view := View{Members: []Member{
		member(8, RoleServer, "a"), member(10, RoleServer, "b"), member(9, RoleWorker, "b"), member(11, RoleWorker, "c"), member(13, RoleWorker, "c"),
		{ID: 12, Role: RoleServer, Host: "d", Newcomer: true}, member(1, RoleScheduler, "e"),
	}}
	for id, want := range map[int]int{
		8: 10, 10: 8, // another server on another host
		9: 11, 11: 9, 13: 9, // the next worker on another host
	} {
		if got := view.BackupFor(id); got != want {
			t.Errorf("the backup of %s is %s, want %s", Name(id), Name(got), Name(want))
		}
	}
	if got := (View{Members: []Member{member(9, RoleWorker, "a"), member(1, RoleScheduler, "a")}}).BackupFor(9); got != 0 {
		t.Errorf("a node alone has the backup %s", Name(got))
	}
	near := View{Members: []Member{member(8, RoleServer, "a"), member(9, RoleWorker, "a"), member(10, RoleServer, "a"), member(1, RoleScheduler, "a")}}
	if got := near.BackupFor(10); got != 8 {
		t.Errorf("on one host the backup of server 1 is %s", Name(got))
	}
}

// replicating is a scheduler of 2 workers and 2 servers with replicas, whose training has begun, with weights on the aggregators.
func replicating(t *testing.T) (*Scheduler, time.Time) {
	t.Helper()
	s := NewScheduler(Config{SchedulerHost: "sched", SchedulerPort: 1, Workers: 2, Servers: 2, MinWorkers: 1, Recovers: true, Replicas: 1}, [16]byte{1})
	for _, id := range []int{8, 10, 9, 11} {
		role := RoleServer
		if id%2 == 1 {
			role = RoleWorker
		}
		s.members[id] = &member{Member: Member{ID: id, Role: role, Host: "h", Port: id, Protocol: Protocol, Incarnation: uint64(id), Customers: 1}}
	}
	s.state, s.view, s.finals = running, s.makeView(), 1
	s.beginBackups()
	s.stateful = "the optimiser of key 0"
	return s, time.Unix(0, 0)
}

func lostIn(actions []Action) (lost []*pspb.Lost) {
	for _, a := range actions {
		if send, ok := a.(Send); ok && send.Meta.GetLost() != nil {
			lost = append(lost, send.Meta.GetLost())
		}
	}
	return lost
}

// The verdict names the heir, and an epoch begins with every death. Until the heir has a backup of what it has inherited, its death ends the cluster.
func TestTheBackupIsTheHeir(t *testing.T) {
	s, now := replicating(t)
	verdicts := lostIn(s.Gone(now, 8, s.members[8].Incarnation, "killed"))
	if len(verdicts) != 3 {
		t.Fatalf("%d verdicts", len(verdicts))
	}
	for _, lost := range verdicts {
		if !lost.GetBuried() || lost.GetHeir() != 10 || lost.GetEpoch() != 1 {
			t.Errorf("the verdict is %v", lost)
		}
	}
	report := func(epoch int) {
		s.stepBackedUp(s.members[10], &pspb.BackedUp{Id: proto.Int32(9), Epoch: proto.Uint32(uint32(epoch))})
	}
	report(0) // from before the death
	if what := s.lacks(10); what != "Nobody else has its part of the optimiser of key 0" {
		t.Errorf("with a backup of an earlier epoch it lacks %q", what)
	}
	report(1)
	if s.heir(10) != 9 || s.lacks(10) != "" {
		t.Errorf("the heir of server 1 is %s, and lacks %q", Name(s.heir(10)), s.lacks(10))
	}
	if !slices.ContainsFunc(s.take(), func(a Action) bool { return strings.Contains(a.String(), "backed: server 1 by worker 0") }) {
		t.Error("nobody hears of the backup")
	}
}

// The death of a backup leaves the node without an heir, and so do reports about nodes that are none.
func TestTheBackupDies(t *testing.T) {
	s, now := replicating(t)
	if s.heir(11) != 9 {
		t.Fatalf("the heir of worker 1 is %s", Name(s.heir(11)))
	}
	s.Gone(now, 9, s.members[9].Incarnation, "killed")
	for _, id := range []int32{9, 11, 1, 99} {
		s.stepBackedUp(s.members[11], &pspb.BackedUp{Id: proto.Int32(id), Epoch: proto.Uint32(1)})
	}
	if s.heir(11) != 0 {
		t.Errorf("the heir of worker 1 is %s", Name(s.heir(11)))
	}
	if verdicts := lostIn(s.Gone(now, 11, s.members[11].Incarnation, "killed")); len(verdicts) == 0 || verdicts[0].GetBuried() {
		t.Errorf("the verdict is %v", verdicts)
	}
}

// What is known of backups is part of the history, from which another scheduler goes on.
func TestTheHistoryHasTheBackups(t *testing.T) {
	h := newHistory(map[Role]int{RoleServer: 12, RoleWorker: 13}, nil, map[uint64]agreement{})
	h.replicates = true
	h.backups.of = map[int]int{8: 10, 9: 11, 10: 8, 11: 9}
	back := historyOf(h.encode(true))
	if !back.replicates || !maps.Equal(back.backups.of, h.backups.of) {
		t.Errorf("it comes back as %+v", back.backups)
	}
	for _, m := range []*pspb.Meta{
		{Own: &pspb.Meta_Lost{Lost: &pspb.Lost{Id: proto.Int32(8), Heir: proto.Int32(10), Epoch: proto.Uint32(3), Buried: proto.Bool(true)}}},
		{Own: &pspb.Meta_BackedUp{BackedUp: &pspb.BackedUp{Of: proto.Int32(11), Id: proto.Int32(10)}}},
	} {
		h.add(m, nil)
	}
	if want := map[int]int{9: 11, 11: 10}; !maps.Equal(h.backups.of, want) || h.backups.needed[10] != 3 {
		t.Errorf("after a death the backups are %+v", h.backups)
	}
	if back := historyOf(h.encode(true)); !maps.Equal(back.backups.of, h.backups.of) || back.backups.needed[10] != 3 {
		t.Errorf("it comes back as %+v", back.backups)
	}
}
