package transport

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// flaky stands between a node and those that dial it. It resets each connection after a random number of bytes, also of a
// handshake; what it has taken but not passed on is lost then, although the kernels have acknowledged it.
type flaky struct {
	listener net.Listener
	target   string       // guarded by mu
	silent   atomic.Bool  // it takes connections, and passes nothing on
	wears    atomic.Int64 // resets that are left
	resets   atomic.Int64
	mu       sync.Mutex
	rng      *rand.Rand
	most     int64             // bytes that pass over each connection, if not drawn
	open     map[net.Conn]bool // both sides of each
}

// wear puts a flaky between n and the nodes that dial it.
func wear(t testing.TB, n *node, rng *rand.Rand, resets int) *flaky {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &flaky{listener: l, target: n.addr(), rng: rand.New(rand.NewPCG(rng.Uint64(), 1)), open: map[net.Conn]bool{}}
	f.wears.Store(int64(resets))
	n.front = l.Addr().String()
	t.Cleanup(f.close)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f.pass(c)
		}
	}()
	return f
}

// close resets everything, and lets nobody in any more.
func (f *flaky) close() {
	f.listener.Close()
	f.breakAll()
}

// breakAll resets all connections.
func (f *flaky) breakAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.open {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	clear(f.open)
}

// bytes draws how many bytes pass over the next connection.
func (f *flaky) bytes() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.most > 0 {
		return f.most
	}
	return f.rng.Int64N(1 << f.rng.IntN(22))
}

func (f *flaky) passOnTo() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.target
}

func (f *flaky) pass(c net.Conn) {
	if f.silent.Load() {
		f.mu.Lock()
		f.open[c] = true
		f.mu.Unlock()
		return
	}
	up, err := net.Dial("tcp", f.passOnTo())
	if err != nil {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
		return
	}
	f.mu.Lock()
	f.open[c], f.open[up] = true, true
	f.mu.Unlock()
	var left atomic.Int64
	left.Store(f.bytes())
	reset := sync.OnceFunc(func() {
		for _, c := range []net.Conn{c, up} {
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	})
	carry := func(from, to net.Conn) {
		buffer := make([]byte, 30_000)
		for {
			n, err := from.Read(buffer)
			if over := -left.Add(-int64(n)); n > 0 && over >= 0 && f.wears.Add(-1) >= 0 {
				to.Write(buffer[:max(0, int64(n)-over)])
				f.resets.Add(1)
				reset()
				return
			}
			to.Write(buffer[:n])
			if err == io.EOF {
				to.(*net.TCPConn).CloseWrite()
				return
			}
			if err != nil {
				reset()
				return
			}
		}
	}
	var both sync.WaitGroup
	both.Go(func() { carry(c, up) })
	both.Go(func() { carry(up, c) })
	both.Wait()
	c.Close()
	up.Close()
	f.mu.Lock()
	delete(f.open, c)
	delete(f.open, up)
	f.mu.Unlock()
}
