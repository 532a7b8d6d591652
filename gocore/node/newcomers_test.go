package node

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/kv"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// A newcomer connects to the others also while one of them stands still, and has not been given up yet.
func TestConnectionsBesideAStoppedNode(t *testing.T) {
	stopped, err := net.Listen("tcp", "127.0.0.1:0") // the kernel connects, and nobody answers
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	token := [wire.TokenBytes]byte{1}
	listen := func() *transport.Transport {
		tr, err := transport.Listen(transport.Config{Host: "127.0.0.1", SharedMemory: transport.SharedMemoryNever, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(tr.Close)
		return tr
	}
	start := func(tr *transport.Transport, id int, expected map[uint32]uint64) {
		h := &kv.Handler{Self: uint32(id), OnLost: func(uint32, error) {}, OnFailed: func(err error) { t.Error(err) }}
		tr.Start(transport.Identity{ID: uint32(id), Incarnation: 1, Token: token}, expected, 0, h)
	}
	dead, living, self := wire.ServerID(0), wire.ServerID(1), wire.WorkerID(5)
	lane, peer := listen(), listen()
	start(lane, self, nil)
	start(peer, living, map[uint32]uint64{uint32(self): 1})
	view := cluster.View{Self: self, Members: []cluster.Member{
		{ID: dead, Host: "127.0.0.1", DataPort: stopped.Addr().(*net.TCPAddr).Port, Incarnation: 1},
		{ID: living, Host: "127.0.0.1", DataPort: peer.Port(), Incarnation: 1},
	}}
	n := &Node{}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- n.connectLaneAs(ctx, lane, view, []int{dead, living}, nil) }()
	if err := peer.Await(ctx, []uint32{uint32(self)}); err != nil {
		t.Error(err)
	}
	n.noteDead(dead)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The time for the connections with a newcomer begins when this node has its own, which may take long: it is perhaps a newcomer, too.
func TestTimeForANewcomer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{ctx: context.Background(), connected: make(chan struct{})}
		n.mu.recoverySteps = map[int]recoveryStep{}
		left := make(chan time.Duration, 1)
		n.runStep(9, 1, func(ctx context.Context) error {
			end, _ := ctx.Deadline()
			left <- time.Until(end)
			return nil
		})
		time.Sleep(reconnectTime / 2)
		close(n.connected)
		if got := <-left; got != reconnectTime {
			t.Errorf("%v are left, want %v", got, reconnectTime)
		}
	})
}
