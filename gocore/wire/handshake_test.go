package wire

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func hello() Hello {
	return NewHello(9, 0x1122334455667788, 8, 0x99aabbccddeeff00, [TokenBytes]byte{1, 2, 3, 15: 16})
}

func encodeHello(h Hello) []byte {
	b := make([]byte, HelloBytes)
	h.Put(b)
	return b
}

func TestHelloComesBack(t *testing.T) {
	h := hello()
	h.Lane, h.Purpose, h.Socket, h.Received = 3, Resume, 4, 5<<24
	var back Hello
	if err := back.Get(encodeHello(h)); err != nil || back != h {
		t.Errorf("%+v came back as %+v, error %v", h, back, err)
	}
	if reason := compatible(hello()); reason != "" {
		t.Errorf("a node cannot speak with itself: %s", reason)
	}
}

func compatible(h Hello) string { return h.Compatible() }

func TestHelloLayout(t *testing.T) {
	want := "FPTH\x01\x00\x00\x00" + "\x09\x00\x00\x00" + "\x08\x00\x00\x00" + "\x88\x77\x66\x55\x44\x33\x22\x11" +
		"\x00\xff\xee\xdd\xcc\xbb\xaa\x99" + "\x00\x40\x00\x00" + "\x01\x02\x03" + strings.Repeat("\x00", 12) + "\x10" +
		"\x03\x00\xa1\xa2\xb1\xb2\xb3\xb4"
	h := hello()
	h.Purpose, h.Socket, h.Received = Wake, 0xa2a1, 0xb4b3b2b1
	if got := string(encodeHello(h)[:60]); got != want {
		t.Errorf("layout\n%x, expected\n%x", got, want)
	}
}

func TestDamagedHelloIsRubbish(t *testing.T) {
	for bit := range HelloBytes * 8 {
		b := encodeHello(hello())
		b[bit/8] ^= 1 << (bit % 8)
		var h Hello
		if h.Get(b) == nil {
			t.Errorf("accepted with bit %d of byte %d flipped", bit%8, bit/8)
		}
	}
}

func TestIncompatibleHelloIsNamed(t *testing.T) {
	for says, change := range map[string]func(*Hello){
		"version 2": func(h *Hello) { h.Version++ },
		"16385":     func(h *Hello) { h.Packet++ },
		"purpose 4": func(h *Hello) { h.Purpose = purposeEnd },
	} {
		h := hello()
		change(&h)
		var back Hello
		if err := back.Get(encodeHello(h)); err != nil {
			t.Errorf("%s: %v", says, err)
		}
		if reason := back.Compatible(); !strings.Contains(reason, says) {
			t.Errorf("reason %q does not say %q", reason, says)
		}
	}
}

func TestAnswers(t *testing.T) {
	for _, tc := range []struct{ reason, arrives string }{
		{"", ""},
		{"wrong cluster token", "wrong cluster token"},
		{"two\nlines\x1b[31m \xff", "two?lines?[31m ?"},
		{strings.Repeat("é", MaxReason), strings.Repeat("é", MaxReason/2)},
		{"a" + strings.Repeat("é", MaxReason), "a" + strings.Repeat("é", MaxReason/2-1)},
	} {
		b := PutAnswer(tc.reason)
		n, received, err := GetAnswer(b)
		if err != nil || received != 0 || n != len(b)-AnswerBytes {
			t.Fatalf("%q: %d bytes of reason, error %v", tc.reason, n, err)
		}
		if got := GetReason(b[AnswerBytes:]); got != tc.arrives {
			t.Errorf("%q arrives as %q", tc.reason, got)
		}
	}
}

func TestAnswerThatResumes(t *testing.T) {
	if n, received, err := GetAnswer(PutResumed(1<<32 - 2)); n != 0 || received != 1<<32-2 || err != nil {
		t.Errorf("%d bytes of reason, %d received, error %v", n, received, err)
	}
}

func TestDamagedAnswerIsRefused(t *testing.T) {
	for bit := range AnswerBytes * 8 {
		b := PutAnswer("no")
		b[bit/8] ^= 1 << (bit % 8)
		if _, _, err := GetAnswer(b); err == nil {
			t.Errorf("accepted with bit %d of byte %d flipped", bit%8, bit/8)
		}
	}
}

func TestAnswerOfOtherBuilds(t *testing.T) {
	welcome, refusal, long := PutAnswer(""), PutAnswer("old"), PutAnswer("x")
	welcome[4], refusal[4] = version+1, version+1
	long[6], long[7] = 0xff, 0xff
	for _, b := range [][]byte{welcome, refusal, long} {
		mend(b, 28)
	}
	if _, _, err := GetAnswer(welcome); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("welcome of another version: error %v", err)
	}
	if n, _, err := GetAnswer(refusal); n != 3 || err != nil {
		t.Errorf("refusal of another version: %d, error %v; its reason is wanted", n, err)
	}
	if _, _, err := GetAnswer(long); err == nil || !strings.Contains(err.Error(), "65535") {
		t.Errorf("reason of 65535 bytes: error %v", err)
	}
}

func FuzzHello(f *testing.F) {
	f.Add(encodeHello(hello()), true)
	f.Add(encodeHello(hello()), false)
	for purpose := range purposeEnd {
		h := hello()
		h.Purpose, h.Socket, h.Received = purpose, 1<<15, 1<<31
		f.Add(encodeHello(h), true)
	}
	f.Add([]byte("GET / HTTP/1.1\r\n"), false)
	f.Fuzz(func(t *testing.T, data []byte, whole bool) {
		b := make([]byte, HelloBytes)
		copy(b, data)
		if whole {
			copy(b, "FPTH")
			mend(b, 60)
		}
		var h, back Hello
		if h.Get(b) != nil {
			return
		}
		h.Compatible()
		if err := back.Get(encodeHello(h)); err != nil || back != h {
			t.Errorf("%+v came back as %+v, error %v", h, back, err)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add(PutAnswer(""), true)
	f.Add(PutResumed(1<<31), true)
	f.Add(PutAnswer("wrong cluster token"), true)
	f.Add(PutAnswer("wrong cluster token"), false)
	f.Fuzz(func(t *testing.T, data []byte, whole bool) {
		b := make([]byte, AnswerBytes)
		n := copy(b, data)
		if whole {
			copy(b, "FPTA")
			mend(b, 28)
		}
		if reason, _, err := GetAnswer(b); err == nil && (reason < 0 || reason > MaxReason) {
			t.Errorf("a reason of %d bytes", reason)
		}
		if s := GetReason(data[n:]); len(s) > MaxReason || !utf8.ValidString(s) || strings.ContainsAny(s, "\n\x1b\x00") {
			t.Errorf("reason %q", s)
		}
	})
}
