package van

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"fptps/gocore/van/zmtp"
)

const (
	// handshakeTime bounds how long a stranger may take to say who it is.
	handshakeTime = 5 * time.Second
	// readBuffer is for the headers of frames: the bytes of long ones are read into place.
	readBuffer = 4 << 10
	// strangerFirst is the memory for a frame of a stranger before any of it has arrived, memberFirst that for one of a member.
	strangerFirst, memberFirst = 4 << 10, 64 << 20
)

// conn is a connection that another node has made. Its goroutine reads one message after the other, and waits until
// Receive has taken each: TCP slows the peer down meanwhile.
type conn struct {
	net.Conn
	van     *zmqVan
	reader  *bufio.Reader
	host    string        // the address of the peer
	from    int           // the id that it claims
	evicted chan struct{} // closes when connections gives the connection up
	why     error         // the reason, if that is the peer's fault; set before evicted closes
	place   place
}

func newConn(v *zmqVan, c net.Conn) *conn {
	host := ""
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		host = a.IP.String()
	}
	return &conn{Conn: c, van: v, reader: bufio.NewReaderSize(c, readBuffer), host: host, evicted: make(chan struct{})}
}

// evict closes the connection; it is called once at most. why is nil where the peer has done nothing wrong.
func (c *conn) evict(why error) {
	c.why = why
	close(c.evicted)
	c.Close()
}

// run reads messages until the connection ends. The error is what the peer did wrong, nil if the connection just ended.
func (c *conn) run() error {
	c.SetDeadline(time.Now().Add(handshakeTime))
	identity, err := zmtp.Accept(c.reader, c)
	if err == io.EOF { // something has looked whether anyone listens here
		return nil
	}
	if err != nil {
		return fmt.Errorf("its handshake failed: %w", err)
	}
	c.SetDeadline(time.Time{})
	c.from = parseIdentity(identity)
	for {
		if err := c.message(); err != nil {
			return protocolError(err)
		}
	}
}

// protocolError returns err, nil for an error of the network.
func protocolError(err error) error {
	var network net.Error
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network) || errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

// message reads one message and delivers it. A stranger's has one frame of at most MaxMeta bytes: further frames are skipped, and
// nothing of the message is kept. An error ends the connection.
func (c *conn) message() error {
	h, err := c.next(MaxMeta)
	if err != nil {
		return err
	}
	first, err := c.read(h, strangerFirst)
	if err != nil {
		return err
	}
	if h.More {
		if err := c.awaitMembers(); err != nil {
			return err
		}
	}
	decoded := c.lockDecoding()
	defer decoded()
	meta, why := DecodeMeta(first)
	e := &Envelope{From: c.from, Host: c.host, Meta: meta}
	if why == nil && c.van.isMember(e) {
		c.van.connections.admit(c, c.from)
		decoded()
		return c.data(e, h)
	}
	defer c.van.connections.heard(c)
	switch {
	case why == nil && !h.More && isQuestion(meta):
		return c.question(e, decoded)
	case why == nil && !h.More:
		c.van.deliver(e)
		return nil
	}
	decoded()
	if why == nil {
		why = errors.New("data of a sender that is no member of this cluster")
	}
	return c.refuse(h, MaxMeta, why)
}

// lockDecoding has a stranger wait for its turn: a decoded message may take a hundred times its bytes, so that those of
// strangers are decoded and delivered one at a time. It returns the function that ends the turn.
func (c *conn) lockDecoding() (done func()) {
	if c.van.connections.isMember(c) {
		return func() {}
	}
	c.van.decoding.Lock()
	return sync.OnceFunc(c.van.decoding.Unlock)
}

// awaitMembers waits until the van knows who the members are: a member may send data before this node has received their list.
func (c *conn) awaitMembers() error {
	select {
	case <-c.van.trusting:
		return nil
	case <-c.evicted:
	case <-c.van.done:
	}
	return ErrClosed
}

// data reads the other frames of a member's message, and delivers it.
func (c *conn) data(e *Envelope, h zmtp.Header) (err error) {
	for h.More {
		if len(e.Data) == MaxFrames-1 {
			return c.refuse(h, c.van.frame, fmt.Errorf("message of more than %d frames", MaxFrames))
		}
		if h, err = c.next(c.van.frame); err != nil {
			return err
		}
		frame, err := c.read(h, memberFirst)
		if err != nil {
			return err
		}
		e.Data = append(e.Data, frame)
	}
	c.van.deliver(e)
	return nil
}

// refuse counts a message whose frame h was read last, and skips the rest of it.
func (c *conn) refuse(h zmtp.Header, limit int, why error) (err error) {
	c.van.rejects.add(c.host, why)
	for h.More {
		if h, err = c.next(limit); err != nil {
			return err
		}
		if _, err := c.reader.Discard(int(h.Size)); err != nil {
			return err
		}
	}
	return nil
}

// next reads the header of the next frame.
func (c *conn) next(limit int) (zmtp.Header, error) {
	h, err := zmtp.ReadMessageHeader(c.reader)
	if err == nil && h.Size > uint64(limit) {
		err = fmt.Errorf("a frame of %d bytes, at most %d", h.Size, limit)
	}
	return h, err
}

// read reads the bytes of a frame. A header alone gets no more memory than first: it grows with the bytes that arrive.
func (c *conn) read(h zmtp.Header, first int) ([]byte, error) {
	b := []byte{}
	for have, size := 0, int(h.Size); have < size; have = len(b) {
		grown := make([]byte, min(max(first, 2*have), size))
		c.van.connections.reserve(c, len(grown)-have)
		copy(grown, b)
		b = grown
		if _, err := io.ReadFull(c.reader, b[have:]); err != nil {
			return nil, err
		}
	}
	return b, nil
}
