package van

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/van/zmtp"
	"fptps/gocore/wire/pspb"
)

// peer speaks ZeroMQ's protocol by hand, so that it can say what libzmq never would.
type peer struct {
	net.Conn
	t  *testing.T
	id int
}

// peer connects to the victim under an id.
func (s *victim) peer(id int) *peer {
	s.t.Helper()
	c, err := net.Dial("tcp", s.address())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	p := &peer{Conn: c, t: s.t, id: id}
	greeting := append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0}, make([]byte, 52)...)
	copy(greeting[12:], "NULL")
	name := identity(id)
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00" + string(rune(len(name))) + name
	p.say(greeting, []byte{4, byte(len(ready))}, []byte(ready))
	var answer [64 + 30]byte // the victim's greeting and READY
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		s.t.Fatal(err)
	}
	return p
}

func (p *peer) say(pieces ...[]byte) {
	p.t.Helper()
	if _, err := p.Write(bytes.Join(pieces, nil)); err != nil {
		p.t.Fatal(err)
	}
}

// header is the header of a frame.
func header(size int, more bool) []byte {
	flags := byte(2)
	if more {
		flags++
	}
	return binary.BigEndian.AppendUint64([]byte{flags}, uint64(size))
}

// letter is the first frame of a good message, of about size bytes.
func letter(t *testing.T, size int) []byte {
	t.Helper()
	b, err := Encode(&pspb.Meta{Head: proto.Int32(42), Body: make([]byte, size)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ends waits until the victim has closed the connection.
func (p *peer) ends() {
	p.t.Helper()
	if _, err := io.Copy(io.Discard, p); err != nil && !strings.Contains(err.Error(), "reset") {
		p.t.Fatalf("the connection was not closed: %v", err)
	}
}

// works has the victim receive a message of each peer.
func (s *victim) works(peers ...*peer) {
	s.t.Helper()
	for _, p := range peers {
		good := letter(s.t, 0)
		p.say(header(len(good), false), good)
		if e := <-s.messages; e.From != p.id || e.Meta.GetHead() != 42 {
			s.t.Fatalf("got %v from %d, want head 42 from %d", e.Meta, e.From, p.id)
		}
	}
}

// trustIDs makes members of the senders with some ids.
func (s *victim) trustIDs(ids ...int) {
	s.Trust(func(e *Envelope) bool {
		for _, id := range ids {
			if e.From == id {
				return true
			}
		}
		return false
	})
}

// resident is the memory of this process.
func resident(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var total, pages int
	if _, err := fmt.Sscan(string(text), &total, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// A message of endless frames takes no memory, whoever sends it, and is counted before it ends.
func TestEndlessFrames(t *testing.T) {
	for name, id := range map[string]int{"stranger": 8, "member": 9} {
		t.Run(name, func(t *testing.T) {
			s := newStrangersVictim(t)
			s.trustIDs(9)
			p := s.peer(id)
			s.works(p)
			part := append([]byte{1, 20}, make([]byte, 20)...)
			parts := bytes.Repeat(part, 50_000)
			p.say(header(0, true), parts)
			before := resident(t)
			for range 20 { // a million frames: as messages of libzmq 64 MB
				p.say(parts)
			}
			if grown := resident(t) - before; grown > 32<<20 {
				t.Fatalf("a million frames of a message took %d MB", grown>>20)
			}
			for s.Stats().Rejected == 0 {
				p.say(parts)
			}
			p.say([]byte{0, 0})
			s.works(p)
			if got := s.Stats(); got.Rejected != 1 || got.Received != 2 {
				t.Errorf("counts %+v, want 1 rejected and 2 received", got)
			}
		})
	}
}

// The announcement of a long frame ends a stranger's connection, and gets a member no more memory than it fills.
func TestLongFrameIsAnnounced(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for name, c := range map[string]struct {
		id       int
		says     [][]byte
		rejected uint64
	}{
		"stranger, the first frame":  {8, [][]byte{header(MaxMeta+1, false)}, 1},
		"stranger, the second frame": {8, [][]byte{header(0, true), header(MaxFrame, false)}, 2}, // the message, and the frame
		"member, the first frame":    {9, [][]byte{header(MaxFrame, false)}, 1},
		"member, beyond ps-lite's":   {9, [][]byte{header(0, true), header(MaxFrame+1, false)}, 1},
		"member, beyond 63 bits":     {9, [][]byte{header(0, true), header(-1, false)}, 1},
		"member, the second frame":   {9, [][]byte{header(0, true), header(MaxFrame, false)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFrameVictim(t, log, MaxFrame)
			s.trustIDs(9)
			p := s.peer(c.id)
			s.works(p)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			p.say(c.says...)
			if c.rejected == 0 { // it may go on, and ends by itself
				p.say(make([]byte, 1000))
				p.Conn.(*net.TCPConn).CloseWrite()
			}
			p.ends()
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > memberFirst+(4<<20) {
				t.Errorf("the announcement took %d MB", took>>20)
			}
			if got := s.Stats().Rejected; got != c.rejected {
				t.Errorf("%d rejected, want %d", got, c.rejected)
			}
		})
	}
}

// A frame that is longer than its first memory arrives whole.
func TestFrameGrows(t *testing.T) {
	long := make([]byte, 1000)
	for i := range long {
		long[i] = byte(i * 7 >> 3)
	}
	for _, first := range []int{1, 7, 500, 999, 1000, 5000} {
		c := newConn(&zmqVan{}, bytesConn{Reader: bytes.NewReader(append(long, "more"...))})
		if got, err := c.read(zmtp.Header{Size: 1000}, first); err != nil || !bytes.Equal(got, long) {
			t.Errorf("from %d bytes on: %d bytes, error %v", first, len(got), err)
		}
		if _, err := c.read(zmtp.Header{Size: 1000}, first); protocolError(err) != nil || err == nil {
			t.Errorf("from %d bytes on: the end within a frame is %v", first, err)
		}
	}
}

// Too many strangers cost the one its connection that has said nothing for longest, never a member.
func TestTooManyStrangers(t *testing.T) {
	s := newStrangersVictim(t)
	s.trustIDs(9)
	s.limit(4*strangerBytes + strangerBytes/2) // and their messages
	member := s.peer(9)
	s.works(member)
	a, b, c, d := s.peer(11), s.peer(13), s.peer(15), s.peer(17)
	s.works(a, b, c, d, a)
	e := s.peer(19)
	b.ends()
	s.works(e, d, a, c, member)
	f := s.peer(21)
	e.ends()
	s.works(f, a, c, d, member)
	for s.Stats().Rejected < 2 { // a connection is counted after its end
		s.works(member)
	}
	if got := s.Stats().Rejected; got != 2 {
		t.Errorf("%d connections counted, want 2", got)
	}
}

// Strangers' long messages have a bound together. The memory of one that has arrived is free again.
func TestStrangersLongMessages(t *testing.T) {
	s := newStrangersVictim(t)
	s.limit(MaxMeta + 8*strangerBytes)
	long := letter(t, MaxMeta-100)
	a, b := s.peer(11), s.peer(13)
	s.works(a, b)
	for range 3 {
		a.say(header(len(long), false), long)
		if e := <-s.messages; len(e.Meta.Body) != MaxMeta-100 {
			t.Fatalf("a body of %d bytes", len(e.Meta.Body))
		}
	}
	for _, p := range []*peer{b, a} { // in the order of their last messages
		p.say(header(len(long), false), long[:len(long)-1])
	}
	b.ends()
	a.say(long[len(long)-1:])
	<-s.messages
}

// A member has one connection, the newest that has proved to be its own.
func TestMembersNewestConnection(t *testing.T) {
	s := newStrangersVictim(t)
	s.trustIDs(9)
	old := s.peer(9)
	s.works(old)
	idle := s.peer(9) // it has proved nothing
	s.works(old)
	newest := s.peer(9)
	s.works(newest)
	old.ends()
	s.works(newest, s.peer(8))
	if got := s.Stats().Rejected; got != 0 {
		t.Errorf("%d messages rejected", got)
	}
	s.works(idle)
	newest.ends()
}

// Data that comes before this node knows the members waits; messages of one frame do not.
func TestDataBeforeTrust(t *testing.T) {
	s := newStrangersVictim(t)
	early, other := s.peer(9), s.peer(8)
	s.works(early, other)
	early.say(header(0, true), header(1, false), []byte("x"))
	for range 100 { // as good as certain that the data has come
		s.works(other)
	}
	s.trustIDs(9)
	if e := <-s.messages; e.From != 9 || len(e.Data) != 1 || string(e.Data[0]) != "x" {
		t.Errorf("got %v", e)
	}
	if got := s.Stats().Rejected; got != 0 {
		t.Errorf("%d messages rejected", got)
	}
}

// A member that is one no longer is a stranger.
func TestMemberNoLonger(t *testing.T) {
	s := newStrangersVictim(t)
	s.trustIDs(9, 11)
	s.limit(2*strangerBytes + strangerBytes/2)
	former, member := s.peer(9), s.peer(11)
	s.works(former, member)
	s.trustIDs(11)
	s.works(former)
	former.say(header(0, true), header(1, false), []byte("x"))
	s.works(former)
	if got := s.Stats().Rejected; got != 1 {
		t.Errorf("%d messages rejected, want the one with data", got)
	}
	a, b := s.peer(13), s.peer(15)
	former.ends()
	s.works(a, b, member)
}

// What connects and says nothing is no news.
func TestProbe(t *testing.T) {
	s := newStrangersVictim(t)
	for range 10 {
		c, err := net.Dial("tcp", s.address())
		if err != nil {
			t.Fatal(err)
		}
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c) // until the van has closed it
		c.Close()
	}
	s.works(s.peer(9))
	if got := s.Stats().Rejected; got != 0 {
		t.Errorf("%d connections counted", got)
	}
}

// A van that closes does not wait for its peers, whatever they are in the middle of.
func TestCloseAmongPeers(t *testing.T) {
	v, err := NewZMQ(slog.New(slog.DiscardHandler), MaxFrame)
	if err != nil {
		t.Fatal(err)
	}
	port, err := v.Bind("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &victim{zmqVan: v.(*zmqVan), t: t, port: port}
	handshake, data, message, frame := s.peer(9), s.peer(11), s.peer(13), s.peer(15)
	handshake.say([]byte{4})
	data.say(header(0, true), header(1, false), []byte("x")) // waits for Trust
	message.say(header(0, false))                            // waits for Receive
	frame.say(header(MaxMeta, false), make([]byte, 1000))
	v.Close()
	for _, p := range []*peer{handshake, data, message, frame} {
		p.ends()
	}
	if got := v.Stats().Rejected; got != 0 {
		t.Errorf("%d messages rejected", got)
	}
}

// bytesConn is a connection whose peer has said something and closed it.
type bytesConn struct {
	net.Conn
	*bytes.Reader
}

func (c bytesConn) Read(b []byte) (int, error)  { return c.Reader.Read(b) }
func (c bytesConn) Write(b []byte) (int, error) { return len(b), nil }
func (c bytesConn) Close() error                { return nil }
func (c bytesConn) SetDeadline(time.Time) error { return nil }
func (c bytesConn) RemoteAddr() net.Addr        { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)} }

// FuzzConn: whatever a peer says, its connection comes to an end, its messages keep to the limits, and connections keeps
// nothing of it.
func FuzzConn(f *testing.F) {
	greeting := append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0}, make([]byte, 52)...)
	copy(greeting[12:], "NULL")
	member := string(greeting) + "\x04\x2c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x03ps9"
	stranger := string(greeting) + "\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
	data := "\x01\x02\x08\x2a\x01\x01x\x00\x01y"
	for _, said := range []string{
		member + data + data, stranger + "\x00\x02\x08\x2a" + data, member + strings.Repeat("\x01\x00", 20) + "\x00\x00" + data,
		member + "\x01\x00" + string(header(MaxFrame, false)), stranger + string(header(MaxMeta, false)) + "x",
	} {
		f.Add([]byte(said))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		v := &zmqVan{
			rejects: newRejects(slog.New(slog.DiscardHandler)), frame: MaxFrame,
			done: make(chan struct{}), messages: make(chan *Envelope), trusting: make(chan struct{}),
		}
		v.connections.limit, v.connections.members = maxStrangerBytes, map[int]*conn{}
		v.Trust(func(e *Envelope) bool { return e.From == 9 })
		c := newConn(v, bytesConn{Reader: bytes.NewReader(said)})
		v.connections.add(c)
		var receiver sync.WaitGroup
		receiver.Go(func() {
			for {
				e, err := v.Receive()
				if err != nil {
					return
				}
				if len(e.Data) >= MaxFrames || len(e.Data) > 0 && e.From != 9 {
					t.Errorf("%d frames of data from %d", len(e.Data), e.From)
				}
			}
		})
		v.readers.Add(1)
		v.serve(c)
		close(v.done)
		receiver.Wait()
		if s := &v.connections; s.bytes != 0 || s.strangers.Len() != 0 || len(s.members) != 0 {
			t.Errorf("%d bytes, %d strangers, %d members are left", s.bytes, s.strangers.Len(), len(s.members))
		}
	})
}
