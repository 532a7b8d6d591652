package node

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fptps/gocore/fault"
	"fptps/gocore/kv"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// patience is how long a test waits for what ought to come at once.
const patience = 30 * time.Second

// testCluster is a whole cluster in this process, over real sockets.
type testCluster struct {
	t         *testing.T
	scheduler *Node
	servers   []*Node
	workers   []*Node // by rank
}

// freePort is a port for a scheduler. Until free is called a socket is bound to it
// without listening, so that the kernel gives it to no other node that asks for any free port. The scheduler can
// still listen on it: like this socket it sets SO_REUSEADDR.
func freePort(t *testing.T) (port string, free func()) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(address.(*unix.SockaddrInet4).Port), func() { unix.Close(fd) }
}

// start brings up a cluster; extra settings go to every node.
func start(t *testing.T, workers, servers int, extra ...string) *testCluster {
	t.Helper()
	c := &testCluster{t: t}
	port, free := freePort(t)
	defer free()
	open := func(role string, rank int) *Node {
		settings := map[string]string{
			"DMLC_ROLE": role, "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": port,
			"DMLC_NUM_WORKER": strconv.Itoa(workers), "DMLC_NUM_SERVER": strconv.Itoa(servers),
			"DMLC_WORKER_ID": strconv.Itoa(rank), "DMLC_SERVER_ID": strconv.Itoa(rank),
		}
		for _, setting := range extra {
			name, value, _ := strings.Cut(setting, "=")
			settings[name] = value
		}
		config, err := ParseConfig(settings)
		if err != nil {
			t.Fatal(err)
		}
		return Open(config)
	}
	c.scheduler = open("scheduler", 0)
	for rank := range servers {
		c.servers = append(c.servers, open("server", rank))
	}
	for rank := range workers {
		c.workers = append(c.workers, open("worker", rank))
	}
	for rank, w := range c.workers {
		c.wait(w, w.Life())
		if got := w.Info().Rank; got != rank {
			t.Fatalf("worker %d got rank %d", rank, got)
		}
	}
	return c
}

// ended waits for a ticket and gives its error.
func (c *testCluster) ended(n *Node, ticket *kv.Ticket) error {
	c.t.Helper()
	done, err := ticket.Wait(patience)
	if !done {
		c.t.Fatalf("a ticket has not ended: %s (%v)", ticket.Explain().Text, err)
	}
	return err
}

func (c *testCluster) wait(n *Node, ticket *kv.Ticket) {
	c.t.Helper()
	if err := c.ended(n, ticket); err != nil {
		c.t.Fatal(err)
	}
}

// end closes everything in good order.
func (c *testCluster) end() {
	c.t.Helper()
	var tickets []*kv.Ticket
	for _, w := range c.workers {
		tickets = append(tickets, w.Close())
	}
	for i, w := range c.workers {
		c.wait(w, tickets[i])
	}
	for _, n := range append(c.servers, c.scheduler) {
		c.wait(n, n.Life())
	}
}

func (c *testCluster) stores() []*kv.Worker {
	c.t.Helper()
	var all []*kv.Worker
	for _, w := range c.workers {
		store, err := w.Worker()
		if err != nil {
			c.t.Fatal(err)
		}
		all = append(all, store)
	}
	return all
}

// initAll declares a key everywhere and waits for it.
func (c *testCluster) initAll(key uint64, bytes int) {
	c.t.Helper()
	var tickets []*kv.Ticket
	for _, store := range c.stores() {
		ticket, err := initOne(store, key, wire.Uint32, make([]byte, bytes))
		if err != nil {
			c.t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	for rank, ticket := range tickets {
		c.wait(c.workers[rank], ticket)
	}
}

// number is what a rank pushes at place i in a round: distinct everywhere.
func number(rank, round, i int) uint32 { return uint32((rank+1)*1000003 + round*10007 + i) }

func TestWholeClusters(t *testing.T) {
	for _, c := range []struct {
		workers, servers int
		settings         []string
	}{
		{1, 0, nil}, {1, 1, nil}, {2, 1, nil}, {3, 0, nil}, {2, 2, []string{"FPTPS_SHARE=3"}}, {4, 3, nil},
		{2, 1, []string{"FPTPS_SEND_BUFFER=8192", "FPTPS_RECEIVE_BUFFER=8192"}},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			t.Parallel()
			cluster := start(t, c.workers, c.servers, c.settings...)
			sizes := []int{4, wire.PacketBytes, 7*wire.PacketBytes + 12}
			for key, size := range sizes {
				cluster.initAll(uint64(key), size)
			}
			for round := range 3 {
				cluster.checkRound(round, sizes)
			}
			cluster.end()
		})
	}
}

// checkRound pushes every tensor on every worker, in place, and checks all sums.
func (c *testCluster) checkRound(round int, sizes []int) {
	c.t.Helper()
	type under struct {
		array  []byte
		ticket *kv.Ticket
	}
	var all [][]under
	for rank, store := range c.stores() {
		var mine []under
		for key, size := range sizes {
			array := make([]byte, size)
			for i := 0; i < size; i += 4 {
				binary.LittleEndian.PutUint32(array[i:], number(rank, round, i+key))
			}
			ticket, err := store.PushPull(uint64(key), wire.Uint32, array, array, wire.OpSum, int32(-key))
			if err != nil {
				c.t.Fatal(err)
			}
			mine = append(mine, under{array, ticket})
		}
		all = append(all, mine)
	}
	for rank, mine := range all {
		for key, u := range mine {
			c.wait(c.workers[rank], u.ticket)
			for i := 0; i < len(u.array); i += 4 {
				want := uint32(0)
				for other := range c.workers {
					want += number(other, round, i+key)
				}
				if got := binary.LittleEndian.Uint32(u.array[i:]); got != want {
					c.t.Fatalf("rank %d key %d round %d byte %d: %d, expected %d", rank, key, round, i, got, want)
				}
			}
		}
	}
}

// TestDeathIsNamedEverywhere has one node leave without a word, as a killed process
// does, while all others wait for something.
func TestDeathIsNamedEverywhere(t *testing.T) {
	for _, victim := range []string{"worker 1", "server 0", "scheduler"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			c := start(t, 3, 2)
			c.initAll(7, 5*wire.PacketBytes)
			waiting := map[*Node]*kv.Ticket{}
			for rank, store := range c.stores() {
				if rank == 1 {
					continue // so that nothing can be complete
				}
				array := make([]byte, 5*wire.PacketBytes)
				ticket, err := store.PushPull(7, wire.Uint32, array, array, wire.OpSum, 0)
				if err != nil {
					t.Fatal(err)
				}
				waiting[c.workers[rank]] = ticket
			}
			barrier, err := c.workers[2].Barrier()
			if err != nil {
				t.Fatal(err)
			}
			dead := map[string]*Node{"worker 1": c.workers[1], "server 0": c.servers[0], "scheduler": c.scheduler}[victim]
			c.wait(dead, dead.Leave("it left"))
			named := func(who *Node, err error) {
				t.Helper()
				if who == dead {
					return
				}
				if fault.CodeOf(err) != fault.NodeLost || err == nil || !strings.HasPrefix(err.Error(), victim+" was lost") {
					t.Errorf("%s %d: %v", who.Info().Role, who.Info().Rank, err)
				}
			}
			for node, ticket := range waiting {
				named(node, c.ended(node, ticket))
			}
			named(c.workers[2], c.ended(c.workers[2], barrier))
			for _, n := range append(c.servers, c.scheduler) {
				if n != dead {
					named(n, c.ended(n, n.Life()))
				}
			}
			for _, w := range c.workers {
				if w != dead {
					ticket, err := w.Barrier() // worker 1 has not waited for anything yet
					if err == nil {
						err = c.ended(w, ticket)
					}
					named(w, err)
					named(w, c.ended(w, w.Close()))
					_, err = w.Worker()
					named(w, err)
				}
			}
		})
	}
}

func TestNoSchedulerAtTheAddress(t *testing.T) {
	port, free := freePort(t)
	defer free()
	config, err := ParseConfig(environment("DMLC_PS_ROOT_URI=127.0.0.1", "DMLC_PS_ROOT_PORT="+port, "FPTPS_TIMEOUT=0.3"))
	if err != nil {
		t.Fatal(err)
	}
	n := Open(config)
	done, err := n.Life().Wait(patience)
	if !done || fault.CodeOf(err) != fault.Connect || !strings.Contains(err.Error(), "127.0.0.1:") || !strings.Contains(err.Error(), "worker") {
		t.Errorf("%v, %v", done, err)
	}
}

// The data plane listens at the requested port; if another process has the port, the error names the setting.
func TestDataPort(t *testing.T) {
	port, free := freePort(t)
	defer free()
	wanted, _ := strconv.Atoi(port)
	tr, err := transport.Listen(transport.Config{Host: "127.0.0.1", Port: wanted})
	if err != nil || tr.Port() != wanted {
		t.Fatalf("listens at %v: %v", tr, err)
	}
	defer tr.Close()
	c, err := ParseConfig(map[string]string{
		"DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "1",
		"DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "0", "FPTPS_DATA_PORT": port,
	})
	if err != nil {
		t.Fatal(err)
	}
	n := Open(c)
	done, err := n.Life().Wait(patience)
	if !done || fault.CodeOf(err) != fault.Config || !strings.Contains(err.Error(), "port "+port) || !strings.Contains(err.Error(), "FPTPS_DATA_PORT") {
		t.Errorf("done %v, error %v", done, err)
	}
	n.Leave("it left").Wait(patience)
}

func TestClosedWhileJoining(t *testing.T) {
	port, free := freePort(t)
	defer free()
	config, err := ParseConfig(environment("DMLC_PS_ROOT_URI=127.0.0.1", "DMLC_PS_ROOT_PORT="+port))
	if err != nil {
		t.Fatal(err)
	}
	n := Open(config)
	c := &testCluster{t: t}
	c.wait(n, n.Close())
	if err := c.ended(n, n.Life()); fault.CodeOf(err) != fault.Closed {
		t.Errorf("life ended with %v", err)
	}
	if _, err := n.Worker(); fault.CodeOf(err) != fault.Closed {
		t.Errorf("a closed worker's store: %v", err)
	}
}

func TestAlone(t *testing.T) {
	config, err := ParseConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	n := Open(config)
	c := &testCluster{t: t, workers: []*Node{n}}
	c.wait(n, n.Life())
	c.initAll(0, 12)
	c.checkRound(0, []int{12})
	barrier, err := n.Barrier()
	if err != nil {
		t.Fatal(err)
	}
	c.wait(n, barrier)
	c.wait(n, n.Close())
}

// TestNothingIsLeftBehind counts goroutines and file descriptors after clusters
// that ended well, and that did not.
func TestNothingIsLeftBehind(t *testing.T) {
	life := func(orderly bool) {
		c := start(t, 2, 1)
		c.initAll(0, 100)
		if orderly {
			c.end()
			return
		}
		for _, n := range append(append(c.workers, c.servers...), c.scheduler) {
			c.wait(n, n.Leave("it left"))
		}
	}
	life(true) // libzmq and the runtime keep some for good
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	for i := range 6 {
		life(i%2 == 0)
	}
	deadline := time.Now().Add(patience)
	for runtime.NumGoroutine() > goroutines || openFiles(t) > files {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, at first %d; %d files, at first %d\n%s", runtime.NumGoroutine(), goroutines,
				openFiles(t), files, stacks[:runtime.Stack(stacks, true)])
		}
		runtime.Gosched()
	}
}

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// initOne declares one tensor.
func initOne(w *kv.Worker, key uint64, dtype wire.DType, memory []byte) (*kv.Ticket, error) {
	tickets, err := w.InitAll([]kv.Init{{Key: key, DType: dtype, Memory: memory}})
	if err != nil {
		return nil, err
	}
	return tickets[0], nil
}
