package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"fptps/gocore/wire"
)

// seen is a sink that records packets as strings.
type seen struct {
	packets []string
	largest int
	most    int64 // places at a time
	owners  ledger
	refuse  int // Place fails at this packet, counted from 1; 0 never
	short   bool
}

func (s *seen) Place(_ uint32, h *wire.Header) (Destination, error) {
	if s.refuse == len(s.packets)+1 {
		return Destination{}, errors.New("no place")
	}
	s.largest = max(s.largest, int(h.WireLen))
	n := int(h.WireLen)
	if s.short {
		n--
	}
	l := Destination{Bytes: make([]byte, n), Owner: s.owners.lend(nil)}
	s.most = max(s.most, s.owners.lent.Load()-s.owners.released.Load())
	return l, nil
}

func (s *seen) Began(*wire.Header) error { return nil }

func (s *seen) Arrived(_ uint32, h *wire.Header, l Destination) error {
	if l.Owner != nil {
		l.Owner.Release()
	}
	s.packets = append(s.packets, describePacket(h, l.Bytes))
	return nil
}

func describePacket(h *wire.Header, payload []byte) string {
	return fmt.Sprintf("%+v %x", *h, payload)
}

// feed passes stream to p in pieces of random size, as readv would.
func feed(p *parser, stream []byte, rng *rand.Rand, s sink) error {
	var scratch [vectorLen]unix.Iovec
	for len(stream) > 0 {
		vector, want := p.target(&scratch)
		n := min(len(stream), 1+rng.IntN(want))
		if rng.IntN(4) == 0 {
			n = min(len(stream), want)
		}
		left := stream[:n]
		for _, v := range vector {
			left = left[copy(unsafe.Slice(v.Base, v.Len), left):]
		}
		if len(left) > 0 {
			return fmt.Errorf("the vector is %d bytes shorter than it says", len(left))
		}
		stream = stream[n:]
		if err := p.advance(n, s); err != nil {
			return err
		}
		if err := p.checkPointers(); err != nil {
			return err
		}
	}
	return nil
}

// checkPointers fails if the parser still refers to the memory of complete packets, which their owners may unmap.
func (p *parser) checkPointers() error {
	for i := range p.train {
		due := i < p.n && (i > p.at || i == p.at && p.received < p.train[i].payload)
		if (p.train[i].destination.Bytes != nil) != due {
			return fmt.Errorf("carriage %d of %d, %d bytes of number %d are here: memory of %d bytes is kept", i, p.n, p.received, p.at, len(p.train[i].destination.Bytes))
		}
	}
	return nil
}

// dumbParse is the reference: it parses the whole stream at once.
func dumbParse(stream []byte) (packets []string, goodbye bool, err error) {
	var last wire.Header
	for len(stream) >= wire.HeaderBytes {
		var h wire.Header
		if err := h.Get(stream); err != nil {
			return packets, goodbye, err
		}
		promised := last
		promised.Packet++
		promised.Ahead--
		if last.Ahead > 0 && identity(h) != identity(promised) {
			return packets, goodbye, fmt.Errorf("packet %+v follows, but %+v has announced another one", h, last)
		}
		last = h
		if goodbye {
			return packets, goodbye, errors.New("a packet after the goodbye")
		}
		stream = stream[wire.HeaderBytes:]
		if goodbye = h.Kind == wire.Goodbye; goodbye {
			continue
		}
		if len(stream) < int(h.WireLen) {
			return packets, goodbye, nil
		}
		packets = append(packets, describePacket(&h, stream[:h.WireLen]))
		stream = stream[h.WireLen:]
	}
	return packets, goodbye, nil
}

// identity holds the fields that must match an announcement.
func identity(h wire.Header) [6]uint64 {
	return [6]uint64{uint64(h.Kind), uint64(h.Tensor), uint64(h.Packet), h.Round, uint64(h.WireLen), uint64(h.Ahead)}
}

// packetBytes encodes a packet.
func packetBytes(h wire.Header, payload int) []byte {
	h.WireLen = uint32(payload)
	if payload > 0 {
		h.RawLen = uint32(payload)
	}
	b := make([]byte, wire.HeaderBytes, wire.HeaderBytes+payload)
	h.Put(b)
	return append(b, fill(make([]byte, payload), 1, h.Tensor)...)
}

// realStream makes n random valid packets, without a Goodbye.
func realStream(rng *rand.Rand, n int) (b []byte) {
	for range n {
		h := contrib(rng.Uint32N(100), 0)
		switch rng.IntN(5) {
		case 4:
			size := 1 + rng.IntN(1000)
			for ahead := rng.IntN(wire.MaxAhead + 1); ahead >= 0; ahead-- {
				h.Ahead = uint16(ahead)
				b = append(b, packetBytes(h, size)...)
				h.Packet++
			}
		case 0:
			h.Kind, h.RawLen = wire.Empty, 1
			b = append(b, packetBytes(h, 0)...)
		case 1:
			h.Kind, h.RawLen = wire.Sum, 7
			b = append(b, packetBytes(h, 0)...)
		default:
			b = append(b, packetBytes(h, 1+rng.IntN(1<<rng.UintN(16)))...)
		}
	}
	return b
}

func checkParser(t *testing.T, stream []byte, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	p, s := parser{peer: 1}, seen{}
	err := feed(&p, stream, rng, &s)
	packets, goodbye, wantErr := dumbParse(stream)
	if !slices.Equal(s.packets, packets) {
		t.Errorf("%d packets, expected %d, or they differ", len(s.packets), len(packets))
	}
	if fmt.Sprint(err) != fmt.Sprint(wantErr) || p.goodbye != goodbye {
		t.Errorf("error %v, goodbye %v; expected %v, %v", err, p.goodbye, wantErr, goodbye)
	}
	if s.most > wire.MaxAhead+1 {
		t.Errorf("%d places at once", s.most)
	}
	if s.largest > wire.PacketBytes {
		t.Errorf("asked for a place of %d bytes", s.largest)
	}
	p.abandon(func(o Releaser) { o.Release() })
	p.abandon(func(Releaser) { t.Error("the place of a packet is given up twice") })
	s.owners.check(t)
}

func TestParserEqualsReference(t *testing.T) {
	rng := seeded(t, rand.Uint64())
	for range 200 {
		stream := realStream(rng, rng.IntN(20))
		switch rng.IntN(6) {
		case 5: // not what was announced
			h := contrib(1, 0)
			h.Ahead = 2
			stream = append(stream, packetBytes(h, 10)...)
			[]func(){func() { h.Packet++ }, func() { h.Ahead-- }, func() { h.Round++ }, func() { h.Tensor++ }}[rng.IntN(4)]()
			stream = append(stream, packetBytes(h, 10)...)
		case 0:
			stream = append(stream, packetBytes(wire.Header{Kind: wire.Goodbye}, 0)...)
		case 1:
			stream = append(stream, packetBytes(wire.Header{Kind: wire.Goodbye}, 0)...)
			stream = append(stream, realStream(rng, 1)...)
		case 2:
			stream = stream[:rng.IntN(len(stream)+1)]
		case 3:
			if len(stream) > 0 {
				stream[rng.IntN(len(stream))] ^= 1 << rng.IntN(8)
			}
		}
		checkParser(t, stream, rng.Uint64())
	}
}

func TestParserWithoutAPlace(t *testing.T) {
	rng := seeded(t, rand.Uint64())
	stream := bytes.Join([][]byte{packetBytes(contrib(1, 0), 10), packetBytes(contrib(2, 0), 20)}, nil)
	var p parser
	s := seen{refuse: 2}
	if err := feed(&p, stream, rng, &s); err == nil || err.Error() != "no place" || len(s.packets) != 1 {
		t.Errorf("error %v after %d packets", err, len(s.packets))
	}
	p, s = parser{}, seen{short: true}
	if err := feed(&p, stream, rng, &s); err == nil || !strings.Contains(err.Error(), "9 bytes for a payload of 10") {
		t.Errorf("a place that is too small: error %v", err)
	}
	given := 0
	p.abandon(func(Releaser) { given++ })
	if given != 1 {
		t.Error("the place that was too small is not given back")
	}
}

func TestParserAllocatesNothing(t *testing.T) {
	stream := packetBytes(contrib(1, 0), 100)
	s := fixedSink{place: make([]byte, 100)}
	var p parser
	var scratch [vectorLen]unix.Iovec
	n := testing.AllocsPerRun(100, func() {
		for left := stream; len(left) > 0; {
			vector, want := p.target(&scratch)
			n := min(want, len(left))
			for _, v := range vector {
				left = left[copy(unsafe.Slice(v.Base, v.Len), left):]
			}
			if err := p.advance(n, &s); err != nil {
				t.Fatal(err)
			}
		}
	})
	if n != 0 || s.arrived == 0 {
		t.Errorf("%v allocations a packet, %d arrived", n, s.arrived)
	}
}

type fixedSink struct {
	place   []byte
	arrived int
}

func (s *fixedSink) Place(uint32, *wire.Header) (Destination, error) {
	return Destination{Bytes: s.place}, nil
}

func (s *fixedSink) Began(*wire.Header) error                        { return nil }
func (s *fixedSink) Arrived(uint32, *wire.Header, Destination) error { s.arrived++; return nil }

// mend corrects magic, version and checksum of the headers in a fuzzed stream, so that the
// later checks are reached.
func mend(stream []byte) {
	for len(stream) >= wire.HeaderBytes {
		copy(stream, "FP\x01")
		le := binary.LittleEndian
		le.PutUint32(stream[60:], crc32.Checksum(stream[:60], crc32.MakeTable(crc32.Castagnoli)))
		size := min(wire.HeaderBytes+uint64(le.Uint32(stream[52:])), uint64(len(stream)))
		stream = stream[size:]
	}
}

func FuzzParser(f *testing.F) {
	rng := rand.New(rand.NewPCG(7, 7))
	for i := range 8 {
		f.Add(realStream(rng, i), uint64(i))
	}
	f.Add(append(realStream(rng, 2), packetBytes(wire.Header{Kind: wire.Goodbye}, 0)...), uint64(9))
	f.Add(bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 10), uint64(10))
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		checkParser(t, stream, seed)
		mend(stream)
		checkParser(t, stream, seed)
	})
}
