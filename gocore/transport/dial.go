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

// Waits between attempts to connect: the peer may be about to listen.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = 500 * time.Millisecond
)

// Dial connects to peer, which has to expect this node. Until ctx ends it tries
// again while the connection is refused or breaks off before the peer's answer; a
// refusal by the peer ends it at once, with the peer's reason. The peer answers
// when it has been started, so ctx bounds that wait too.
func (t *Transport) Dial(ctx context.Context, peer uint32, incarnation uint64, addr string) error {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return fault.New(fault.Connect, "data address %q of %s: %v", addr, name(peer), err)
	}
	if reason := t.reserve(peer); reason != "" {
		return fault.New(fault.Connect, "cannot connect to %s at %s: %s", name(peer), addr, reason)
	}
	defer t.unreserve(peer)
	var last error // why an attempt failed, other than by the end of ctx if possible
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

// refusal is an answer that another attempt would not change.
type refusal struct{ reason string }

func (r *refusal) Error() string { return r.reason }

// attempt is the dialing side of one handshake: by shared memory where the peer is on
// this host and willing, else by TCP.
func (t *Transport) attempt(ctx context.Context, peer uint32, incarnation uint64, addr string) error {
	if t.config.Share != ShareNever && isLocal(ctx, addr) {
		err := t.attemptNear(ctx, peer, incarnation, addr)
		if err == nil || ctx.Err() != nil || t.config.Share == ShareAlways {
			return err
		}
		t.config.Log.Debug("no shared memory with a node of this host", "peer", name(peer), "error", err)
	}
	if t.config.Share == ShareAlways {
		return &refusal{"it is on another host, with which no memory can be shared (FPTPS_VAN=shm)"}
	}
	d := net.Dialer{Control: t.config.control}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	say := func(hello []byte) error { _, err := c.Write(hello); return err }
	return t.shake(ctx, c.(stream), peer, incarnation, say, func() (*share, error) { return nil, nil })
}

// attemptNear offers memory to a peer of this host.
func (t *Transport) attemptNear(ctx context.Context, peer uint32, incarnation uint64, addr string) error {
	_, port, _ := net.SplitHostPort(addr)
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", shareName(port))
	if err != nil {
		return err
	}
	r := &rights{UnixConn: c.(*net.UnixConn)}
	defer r.drop()
	o, err := newOffer()
	if err != nil {
		r.Close()
		return err
	}
	defer o.close()
	say := func(hello []byte) error { return r.send(hello, append([]int{o.fd}, t.bells()...)...) }
	return t.shake(ctx, r, peer, incarnation, say, func() (*share, error) { return o.accepted(r) })
}

// shake is the dialing side of one handshake over c, which it closes. It sets no
// deadline of its own: a node that gave up waiting could not know whether the peer has
// it as connected.
func (t *Transport) shake(ctx context.Context, c stream, peer uint32, incarnation uint64,
	say func(hello []byte) error, share func() (*share, error)) error {
	if !t.dialing.add(c, time.Now()) {
		return errStopped
	}
	defer t.dialing.remove(c)
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()

	hello := wire.NewHello(t.self.ID, t.self.Incarnation, peer, incarnation, t.self.Token)
	hello.Lane = t.lane
	var b [wire.HelloBytes]byte
	hello.Put(b[:])
	if err := say(b[:]); err != nil {
		return err
	}
	if err := answerOf(c); err != nil {
		return err
	}
	near, err := share()
	if err != nil {
		return err
	}
	return t.establish(peer, c, near)
}

// isLocal tells whether addr is one of this host.
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

// answerOf reads the answer to a Hello; nil is welcome.
func answerOf(r io.Reader) error {
	var b [wire.AnswerBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return fmt.Errorf("closed before its answer: %w", err)
	}
	n, err := wire.GetAnswer(b[:])
	if err != nil {
		return &refusal{err.Error()}
	}
	if n == 0 {
		return nil
	}
	reason := make([]byte, n)
	if _, err := io.ReadFull(r, reason); err != nil {
		return fmt.Errorf("closed in the middle of its refusal: %w", err)
	}
	return &refusal{wire.GetReason(reason)}
}
