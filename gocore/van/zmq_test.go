package van

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire/pspb"
)

// logged collects log lines.
type logged struct {
	slog.Handler
	lines chan string // the sender that each line names
}

func newLogged() *logged {
	return &logged{Handler: slog.DiscardHandler, lines: make(chan string, 1000)}
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "sender" {
			l.lines <- a.Value.String()
		}
		return true
	})
	return nil
}

// victim is a van that receives, and the rubbish is for.
type victim struct {
	*zmqVan
	t        *testing.T
	port     int
	log      *logged
	messages chan *Envelope
}

// testFrame is the longest frame that a victim takes.
const testFrame = MaxMeta

func newVictim(t *testing.T) *victim {
	t.Helper()
	v := newStrangersVictim(t)
	v.Trust(func(*Envelope) bool { return true })
	return v
}

// newStrangersVictim makes a victim that does not know yet who the members are.
func newStrangersVictim(t *testing.T) *victim {
	t.Helper()
	log := newLogged()
	s := newFrameVictim(t, slog.New(log), testFrame)
	s.log = log
	return s
}

// limit bounds what all strangers together take.
func (s *victim) limit(bytes int) {
	s.connections.mu.Lock()
	defer s.connections.mu.Unlock()
	s.connections.limit = bytes
}

// newFrameVictim makes a victim whose members' frames have at most frame bytes.
func newFrameVictim(t *testing.T, log *slog.Logger, frame int) *victim {
	t.Helper()
	v, err := NewZMQ(log, frame)
	if err != nil {
		t.Fatal(err)
	}
	port, err := v.Bind("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &victim{zmqVan: v.(*zmqVan), t: t, port: port, messages: make(chan *Envelope, 100)}
	var receiver sync.WaitGroup
	receiver.Go(func() {
		for {
			e, err := v.Receive()
			if err != nil {
				if !errors.Is(err, ErrClosed) {
					t.Errorf("Receive: %v", err)
				}
				return
			}
			s.messages <- e
		}
	})
	t.Cleanup(func() {
		v.Close()
		receiver.Wait()
	})
	return s
}

func (s *victim) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// dealer is a stranger that speaks ZeroMQ.
func (s *victim) dealer(identity string) *zmq.Socket {
	s.t.Helper()
	ctx, err := zmq.NewContext()
	if err != nil {
		s.t.Fatal(err)
	}
	d, err := ctx.NewSocket(zmq.DEALER)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		d.SetLinger(0)
		d.Close()
		ctx.Term()
	})
	if identity != "" {
		err = d.SetIdentity(identity)
	}
	if err = errors.Join(err, d.Connect("tcp://"+s.address())); err != nil {
		s.t.Fatal(err)
	}
	return d
}

// stillWorks sends a message over d and waits for it: what came before it over d
// has been dealt with by then.
func (s *victim) stillWorks(d *zmq.Socket, from int) {
	s.t.Helper()
	good, err := Encode(&pspb.Meta{Head: proto.Int32(42)})
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := d.SendBytes(good, 0); err != nil {
		s.t.Fatal(err)
	}
	if e := <-s.messages; e.From != from || e.Meta.GetHead() != 42 || len(e.Data) != 0 {
		s.t.Fatalf("got %v from %d, want head 42 from %d", e.Meta, e.From, from)
	}
}

func sendFrames(t *testing.T, d *zmq.Socket, frames ...[]byte) {
	t.Helper()
	for i, f := range frames {
		flag := zmq.SNDMORE
		if i == len(frames)-1 {
			flag = 0
		}
		if _, err := d.SendBytes(f, flag); err != nil {
			t.Fatal(err)
		}
	}
}

// Malformed messages of a peer that speaks ZeroMQ: each is counted, the
// first is logged, and the next good one arrives.
func TestRubbishMessages(t *testing.T) {
	s := newVictim(t)
	d := s.dealer("ps9")
	rubbish := [][][]byte{
		{[]byte("rubbish")},
		{bytes.Repeat([]byte{0xff}, 100)},
		{{0x1a, 0x00}},                   // Control without its cmd
		{{0x1a, 0xff, 0xff, 0xff, 0x7f}}, // a length beyond the end
		bytes.Split(bytes.Repeat([]byte{0}, 1000), nil),
		make([][]byte, MaxFrames+1),
		{[]byte{}, bytes.Repeat([]byte("x"), testFrame)}, // as long as a frame may be: no rubbish
	}
	for _, frames := range rubbish {
		sendFrames(t, d, frames...)
	}
	if e := <-s.messages; len(e.Data) != 1 || len(e.Data[0]) != testFrame {
		t.Fatalf("got %d frames of data", len(e.Data))
	}
	s.stillWorks(d, 9)
	if got := s.Stats(); got.Rejected != 6 || got.Received != 2 {
		t.Errorf("counts %+v, want 6 rejected and 2 received", got)
	}
	if got := <-s.log.lines; got != "127.0.0.1" || len(s.log.lines) > 0 {
		t.Errorf("logged for %q, and %d more lines, want one for 127.0.0.1", got, len(s.log.lines))
	}
}

// A frame that is too long ends its connection before it is read, and is counted.
func TestFrameTooLong(t *testing.T) {
	s := newVictim(t)
	d := s.dealer("ps9")
	ctx, err := d.Context()
	if err != nil {
		t.Fatal(err)
	}
	events, err := ctx.NewSocket(zmq.PAIR)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	if err := errors.Join(d.Monitor("inproc://events", zmq.EVENT_DISCONNECTED), events.Connect("inproc://events")); err != nil {
		t.Fatal(err)
	}
	s.stillWorks(d, 9)
	sendFrames(t, d, make([]byte, testFrame+1))
	if _, _, _, err := events.RecvEvent(0); err != nil {
		t.Fatal(err)
	}
	s.stillWorks(s.dealer("ps9"), 9)
	if got := s.Stats(); got.Rejected != 1 || got.Received != 2 {
		t.Errorf("counts %+v, want 1 rejected and 2 received", got)
	}
}

func TestIdentities(t *testing.T) {
	s := newVictim(t)
	for identity, from := range map[string]int{
		"": 0, "ps1": 1, "ps9": 9, "ps2055": 2055, "ps99999": 99999, "ps999999": 0,
		"ps": 0, "ps0": 0, "ps09": 0, "ps-1": 0, "ps9x": 0, "px9": 0, "x": 0, "ps9 ": 0,
	} {
		s.stillWorks(s.dealer(identity), from)
	}
}

// A node that connects anew takes over from its old connection.
func TestSameIdentityTwice(t *testing.T) {
	s := newVictim(t)
	s.stillWorks(s.dealer("ps9"), 9)
	s.stillWorks(s.dealer("ps9"), 9)
}

// What does not even speak ZeroMQ is counted, logged once, and cut off.
func TestRubbishConnections(t *testing.T) {
	s := newVictim(t)
	good := s.dealer("ps9")
	greeting := append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0}, make([]byte, 52)...)
	copy(greeting[12:], "NULL")
	for _, rubbish := range [][]byte{
		append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 9, 9}, bytes.Repeat([]byte{0xaa}, 200)...), // not a mechanism
		append(bytes.Clone(greeting), 0x04, 0x03, 0x01, 'x', 'y'),                                    // another command than READY
		append(bytes.Clone(greeting), 0x04, 0xff, 'x', 'x'),                                          // half of READY
		greeting[:10], // half a handshake
	} {
		before := s.Stats().Rejected
		c, err := net.Dial("tcp", s.address())
		if err != nil {
			t.Fatal(err)
		}
		c.Write(rubbish)
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c) // until the van has cut it off
		c.Close()
		// The news of the failed handshake travels on its own.
		for s.Stats().Rejected == before {
			s.stillWorks(good, 9)
		}
	}
	if got := <-s.log.lines; len(s.log.lines) > 0 {
		t.Errorf("logged for %q, and %d more lines, want one", got, len(s.log.lines))
	}
	// Of these libzmq tells nothing: they are cut off all the same.
	for _, rubbish := range []string{string(greeting) + strings.Repeat("\xee", 100), "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x00", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"} {
		c, err := net.Dial("tcp", s.address())
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, rubbish)
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
		c.Close()
	}
	s.stillWorks(good, 9)
}

// A node that reads nothing fills its queue; the sender is told and never blocks.
func TestFullQueue(t *testing.T) {
	v, err := NewZMQ(slog.New(slog.DiscardHandler), MaxFrame)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	v.(*zmqVan).queue = 10
	if err := v.Connect(1, "127.0.0.1", 1); err != nil { // nobody listens there
		t.Fatal(err)
	}
	for range 10 {
		if err := v.Send(1, &pspb.Meta{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Send(1, &pspb.Meta{}, []byte("more")); !errors.Is(err, ErrFull) {
		t.Errorf("a full queue: %v", err)
	}
	v.Disconnect(1, true) // or Close would wait for the 10
}

func TestTooLongToSend(t *testing.T) {
	v, err := NewZMQ(slog.New(slog.DiscardHandler), MaxFrame)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if err := v.Connect(1, "127.0.0.1", 1); err != nil {
		t.Fatal(err)
	}
	if err := v.Send(1, &pspb.Meta{Body: make([]byte, MaxMeta+1)}); err == nil {
		t.Error("a message that no van takes was sent")
	}
}

func TestIPv6(t *testing.T) {
	a, err := NewZMQ(slog.New(slog.DiscardHandler), MaxFrame)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	port, err := a.Bind("::1", 0)
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	if err := a.Connect(1, "::1", port); err != nil {
		t.Fatal(err)
	}
	if err := a.Send(1, &pspb.Meta{Head: proto.Int32(3)}); err != nil {
		t.Fatal(err)
	}
	if e, err := a.Receive(); err != nil || e.Meta.GetHead() != 3 {
		t.Errorf("got %v, %v", e, err)
	}
}

// A stranger that presents itself under a member's id does not get that node's place.
func TestStrangerUnderAMembersID(t *testing.T) {
	s := newStrangersVictim(t)
	s.Trust(func(e *Envelope) bool { return e.Meta.GetAppId() != 0 }) // as the member's messages have a token
	v, err := NewZMQ(slog.New(slog.DiscardHandler), MaxFrame)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	v.Identify(9)
	if err := v.Connect(1, "127.0.0.1", s.port); err != nil {
		t.Fatal(err)
	}
	exchange := func(n int32) {
		t.Helper()
		if err := v.Send(1, &pspb.Meta{AppId: proto.Int32(n)}); err != nil {
			t.Fatal(err)
		}
		for {
			select {
			case e := <-s.messages:
				if e.Meta.GetAppId() == n && e.From == 9 {
					return
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("message %d of the member does not arrive", n)
			}
		}
	}
	exchange(1)
	s.stillWorks(s.dealer("ps9"), 9) // the stranger, connected for certain
	exchange(2)
}
