package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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

// attempt is the dialing side of one handshake. It sets no deadline of its own: a
// node that gave up waiting could not know whether the peer has it as connected.
func (t *Transport) attempt(ctx context.Context, peer uint32, incarnation uint64, addr string) error {
	d := net.Dialer{Control: t.config.control}
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	c := raw.(*net.TCPConn)
	if !t.dialing.add(c, time.Now()) {
		return errStopped
	}
	defer t.dialing.remove(c)
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()

	hello := wire.NewHello(t.self.ID, t.self.Incarnation, peer, incarnation, t.self.Token)
	var b [wire.HelloBytes]byte
	hello.Put(b[:])
	if _, err := c.Write(b[:]); err != nil {
		return err
	}
	if err := answerOf(c); err != nil {
		return err
	}
	return t.establish(peer, c)
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
