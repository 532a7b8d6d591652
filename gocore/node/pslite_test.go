package node

import (
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/van"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// foreigner asks a scheduler for a place as a server of ps-lite's does.
func foreigner(t *testing.T, port string) van.Van {
	t.Helper()
	v, err := van.NewZMQ(slog.New(slog.DiscardHandler), van.MaxFrame)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	own, err := v.Bind("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	at, _ := strconv.Atoi(port)
	if err := v.Connect(wire.SchedulerID, "127.0.0.1", at); err != nil {
		t.Fatal(err)
	}
	me := &pspb.Node{Role: proto.Int32(int32(cluster.RoleServer)), Hostname: proto.String("127.0.0.1"), Port: proto.Int32(int32(own)), Id: proto.Int32(32767)}
	if err := v.Send(wire.SchedulerID, &pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.AddNode), Node: []*pspb.Node{me}}}); err != nil {
		t.Fatal(err)
	}
	return v
}

// A worker with tensors has no place in a cluster with programs of ps-lite, and its error names the classes to use. Neither has
// a node that is to add in the order of ranks.
func TestTensorsAmongPsLitePrograms(t *testing.T) {
	for deterministic, text := range map[string]string{"0": "use fptps.ps.KVWorker", "1": "FPTPS_DETERMINISTIC=1"} {
		t.Run(text, func(t *testing.T) { joinPsLite(t, deterministic, text) })
	}
}

// joinPsLite lets a worker join a program of ps-lite, and expects an error with the given text.
func joinPsLite(t *testing.T, deterministic, text string) {
	port, free := freePort(t)
	defer free()
	open := func(role string) *Node {
		c, err := ParseConfig(map[string]string{
			"DMLC_ROLE": role, "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": port,
			"DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "1", "FPTPS_DETERMINISTIC": deterministic,
		})
		if err != nil {
			t.Fatal(err)
		}
		return Open(c)
	}
	scheduler := open("scheduler")
	defer scheduler.Leave("it left")
	foreigner(t, port)
	worker := open("worker")
	done, err := worker.Life().Wait(patience)
	if !done || fault.CodeOf(err) != fault.Config || !strings.Contains(err.Error(), text) {
		t.Errorf("done %v, error %v", done, err)
	}
	worker.Leave("it left").Wait(patience)
}
