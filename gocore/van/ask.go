package van

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"

	"fptps/gocore/van/zmtp"
	"fptps/gocore/wire/pspb"
)

// answerTime bounds how long an asker's connection waits for the answer, and how long the asker may take to read it.
const answerTime = 5 * time.Second

// ErrSilent is the error of Ask if a process listens at the address but gives no answer.
var ErrSilent = errors.New("something listens there, but has given no answer")

// isQuestion reports whether a message, of any sender, is answered over the connection by which it came.
func isQuestion(m *pspb.Meta) bool { return m.GetStatusAsk() != nil }

// question delivers a question and sends the answer. Until then no further message is read from the connection, so that a stranger
// costs one answer at a time. decoded ends the decoding of the question.
func (c *conn) question(e *Envelope, decoded func()) error {
	answers := make(chan *pspb.Meta, 1)
	e.Answer = func(m *pspb.Meta) {
		select {
		case answers <- m:
		default: // it has one
		}
	}
	c.van.deliver(e)
	decoded()
	select {
	case m := <-answers:
		frame, err := Encode(m)
		if err != nil {
			return err
		}
		c.van.connections.reserve(c, len(frame))
		c.SetWriteDeadline(time.Now().Add(answerTime))
		_, err = c.Write(zmtp.AppendFrame(nil, frame))
		return err
	case <-time.After(answerTime): // this node gives no answers
		return nil
	case <-c.evicted:
	case <-c.van.done:
	}
	return ErrClosed
}

// Ask sends a question to a node as a stranger, and waits for its answer. It makes a connection of its own.
func Ask(host string, port int, question *pspb.Meta, timeout time.Duration) (*pspb.Meta, error) {
	address := net.JoinHostPort(host, strconv.Itoa(port))
	deadline := time.Now().Add(timeout)
	probe, err := net.DialTimeout("tcp", address, timeout) // ZeroMQ would try for ever, and not say why
	if err != nil {
		return nil, err
	}
	probe.Close()
	ctx, err := zmq.NewContext()
	if err != nil {
		return nil, fmt.Errorf("starting ZeroMQ: %w", err)
	}
	defer ctx.Term()
	socket, err := ctx.NewSocket(zmq.DEALER)
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	frame, err := Encode(question)
	err = errors.Join(err, socket.SetLinger(0), socket.SetMaxmsgsize(MaxMeta), socket.SetIpv6(isIPv6(host)),
		socket.SetRcvtimeo(max(time.Until(deadline), time.Millisecond)), socket.Connect("tcp://"+address))
	if err != nil {
		return nil, err
	}
	if _, err := socket.SendBytes(frame, 0); err != nil {
		return nil, err
	}
	answer, err := socket.RecvBytes(0)
	if zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) {
		return nil, ErrSilent
	}
	if err != nil {
		return nil, err
	}
	return DecodeMeta(answer)
}
