package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// Waits between attempts to connect: the peer may not listen yet.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = 500 * time.Millisecond
)

// Dial connects to peer, which must expect this node. It retries until ctx ends if the
// connection is refused or breaks before the peer's answer. If the peer itself refuses,
// Dial returns the peer's reason at once. The peer does not answer before its Start; ctx
// bounds that wait too.
func (t *Transport) Dial(ctx context.Context, peer uint32, incarnation uint64, addr string) error {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return fault.New(fault.Connect, "data address %q of %s: %v", addr, name(peer), err)
	}
	if reason := t.reserve(peer); reason != "" {
		return fault.New(fault.Connect, "cannot connect to %s at %s: %s", name(peer), addr, reason)
	}
	defer t.unreserve(peer)
	var last error // error of the last attempt that did not fail by the end of ctx
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		err := t.attempt(ctx, peer, incarnation, addr)
		if last == nil || ctx.Err() == nil {
			last = err
		}
		var refusal *refusal
		switch {
		case err == nil:
			return nil
		case errors.As(err, &refusal):
			return fault.New(fault.Connect, "%s at %s refuses the data connection: %s", name(peer), addr, refusal.reason)
		}
		select {
		case <-t.stopping:
			return t.closedError()
		case <-ctx.Done():
			return fault.New(fault.Connect, "no data connection with %s at %s: %v (last: %v)", name(peer), addr, ctx.Err(), last)
		case <-time.After(wait):
		}
	}
}

// refusal is an answer that a retry would not change.
type refusal struct{ reason string }

func (r *refusal) Error() string { return r.reason }

// attempt makes one attempt to connect: over shared memory if the peer is on this host
// and agrees, else over TCP.
func (t *Transport) attempt(ctx context.Context, peer uint32, incarnation uint64, addr string) error {
	if t.config.SharedMemory != SharedMemoryNever && isLocal(ctx, addr) {
		err := t.attemptShm(ctx, peer, incarnation, addr)
		if err == nil || ctx.Err() != nil || t.config.SharedMemory == SharedMemoryAlways {
			return err
		}
		t.config.Log.Debug("no shared memory with a node of this host", "peer", name(peer), "error", err)
	}
	if t.config.SharedMemory == SharedMemoryAlways {
		return &refusal{"it is on another host, with which memory cannot be shared (FPTPS_VAN=shm)"}
	}
	d := net.Dialer{Control: t.config.control}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	hello := t.newHello(peer, incarnation)
	var s *session
	if hello.Purpose = t.purpose(); hello.Purpose == wire.Endure {
		s = newSession(true, addr, incarnation)
	}
	sendHello := func(b []byte) error { _, err := c.Write(b); return err }
	return t.dialHandshake(ctx, c.(stream), hello, sendHello, func(uint32) error { return t.establish(peer, c.(stream), nil, s) })
}

// newHello makes the Hello of this node and lane to a peer.
func (t *Transport) newHello(peer uint32, incarnation uint64) wire.Hello {
	hello := wire.NewHello(t.self.ID, t.self.Incarnation, peer, incarnation, t.self.Token)
	hello.Lane = t.lane
	return hello
}

// attemptShm offers shared memory to a peer on this host.
func (t *Transport) attemptShm(ctx context.Context, peer uint32, incarnation uint64, addr string) error {
	_, port, _ := net.SplitHostPort(addr)
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", shmName(port))
	if err != nil {
		return err
	}
	r := &rights{UnixConn: c.(*net.UnixConn)}
	defer r.drop()
	err = r.checkUser()
	if err != nil {
		r.Close()
		return err
	}
	o, err := newOffer()
	if err != nil {
		r.Close()
		return err
	}
	defer o.close()
	sendHello := func(hello []byte) error { return r.send(hello, append([]int{o.fd}, t.wakeFds()...)...) }
	return t.dialHandshake(ctx, r, t.newHello(peer, incarnation), sendHello, func(uint32) error {
		memory, err := o.accepted(r)
		if err != nil {
			return err
		}
		return t.establish(peer, r, memory, nil)
	})
}

// dialHandshake is the dialing side of a handshake over c, which it closes. If the peer accepts, it calls accepted, with the number of
// packets that have arrived there. It has no deadline but ctx: after a timeout of its own, a node could not know whether the peer
// considers it connected.
func (t *Transport) dialHandshake(ctx context.Context, c stream, hello wire.Hello,
	sendHello func(hello []byte) error, accepted func(received uint32) error) error {
	if !t.dialing.add(c, time.Now()) {
		return errStopped
	}
	defer t.dialing.remove(c)
	defer c.Close()
	defer context.AfterFunc(ctx, func() { fault.Catch(c.Close) })()

	var b [wire.HelloBytes]byte
	hello.Put(b[:])
	if err := sendHello(b[:]); err != nil {
		return err
	}
	received, err := readAnswer(c)
	if err != nil {
		return err
	}
	return accepted(received)
}

// isLocal reports whether addr is an address of this host.
func isLocal(ctx context.Context, addr string) bool {
	host, _, _ := net.SplitHostPort(addr)
	found, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return false
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range found {
		if a.IP.IsLoopback() || slices.ContainsFunc(own, func(o net.Addr) bool {
			n, ok := o.(*net.IPNet)
			return ok && n.IP.Equal(a.IP)
		}) {
			return true
		}
	}
	return false
}

// readAnswer reads the answer to a Hello; without an error the peer accepts.
func readAnswer(r io.Reader) (received uint32, err error) {
	var b [wire.AnswerBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, fmt.Errorf("closed before its answer: %w", err)
	}
	n, received, err := wire.GetAnswer(b[:])
	if err != nil {
		return 0, &refusal{err.Error()}
	}
	if n == 0 {
		return received, nil
	}
	reason := make([]byte, n)
	if _, err := io.ReadFull(r, reason); err != nil {
		return 0, fmt.Errorf("closed in the middle of its refusal: %w", err)
	}
	return 0, &refusal{wire.GetReason(reason)}
}
