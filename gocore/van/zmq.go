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
	// lingerTime bounds how long Close and Disconnect wait for what was sent to leave, however
	// much of it leaves meanwhile: what is left of some MB to a slow reader is dropped.
	lingerTime = 2 * time.Second
	// sendQueue bounds the messages kept for one node: a burst of declarations, as
	// many as a cluster may have tensors. If it fills up, the node has stopped reading.
	sendQueue = 1 << 20
	// maxSockets is one for every node (2 x wire.MaxWorkers), and room for guests.
	maxSockets = 8192
	// The kernel probes silent connections, so that one ends when its other end has vanished. A few lost probes end none.
	keepAliveIdle, keepAliveInterval, keepAliveCount = 1, 1, 9 // seconds, seconds, probes
	// vanishTime is how long sent data may stay unacknowledged before the connection ends: the host is gone then.
	vanishTime = 10 * time.Second
)

// zmqVan is the counterpart of dmlc ps-lite's ZMQVan. It sends over a DEALER of libzmq for each other node, under the name
// "ps<id>" of this node's own id. It receives by itself (accept.go), since libzmq bounds neither the frames of a message nor
// the connections: it gathers all of a message before its owner can refuse any of it.
//
// ZeroMQ's sockets may be used by one thread at a time: mu guards them.
type zmqVan struct {
	log     *slog.Logger
	ctx     *zmq.Context
	rejects *rejects
	closing atomic.Bool
	done    chan struct{} // closes with the van
	once    sync.Once
	queue   int // messages kept for one node
	linger  time.Duration

	sent, received atomic.Uint64

	frame       int // bytes of a member's longest frame
	messages    chan *Envelope
	broken      chan error // why no connection can be accepted any more
	connections connections
	readers     sync.WaitGroup // the goroutines that accept and read
	decoding    sync.Mutex     // held while a stranger's message is decoded and delivered
	members     atomic.Pointer[func(*Envelope) bool]
	trusting    chan struct{} // closes when members is set

	mu struct {
		sync.Mutex
		id       int
		listener net.Listener
		dealers  map[int]*dealer // by the id of the node at the other end
	}
}

// dealer is a connection to a node.
type dealer struct {
	*zmq.Socket
	monitor *zmq.Socket // of its handshakes; nil: they are not counted
	made    int         // handshakes that succeeded
}

func (d *dealer) Close() {
	if d.monitor != nil {
		d.monitor.Close()
	}
	d.Socket.Close()
}

// count counts the handshakes of the dealer, from before its first connection.
func (d *dealer) count(ctx *zmq.Context) (err error) {
	if d.monitor, err = ctx.NewSocket(zmq.PAIR); err != nil {
		return err
	}
	address := "inproc://" + rand.Text()
	return errors.Join(d.monitor.SetLinger(0), d.Monitor(address, zmq.EVENT_HANDSHAKE_SUCCEEDED), d.monitor.Connect(address))
}

var _ Van = (*zmqVan)(nil)

// NewZMQ makes a van of ZeroMQ sockets.
//
// frame is the longest frame that it accepts from a member: MaxMeta, or MaxFrame if ps-lite programs
// send tensors to this node. A longer frame ends its connection before any of it is read.
func NewZMQ(log *slog.Logger, frame int) (Van, error) {
	ctx, err := zmq.NewContext()
	if err != nil {
		return nil, fmt.Errorf("starting ZeroMQ: %w", err)
	}
	v := &zmqVan{
		log: log, ctx: ctx, rejects: newRejects(log), queue: sendQueue, linger: lingerTime, frame: frame,
		done: make(chan struct{}), messages: make(chan *Envelope), broken: make(chan error, 1), trusting: make(chan struct{}),
	}
	v.mu.dealers = map[int]*dealer{}
	v.connections.limit, v.connections.members = maxStrangerBytes, map[int]*conn{}
	if err := v.ctx.SetMaxSockets(maxSockets); err != nil {
		v.Close()
		return nil, fmt.Errorf("starting ZeroMQ: %w", err)
	}
	return v, nil
}

func keepAlive(s *zmq.Socket) error {
	return errors.Join(s.SetTcpKeepalive(1), s.SetTcpKeepaliveIdle(keepAliveIdle),
		s.SetTcpKeepaliveIntvl(keepAliveInterval), s.SetTcpKeepaliveCnt(keepAliveCount), s.SetTcpMaxrt(vanishTime))
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
	return v.connect(id, host, port, false)
}

// ConnectCounted implements Van.
func (v *zmqVan) ConnectCounted(id int, host string, port int) error {
	return v.connect(id, host, port, true)
}

// Connections implements Van.
func (v *zmqVan) Connections(id int) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.mu.dealers[id]
	if d == nil || d.monitor == nil {
		return 0
	}
	for {
		if _, _, _, err := d.monitor.RecvEvent(zmq.DONTWAIT); err != nil {
			return d.made
		}
		d.made++
	}
}

func (v *zmqVan) connect(id int, host string, port int, counted bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closing.Load() {
		return ErrClosed
	}
	socket, err := v.ctx.NewSocket(zmq.DEALER)
	if err != nil {
		return err
	}
	dealer := &dealer{Socket: socket}
	err = errors.Join(
		dealer.SetLinger(v.linger),
		dealer.SetSndhwm(v.queue),
		dealer.SetRcvhwm(1), // nobody answers on this socket
		dealer.SetMaxmsgsize(MaxMeta),
		dealer.SetReconnectIvl(100*time.Millisecond),
		dealer.SetReconnectIvlMax(time.Second),
		dealer.SetIpv6(isIPv6(host)),
		keepAlive(dealer.Socket),
	)
	if v.mu.id != 0 {
		err = errors.Join(err, dealer.SetIdentity(identity(v.mu.id)))
	}
	if err == nil && counted {
		err = errors.Join(dealer.SetReconnectIvlMax(0), dealer.count(v.ctx)) // others count on it soon: see Scheduler.mayAssign
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
	if v.closing.Load() {
		return nil, ErrClosed
	}
	select {
	case e := <-v.messages:
		v.received.Add(1)
		return e, nil
	case err := <-v.broken:
		return nil, err
	case <-v.done:
		return nil, ErrClosed
	}
}

// deliver waits until Receive takes a message, or the van closes.
func (v *zmqVan) deliver(e *Envelope) {
	select {
	case v.messages <- e:
	case <-v.done:
	}
}

// Close implements Van.
func (v *zmqVan) Close() error {
	v.once.Do(func() {
		v.closing.Store(true)
		close(v.done)
		v.closeSenders()
		v.closeReceivers()
		v.ctx.Term() // waits until all messages have left, at most for linger
	})
	return nil
}

func (v *zmqVan) closeSenders() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, dealer := range v.mu.dealers {
		dealer.Close()
		delete(v.mu.dealers, id)
	}
}

// closeReceivers closes the listener and the connections. When it returns, their goroutines have ended.
func (v *zmqVan) closeReceivers() {
	v.mu.Lock()
	listener := v.mu.listener
	v.mu.Unlock()
	if listener != nil {
		listener.Close()
	}
	v.connections.close()
	v.readers.Wait()
}

// Stats implements Van.
func (v *zmqVan) Stats() Stats {
	return Stats{Sent: v.sent.Load(), Received: v.received.Load(), Rejected: v.rejects.count()}
}
