package node

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"fptps/gocore/cluster"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// clusterOn is a cluster whose nodes are on random ones of some hosts.
func clusterOn(hosts int, random *rand.Rand, workers, servers int) cluster.View {
	view := cluster.View{}
	add := func(id int, role cluster.Role) {
		view.Members = append(view.Members, cluster.Member{ID: id, Role: role, Host: "host" + strconv.Itoa(random.IntN(hosts)), Protocol: 1})
	}
	for rank := range servers {
		add(wire.ServerID(rank), cluster.RoleServer)
	}
	for rank := range workers {
		add(wire.WorkerID(rank), cluster.RoleWorker)
	}
	add(wire.SchedulerID, cluster.RoleScheduler)
	return view
}

// However the nodes are spread over hosts, no link carries more than it should, and all that may exchange tensors over links do.
func TestProbeBytes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		view := clusterOn(1+random.IntN(9), random, 1+random.IntN(8), random.IntN(5))
		sent, received, fullest := map[string]int{}, map[string]int{}, 0
		for _, a := range view.Members[:len(view.Members)-1] {
			view.Self = a.ID
			bytes := probeBytes(view)
			for _, b := range view.Members {
				n := bytes[uint32(b.ID)]
				exchange := a.Host != b.Host && b.Role != cluster.RoleScheduler && (a.Role == cluster.RoleWorker || b.Role == cluster.RoleWorker)
				if exchange != (n > 0) {
					t.Fatalf("%v at %s sends %v at %s %d bytes", a.Role, a.Host, b.Role, b.Host, n)
				}
				sent[a.Host] += n
				received[b.Host] += n
			}
		}
		for _, m := range view.Members {
			fullest = max(fullest, sent[m.Host])
			if sent[m.Host] > transport.ProbeBytes || received[m.Host] > transport.ProbeBytes {
				t.Errorf("the link of %s sends %d bytes and receives %d", m.Host, sent[m.Host], received[m.Host])
			}
		}
		if fullest > 0 && fullest < transport.ProbeBytes*99/100 {
			t.Errorf("the fullest link sends %d bytes", fullest)
		}
	}
}

func TestProbeInWords(t *testing.T) {
	got := probed(2_500_000, cluster.Capacity{Down: 6.25e6})
	if want := "the probe of the links is over: 2.5 MB sent; this one sends an unknown rate, receives 50 Mbit/s"; got != want {
		t.Errorf("%q", got)
	}
}
