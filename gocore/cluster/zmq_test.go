package cluster

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/van"
	"fptps/gocore/wire"
)

// zmqCluster starts a cluster over ZeroMQ on the loopback interface.
func zmqCluster(t *testing.T, workers, servers int) (*Runner, []*Postoffice) {
	t.Helper()
	c := Config{
		Role: RoleScheduler, SchedulerHost: "127.0.0.1", Host: "127.0.0.1", Workers: workers, Servers: servers,
		HeartbeatInterval: 5 * time.Second, HeartbeatTimeout: 30 * time.Second,
		Log: slog.New(slog.DiscardHandler),
	}
	newVan := func() van.Van {
		v, err := van.NewZMQ(c.Log, van.MaxFrame)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	r, err := Serve(newVan(), c, Events{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	c.SchedulerPort = r.Port()
	all := make([]*Postoffice, workers+servers)
	var joining sync.WaitGroup
	for i := range all {
		mine, v := c, newVan()
		mine.Role, mine.Incarnation = RoleWorker, uint64(i+1)
		if i >= workers {
			mine.Role = RoleServer
		}
		joining.Go(func() {
			p, err := Join(context.Background(), v, mine, Events{})
			if err != nil {
				t.Error(err)
				return
			}
			all[i] = p
			t.Cleanup(p.Close)
		})
	}
	joining.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return r, all
}

func awaitAll(t *testing.T, all []*Postoffice, group int) {
	t.Helper()
	var meeting sync.WaitGroup
	for _, p := range all {
		meeting.Go(func() {
			if err := awaitBarrier(p, group); err != nil {
				t.Error(err)
			}
		})
	}
	meeting.Wait()
}

func TestLifeOverZMQ(t *testing.T) {
	r, all := zmqCluster(t, 2, 2)
	<-r.Joined()
	awaitAll(t, all, AllGroup)
	awaitAll(t, all[:2], WorkerGroup)
	var declaring sync.WaitGroup
	for _, p := range all[:2] {
		declaring.Go(func() {
			if _, err := declareMany(p, 200, p.View().Rank()); err != nil {
				t.Error(err)
			}
		})
	}
	declaring.Wait()
	awaitAll(t, all, AllGroup)
	<-r.Done()
	if err := r.Err(); err != nil {
		t.Error(err)
	}
}

// The last messages, verdicts and answers, are sent although all nodes close at once.
func TestVerdictOverZMQ(t *testing.T) {
	r, all := zmqCluster(t, 3, 0)
	awaitAll(t, all, AllGroup)
	errs := make(chan error, 2)
	dead := all[0].View().Self
	for _, p := range all[1:] {
		p.Barrier(0, WorkerGroup, func(err error) { errs <- err })
	}
	r.Gone(dead, all[0].View().Me().Incarnation, "killed")
	<-r.Done()
	r.Close()
	for range 2 {
		wantError(t, <-errs, fault.NodeLost, Name(dead), "killed")
	}
}

func TestRubbishOverZMQ(t *testing.T) {
	r, all := zmqCluster(t, 1, 1)
	stranger, err := van.NewZMQ(slog.New(slog.DiscardHandler), van.MaxFrame)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	stranger.Identify(all[0].View().Self + 2) // no member
	if err := stranger.Connect(wire.SchedulerID, "127.0.0.1", r.Port()); err != nil {
		t.Fatal(err)
	}
	for _, m := range ours() {
		if err := stranger.Send(wire.SchedulerID, m.meta); err != nil {
			t.Fatal(err)
		}
	}
	awaitAll(t, all, AllGroup)
}

// Without a token a scheduler connects to no third host that a stranger names, neither to refuse it nor to let it in.
func TestSchedulerConnectsToNoThirdHost(t *testing.T) {
	c := Config{Role: RoleScheduler, SchedulerHost: "127.0.0.1", Workers: 3, Log: slog.New(slog.DiscardHandler)}
	newVan := func() van.Van {
		v, err := van.NewZMQ(c.Log, van.MaxMeta)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	r, err := Serve(newVan(), c, Events{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	third, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	stranger := newVan()
	defer stranger.Close()
	port, err := stranger.Bind("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := stranger.Connect(wire.SchedulerID, "127.0.0.1", r.Port()); err != nil {
		t.Fatal(err)
	}
	ask := func(host string, port, workers int) {
		t.Helper()
		me := Member{Role: RoleWorker, Host: host, Port: port, Incarnation: 7, Protocol: Protocol}
		if err := stranger.Send(wire.SchedulerID, addNode(Config{Workers: workers}, me)); err != nil {
			t.Fatal(err)
		}
	}
	elsewhere := third.Addr().(*net.TCPAddr).Port
	ask("127.0.0.2", elsewhere, 5) // refused
	ask("127.0.0.2", elsewhere, 3) // let in
	ask("127.0.0.1", port, 5)      // refused, and answered
	e, err := stranger.Receive()
	if err != nil || e.Meta.GetRefused() == nil {
		t.Fatalf("got %v, %v, want a refusal", e, err)
	}
	raw, err := third.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { _, _, err = syscall.Accept(int(fd)) }) // does not wait
	if err != syscall.EAGAIN {
		t.Errorf("somebody has connected to the third host: %v", err)
	}
}

func TestLocalAddress(t *testing.T) {
	host, err := LocalAddress("127.0.0.1")
	if err != nil || net.ParseIP(host) == nil || !net.ParseIP(host).IsLoopback() {
		t.Errorf("on the way to the loopback address: %q, %v", host, err)
	}
	_, err = LocalAddress("no such host.invalid")
	wantError(t, err, fault.Connect, "DMLC_PS_ROOT_URI", "DMLC_NODE_HOST")
}

func TestBindHost(t *testing.T) {
	for host, want := range map[string]string{
		"127.0.0.1": "127.0.0.1", "127.0.0.5": "127.0.0.5", "192.0.2.1": "", "example.invalid": "", "": "",
	} {
		if got := bindHost(host); got != want {
			t.Errorf("bindHost(%q) = %q, want %q", host, got, want)
		}
	}
}
