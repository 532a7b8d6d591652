package van

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"

	"fptps/gocore/wire/pspb"
)

const (
	// lingerTime bounds how long Close and Disconnect wait for what was sent to leave.
	lingerTime = 2 * time.Second
	// sendQueue bounds the messages kept for one node: a burst of declarations, as
	// many as a cluster may have tensors. A node that lets it fill up reads nothing.
	sendQueue = 1 << 20
	// receiveQueue bounds the messages of one peer that wait for Receive; TCP slows
	// the peer down beyond it.
	receiveQueue = 100
	// maxSockets is one for every node (2 x wire.MaxWorkers), and room for guests.
	maxSockets = 8192
	// handshakeTime bounds how long a stranger may take to say who it is.
	handshakeTime = 5 * time.Second
	// Silent connections are probed, so that one whose other end vanished goes away.
	keepAliveIdle, keepAliveInterval, keepAliveCount = 15, 5, 4 // seconds, seconds, probes

	monitorAddress = "inproc://monitor"
	wakeAddress    = "inproc://wake"
)

// zmqVan is dmlc ps-lite's ZMQVan: one ROUTER that receives, and one DEALER for
// each node it sends to, called "ps<id>" after this node's own id.
//
// ZeroMQ's sockets may be used by one thread at a time: mu guards those that send,
// receiving those that receive. A message of many small frames is gathered inside
// libzmq before MaxFrames can stop it: only a peer that speaks ZeroMQ's protocol can
// send one, and keeping those out is the network's part.
type zmqVan struct {
	secret  string // in the names of this node's connections
	log     *slog.Logger
	ctx     *zmq.Context
	rejects *rejects
	closing atomic.Bool
	once    sync.Once
	queue   int   // messages kept for one node
	frame   int64 // bytes of the longest frame

	sent, received atomic.Uint64

	receiving sync.Mutex
	router    *zmq.Socket
	monitor   *zmq.Socket // of the router: failed handshakes
	woken     *zmq.Socket // becomes readable when Close wants Receive to return
	poller    *zmq.Poller

	mu struct {
		sync.Mutex
		id      int
		dealers map[int]*zmq.Socket // by the id of the node at the other end
		wake    *zmq.Socket
	}
}

var _ Van = (*zmqVan)(nil)

// NewZMQ makes a van of ZeroMQ sockets.
func NewZMQ(log *slog.Logger) (Van, error) { return newZMQ(log, MaxFrame) }

func newZMQ(log *slog.Logger, frame int64) (Van, error) {
	ctx, err := zmq.NewContext()
	if err != nil {
		return nil, fmt.Errorf("starting ZeroMQ: %w", err)
	}
	v := &zmqVan{secret: rand.Text(), log: log, ctx: ctx, rejects: newRejects(log), poller: zmq.NewPoller(), queue: sendQueue, frame: frame}
	v.mu.dealers = map[int]*zmq.Socket{}
	if err := v.open(); err != nil {
		v.Close()
		return nil, fmt.Errorf("starting ZeroMQ: %w", err)
	}
	return v, nil
}

// open makes the sockets that every van has.
func (v *zmqVan) open() (err error) {
	if err := v.ctx.SetMaxSockets(maxSockets); err != nil {
		return err
	}
	for _, s := range []struct {
		socket **zmq.Socket
		kind   zmq.Type
	}{{&v.router, zmq.ROUTER}, {&v.monitor, zmq.PAIR}, {&v.woken, zmq.PAIR}, {&v.mu.wake, zmq.PAIR}} {
		if *s.socket, err = v.ctx.NewSocket(s.kind); err != nil {
			return err
		}
		if err := (*s.socket).SetLinger(0); err != nil {
			return err
		}
	}
	failures := zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
	err = errors.Join(
		v.router.SetRcvhwm(receiveQueue),
		v.router.SetMaxmsgsize(v.frame),
		v.router.SetHandshakeIvl(handshakeTime),
		// A node that connects anew takes the place of its old, perhaps half dead, connection.
		v.router.SetRouterHandover(true),
		keepAlive(v.router),
		v.router.Monitor(monitorAddress, failures),
		v.monitor.Connect(monitorAddress),
		v.woken.Bind(wakeAddress),
		v.mu.wake.Connect(wakeAddress),
	)
	v.poller.Add(v.router, zmq.POLLIN)
	v.poller.Add(v.monitor, zmq.POLLIN)
	v.poller.Add(v.woken, zmq.POLLIN)
	return err
}

func keepAlive(s *zmq.Socket) error {
	return errors.Join(s.SetTcpKeepalive(1), s.SetTcpKeepaliveIdle(keepAliveIdle),
		s.SetTcpKeepaliveIntvl(keepAliveInterval), s.SetTcpKeepaliveCnt(keepAliveCount))
}

// Bind implements Van.
func (v *zmqVan) Bind(host string, port int) (int, error) {
	v.receiving.Lock()
	defer v.receiving.Unlock()
	if v.closing.Load() {
		return 0, ErrClosed
	}
	at := strconv.Itoa(port)
	if port == 0 {
		at = "*"
	}
	if host == "" {
		host = "*"
	}
	if err := v.router.SetIpv6(isIPv6(host)); err != nil {
		return 0, err
	}
	if err := v.router.Bind("tcp://" + join(host, at)); err != nil {
		return 0, err
	}
	endpoint, err := v.router.GetLastEndpoint()
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(endpoint[strings.LastIndexByte(endpoint, ':')+1:])
}

func isIPv6(host string) bool { return strings.Contains(host, ":") }

func join(host, port string) string {
	if host == "*" {
		return host + ":" + port
	}
	return net.JoinHostPort(host, port)
}

// Identify implements Van.
func (v *zmqVan) Identify(id int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.id = id
}

// Connect implements Van.
func (v *zmqVan) Connect(id int, host string, port int) error {
	return v.connect(id, host, port, v.secret)
}

// ConnectPSLite implements Van.
func (v *zmqVan) ConnectPSLite(id int, host string, port int) error {
	return v.connect(id, host, port, "")
}

func (v *zmqVan) connect(id int, host string, port int, secret string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closing.Load() {
		return ErrClosed
	}
	dealer, err := v.ctx.NewSocket(zmq.DEALER)
	if err != nil {
		return err
	}
	err = errors.Join(
		dealer.SetLinger(lingerTime),
		dealer.SetSndhwm(v.queue),
		dealer.SetRcvhwm(1), // nobody answers on this socket
		dealer.SetMaxmsgsize(v.frame),
		dealer.SetReconnectIvl(100*time.Millisecond),
		dealer.SetReconnectIvlMax(time.Second),
		dealer.SetIpv6(isIPv6(host)),
		keepAlive(dealer),
	)
	if v.mu.id != 0 {
		err = errors.Join(err, dealer.SetIdentity(identity(v.mu.id, secret)))
	}
	if err == nil {
		err = dealer.Connect("tcp://" + join(host, strconv.Itoa(port)))
	}
	if err != nil {
		dealer.Close()
		return err
	}
	if old := v.mu.dealers[id]; old != nil {
		old.Close()
	}
	v.mu.dealers[id] = dealer
	return nil
}

// Disconnect implements Van.
func (v *zmqVan) Disconnect(id int, now bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	dealer := v.mu.dealers[id]
	if dealer == nil {
		return
	}
	delete(v.mu.dealers, id)
	if now {
		dealer.SetLinger(0)
	}
	dealer.Close()
}

// Send implements Van.
func (v *zmqVan) Send(id int, m *pspb.Meta, data ...[]byte) error {
	first, err := Encode(m)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	dealer := v.mu.dealers[id]
	if dealer == nil {
		return fmt.Errorf("node %d is not connected", id)
	}
	flags := zmq.DONTWAIT
	for i, frame := range append([][]byte{first}, data...) {
		if i == len(data) {
			_, err = dealer.SendBytes(frame, flags)
		} else {
			_, err = dealer.SendBytes(frame, flags|zmq.SNDMORE)
		}
		if zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) {
			return ErrFull
		}
		if err != nil {
			return err
		}
	}
	v.sent.Add(1)
	return nil
}

// Receive implements Van.
func (v *zmqVan) Receive() (*Envelope, error) {
	v.receiving.Lock()
	defer v.receiving.Unlock()
	for {
		if v.closing.Load() {
			return nil, ErrClosed
		}
		e, err := v.next()
		if err != nil || e != nil {
			return e, err
		}
	}
}

// next takes one message, or waits until something happens; nil: look again.
func (v *zmqVan) next() (*Envelope, error) {
	sender, err := v.router.RecvBytes(zmq.DONTWAIT)
	if zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) {
		if _, err := v.poller.Poll(-1); err != nil {
			return nil, err
		}
		return nil, v.countFailures()
	}
	if err != nil {
		return nil, err
	}
	frames, address, err := v.frames()
	if err != nil {
		return nil, err
	}
	e, err := Decode(sender, frames)
	if err != nil {
		v.rejects.add(address, err)
		return nil, nil
	}
	v.received.Add(1)
	return e, nil
}

// frames reads the rest of a message, no more of it than shows that it is too long,
// and the address that it came from.
func (v *zmqVan) frames() (frames [][]byte, address string, err error) {
	for {
		more, err := v.router.GetRcvmore()
		if err != nil || !more {
			return frames, address, err
		}
		frame, properties, err := v.router.RecvBytesWithMetadata(zmq.DONTWAIT, "Peer-Address")
		if err != nil {
			return nil, "", err
		}
		if len(frames) <= MaxFrames {
			frames, address = append(frames, frame), properties["Peer-Address"]
		}
	}
}

// countFailures counts the handshakes that failed: rubbish, half of one, silence;
// those of them that libzmq tells of.
func (v *zmqVan) countFailures() error {
	for {
		_, _, _, err := v.monitor.RecvEvent(zmq.DONTWAIT)
		if zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) {
			return nil
		}
		if err != nil {
			return err
		}
		v.rejects.add("a connection that did not speak ZeroMQ", errors.New("its handshake failed"))
	}
}

// Close implements Van.
func (v *zmqVan) Close() error {
	v.once.Do(func() {
		v.closing.Store(true)
		v.closeSenders()
		v.closeReceivers()
		v.ctx.Term() // waits until all messages have left, at most lingerTime
	})
	return nil
}

// closeSenders also makes Receive return.
func (v *zmqVan) closeSenders() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, dealer := range v.mu.dealers {
		dealer.Close()
		delete(v.mu.dealers, id)
	}
	if v.mu.wake != nil {
		v.mu.wake.SendBytes(nil, zmq.DONTWAIT)
	}
}

func (v *zmqVan) closeReceivers() {
	v.receiving.Lock()
	defer v.receiving.Unlock()
	if v.router != nil {
		v.router.Monitor("", 0)
	}
	for _, s := range []*zmq.Socket{v.router, v.monitor, v.woken, v.mu.wake} {
		if s != nil {
			s.Close()
		}
	}
}

// Stats implements Van.
func (v *zmqVan) Stats() Stats {
	return Stats{Sent: v.sent.Load(), Received: v.received.Load(), Rejected: v.rejects.count()}
}
