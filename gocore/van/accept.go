package van

import (
	"context"
	"errors"
	"net"
	"strconv"
	"time"

	"fptps/gocore/fault"
)

// acceptRetry is how long the van waits after it could not accept a connection: out of descriptors, for example.
const acceptRetry = 100 * time.Millisecond

// Bind implements Van.
func (v *zmqVan) Bind(host string, port int) (int, error) {
	network := "tcp"
	if host == "" {
		network = "tcp4"
	}
	config := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: keepAliveIdle * time.Second, Interval: keepAliveInterval * time.Second, Count: keepAliveCount,
	}}
	listener, err := config.Listen(context.Background(), network, net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return 0, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closing.Load() {
		listener.Close()
		return 0, ErrClosed
	}
	v.mu.listener = listener
	v.readers.Add(1)
	go v.accept(listener)
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// Trust implements Van.
func (v *zmqVan) Trust(isMember func(e *Envelope) bool) {
	if v.members.Swap(&isMember) == nil {
		close(v.trusting)
	}
}

// isMember reports whether a message, of which e holds the first frame, comes from a member.
func (v *zmqVan) isMember(e *Envelope) bool {
	is := v.members.Load()
	return is != nil && e.From != 0 && (*is)(e)
}

// accept accepts connections until the listener is closed.
func (v *zmqVan) accept(listener net.Listener) {
	defer v.readers.Done()
	if err := fault.Catch(func() error { return v.acceptAll(listener) }); err != nil {
		v.broken <- err
	}
}

func (v *zmqVan) acceptAll(listener net.Listener) error {
	for logged := false; ; {
		c, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			if !logged {
				v.log.Warn("control plane cannot accept a connection", "error", err)
				logged = true
			}
			v.connections.makeRoom()
			select {
			case <-time.After(acceptRetry):
			case <-v.done:
			}
			continue
		}
		if n := newConn(v, c); v.connections.add(n) {
			v.readers.Add(1)
			go v.serve(n)
		}
	}
}

// serve reads the messages of one connection.
func (v *zmqVan) serve(c *conn) {
	defer v.readers.Done()
	defer v.connections.remove(c)
	defer c.Close()
	err := fault.Catch(c.run)
	select {
	case <-v.done: // the connection was closed here
		return
	case <-c.evicted:
		err = c.why
	default:
	}
	var bug *fault.Error
	switch {
	case errors.As(err, &bug):
		v.log.Error("the control plane failed", "reason", err)
	case err != nil:
		v.rejects.add(c.host, err)
	}
}
