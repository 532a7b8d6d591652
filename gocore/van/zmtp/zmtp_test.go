package zmtp_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	zmq "github.com/pebbe/zmq4"

	"fptps/gocore/van/zmtp"
)

// greeting3 is libzmq's of a given version and mechanism.
func greeting3(version byte, mechanism string) []byte {
	b := append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, version, 0}, make([]byte, 52)...)
	copy(b[12:], mechanism)
	return b
}

// greeting2 is libzmq 3's: the signature, the version, the type of the socket, the identity as a frame.
func greeting2(kind byte, identity string) []byte {
	b := []byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 1, kind, 0, byte(len(identity))}
	return append(b, identity...)
}

func property(name, value string) []byte {
	b := append([]byte{byte(len(name))}, name...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

// command is a short or, from 256 bytes, a long frame with a command.
func command(body []byte) []byte {
	if len(body) < 256 {
		return append([]byte{4, byte(len(body))}, body...)
	}
	return append(binary.BigEndian.AppendUint64([]byte{6}, uint64(len(body))), body...)
}

func ready(properties ...[]byte) []byte {
	return command(append([]byte("\x05READY"), bytes.Join(properties, nil)...))
}

var dealerSocket = property("Socket-Type", "DEALER")

func TestAccept(t *testing.T) {
	long := strings.Repeat("x", 255)
	for name, c := range map[string]struct {
		said     []byte
		identity string
		error    string // "": accepted
	}{
		"version 3":             {append(greeting3(3, "NULL"), ready(dealerSocket, property("Identity", "ps9"))...), "ps9", ""},
		"anonymous":             {append(greeting3(3, "NULL"), ready(dealerSocket)...), "", ""},
		"names in other cases":  {append(greeting3(3, "NULL"), ready(property("identity", "ps9"), property("SOCKET-TYPE", "DEALER"))...), "ps9", ""},
		"a long READY":          {append(greeting3(3, "NULL"), ready(dealerSocket, property("Identity", long), property("X-more", long))...), long, ""},
		"a later version":       {append(greeting3(9, "NULL"), ready(dealerSocket)...), "", ""},
		"version 2":             {greeting2(5, "ps9"), "ps9", ""},
		"version 2, anonymous":  {greeting2(5, ""), "", ""},
		"nothing":               {nil, "", "EOF"},
		"a byte":                {[]byte{0xff}, "", "unexpected EOF"},
		"another protocol":      {[]byte("GET / HTTP/1.1\r\n\r\n"), "", "does not speak"},
		"version 1":             {append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 0}, make([]byte, 50)...), "", "does not speak"},
		"half a greeting":       {greeting3(3, "NULL")[:40], "", "unexpected EOF"},
		"no READY":              {greeting3(3, "NULL"), "", "unexpected EOF"},
		"half a READY":          {append(greeting3(3, "NULL"), ready(dealerSocket)[:9]...), "", "unexpected EOF"},
		"another mechanism":     {greeting3(3, "CURVE"), "", `"CURVE", expected NULL`},
		"another socket":        {append(greeting3(3, "NULL"), ready(property("Socket-Type", "PUB"))...), "", `"PUB", expected DEALER`},
		"no socket":             {append(greeting3(3, "NULL"), ready()...), "", "expected DEALER"},
		"another command":       {append(greeting3(3, "NULL"), command([]byte("\x05HELLO"))...), "", "not READY"},
		"a frame before READY":  {append(greeting3(3, "NULL"), 0, 1, 'x'), "", "not READY"},
		"a READY too long":      {append(greeting3(3, "NULL"), 6, 0, 0, 0, 0, 0x80, 0, 0, 0), "", "not READY"},
		"a property too long":   {append(greeting3(3, "NULL"), command([]byte("\x05READY\x01x\xff\xff\xff\xff"))...), "", "makes no sense"},
		"half a property":       {append(greeting3(3, "NULL"), command([]byte("\x05READY\x08Iden"))...), "", "makes no sense"},
		"unknown flags":         {append(greeting3(3, "NULL"), 0x84, 0), "", "flags 0x84"},
		"version 2, a PUB":      {greeting2(1, ""), "", "of type 1"},
		"version 2, half":       {greeting2(5, "ps9")[:12], "", "unexpected EOF"},
		"version 2, more":       {append(greeting2(5, "")[:12], 1, 0), "", "identity makes no sense"},
		"version 2, a long one": {append(greeting2(5, "")[:12], 2, 0, 0, 0, 0, 0x80, 0, 0, 0), "", "identity makes no sense"},
	} {
		identity, err := zmtp.Accept(bufio.NewReader(bytes.NewReader(c.said)), io.Discard)
		if c.error == "" && (err != nil || string(identity) != c.identity) {
			t.Errorf("%s: identity %q, error %v", name, identity, err)
		}
		if c.error != "" && (err == nil || !strings.Contains(err.Error(), c.error) || (err == io.EOF) != (len(c.said) == 0)) {
			t.Errorf("%s: error %v, want %q", name, err, c.error)
		}
	}
}

func TestHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		said  []byte
		want  zmtp.Header
		error string
	}{
		"short":               {[]byte{0, 7}, zmtp.Header{Size: 7}, ""},
		"more":                {[]byte{1, 255}, zmtp.Header{Size: 255, More: true}, ""},
		"long":                {[]byte{2, 0, 0, 0, 1, 0, 0, 0, 2}, zmtp.Header{Size: 1<<32 + 2}, ""},
		"after commands":      {[]byte{4, 1, 'x', 6, 0, 0, 0, 0, 0, 0, 0, 2, 'y', 'z', 1, 3}, zmtp.Header{Size: 3, More: true}, ""},
		"the end":             {nil, zmtp.Header{}, "EOF"},
		"an end within":       {[]byte{2, 0, 0}, zmtp.Header{}, "unexpected EOF"},
		"no size":             {[]byte{0}, zmtp.Header{}, "unexpected EOF"},
		"an end in a command": {[]byte{4, 9, 'x'}, zmtp.Header{}, "unexpected EOF"},
		"a command too long":  {[]byte{6, 0, 0, 0, 0, 0, 0, 16, 1}, zmtp.Header{}, "command of 4097 bytes, at most 4096"},
		"unknown flags":       {[]byte{8, 0}, zmtp.Header{}, "flags 0x8"},
		"a command in two":    {[]byte{5, 0}, zmtp.Header{}, "flags 0x5"},
	} {
		h, err := zmtp.ReadMessageHeader(bufio.NewReader(bytes.NewReader(c.said)))
		if c.error == "" && (err != nil || h != c.want) || c.error != "" && (err == nil || !strings.Contains(err.Error(), c.error)) {
			t.Errorf("%s: %+v, error %v, want %+v, %q", name, h, err, c.want, c.error)
		}
	}
}

// realBytes is what a DEALER of libzmq says to a peer that accepts it: its handshake, and a message of three frames.
func realBytes(tb testing.TB) []byte {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer listener.Close()
	ctx, err := zmq.NewContext()
	if err != nil {
		tb.Fatal(err)
	}
	defer ctx.Term()
	d, err := ctx.NewSocket(zmq.DEALER)
	if err != nil {
		tb.Fatal(err)
	}
	defer d.Close()
	if err := errors.Join(d.SetLinger(0), d.SetIdentity("ps9"), d.Connect("tcp://"+listener.Addr().String())); err != nil {
		tb.Fatal(err)
	}
	frames := [][]byte{[]byte("meta"), nil, bytes.Repeat([]byte("x"), 300)}
	for i, frame := range frames {
		flag := zmq.SNDMORE
		if i == len(frames)-1 {
			flag = 0
		}
		if _, err := d.SendBytes(frame, flag); err != nil {
			tb.Fatal(err)
		}
	}
	c, err := listener.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close()
	var said bytes.Buffer
	r := bufio.NewReaderSize(io.TeeReader(c, &said), 16) // reads no further than it must
	identity, err := zmtp.Accept(r, c)
	if err != nil || string(identity) != "ps9" {
		tb.Fatalf("libzmq's handshake: identity %q, error %v", identity, err)
	}
	for i, frame := range frames {
		h, err := zmtp.ReadMessageHeader(r)
		if err != nil || int(h.Size) != len(frame) || h.More != (i < len(frames)-1) {
			tb.Fatalf("frame %d: %+v, error %v", i, h, err)
		}
		if _, err := r.Discard(len(frame)); err != nil {
			tb.Fatal(err)
		}
	}
	return said.Bytes()
}

func TestLibzmq(t *testing.T) { realBytes(t) }

// FuzzAccept: whatever a peer says, a handshake and the headers of frames come to an end, and an identity is as short as
// the longest command.
func FuzzAccept(f *testing.F) {
	f.Add(realBytes(f))
	f.Add(append(greeting2(5, "ps9"), 1, 2, 'a', 'b', 0, 0))
	f.Add(append(append(greeting3(3, "NULL"), ready(dealerSocket)...), 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff))
	f.Fuzz(func(t *testing.T, said []byte) {
		r := bufio.NewReader(bytes.NewReader(said))
		identity, err := zmtp.Accept(r, io.Discard)
		if err != nil {
			return
		}
		if len(identity) > 4096 {
			t.Errorf("an identity of %d bytes", len(identity))
		}
		for {
			h, err := zmtp.ReadMessageHeader(r)
			if err != nil {
				return
			}
			if h.Command {
				t.Error("a command was not skipped")
			}
			if _, err := io.CopyN(io.Discard, r, int64(min(h.Size, 1<<40))); err != nil {
				return
			}
		}
	})
}
