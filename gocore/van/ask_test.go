package van

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"fptps/gocore/wire/pspb"
)

func question(secret string) *pspb.Meta {
	return &pspb.Meta{Own: &pspb.Meta_StatusAsk{StatusAsk: &pspb.StatusAsk{Secret: &secret}}}
}

// answers has the victim answer every question with its secret, size times.
func (s *victim) answers(size int) {
	go func() {
		for e := range s.messages {
			e.Answer(&pspb.Meta{Body: bytes.Repeat([]byte(e.Meta.GetStatusAsk().GetSecret()), size)})
		}
	}()
	s.t.Cleanup(func() { // its receiver has ended by then, or ends
		s.Close()
		close(s.messages)
	})
}

func TestAsk(t *testing.T) {
	v := newStrangersVictim(t)
	v.answers(1)
	for _, secret := range []string{"x", string(bytes.Repeat([]byte("long"), 1000))} {
		answer, err := Ask("127.0.0.1", v.port, question(secret), time.Minute)
		if err != nil || string(answer.GetBody()) != secret {
			t.Errorf("%d bytes, %v", len(answer.GetBody()), err)
		}
	}
}

func TestAskNobody(t *testing.T) {
	v := newStrangersVictim(t)
	if _, err := Ask("127.0.0.1", v.port, question(""), 50*time.Millisecond); err != ErrSilent {
		t.Errorf("one that does not answer: %v", err)
	}
	v.Close()
	if _, err := Ask("127.0.0.1", v.port, question(""), time.Minute); err == nil || errors.Is(err, ErrSilent) {
		t.Errorf("nobody there: %v", err)
	}
}

// TestAnswersTakeMemory: an answer that nobody reads counts as its asker's, so that askers share what strangers may take.
func TestAnswersTakeMemory(t *testing.T) {
	v := newStrangersVictim(t)
	v.limit(2*strangerBytes + 64<<10)
	v.answers(100 << 10)
	idle, asker := v.peer(1), v.peer(2)
	ask, err := Encode(question("x"))
	if err != nil {
		t.Fatal(err)
	}
	asker.say(header(len(ask), false), ask)
	idle.ends()
}

// TestOneAnswer: an answer is one message, however often its question is answered; then the next question is read.
func TestOneAnswer(t *testing.T) {
	v := newStrangersVictim(t)
	asker := v.peer(1)
	ask, err := Encode(question("x"))
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"first", "next"} {
		asker.say(header(len(ask), false), ask)
		e := <-v.messages
		e.Answer(&pspb.Meta{Body: []byte(word)})
		e.Answer(&pspb.Meta{Body: []byte("again")})
		want, err := Encode(&pspb.Meta{Body: []byte(word)})
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 2+len(want))
		if _, err := io.ReadFull(asker, got); err != nil || got[0] != 0 || int(got[1]) != len(want) || !bytes.Equal(got[2:], want) {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
	}
}
