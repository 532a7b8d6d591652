package transport

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// ends holds the two sides of one ring, each with its own private state.
func ends(t testing.TB) (writer, reader *ring) {
	t.Helper()
	o, err := newOffer()
	if err != nil {
		t.Fatal(err)
	}
	memory, err := mapOffer(o.fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Munmap(memory)
		o.close()
	})
	w, r := newRing(o.memory, 0), newRing(memory, 0)
	return &w, &r
}

func vectorOf(parts ...[]byte) (v []unix.Iovec) {
	for _, p := range parts {
		v = append(v, iovec(p))
	}
	return v
}

// For any sizes of reads and writes, a ring behaves like a plain byte queue of the same
// capacity.
func TestRingEqualsByteQueue(t *testing.T) {
	rng := seeded(t, rand.Uint64())
	w, r := ends(t)
	var model []byte
	for range 3000 {
		if rng.IntN(2) == 0 {
			a, b := make([]byte, 1+rng.IntN(200_000)), make([]byte, 1+rng.IntN(100))
			for i := range a {
				a[i] = byte(rng.Uint32())
			}
			n, errno := w.write(vectorOf(a, b))
			want := min(len(a)+len(b), ringBytes-len(model))
			if n != want || (errno == unix.EAGAIN) != (want == 0) {
				t.Fatalf("wrote %d (%v), expected %d", n, errno, want)
			}
			model = append(model, append(a, b...)[:n]...)
			continue
		}
		a, b := make([]byte, 1+rng.IntN(100)), make([]byte, 1+rng.IntN(200_000))
		n, errno := r.read(vectorOf(a, b))
		want := min(len(a)+len(b), len(model))
		if n != want || (errno == unix.EAGAIN) != (want == 0) {
			t.Fatalf("read %d (%v), expected %d", n, errno, want)
		}
		if got := append(a, b...)[:n]; !bytes.Equal(got, model[:n]) {
			t.Fatal("other bytes came out than went in")
		}
		model = model[n:]
	}
}

// A writer and a reader that sleep whenever they may, until the other wakes them, transfer
// everything.
func TestRingLosesNoWakeUp(t *testing.T) {
	w, r := ends(t)
	const total = 64 << 20
	data, room := make(chan struct{}, 1), make(chan struct{}, 1)
	ring := func(bell chan struct{}) {
		select {
		case bell <- struct{}{}:
		default:
		}
	}
	go func() {
		chunk := make([]byte, 300_000)
		for sent := 0; sent < total; {
			part := chunk[:min(total-sent, 1+sent%len(chunk))]
			n, errno := w.write(vectorOf(part))
			if n > 0 && w.wakeReader() {
				ring(data)
			}
			sent += n
			if (errno == unix.EAGAIN || n < len(part)) && !w.free() {
				<-room
			}
		}
	}()
	place := make([]byte, 70_000)
	for got := 0; got < total; {
		n, errno := r.read(vectorOf(place))
		if n > 0 && r.wakeWriter() {
			ring(room)
		}
		got += n
		if errno == unix.EAGAIN {
			r.readerSleeps.Store(1)
			if n, _ := r.available(); n == 0 {
				<-data
			}
			r.readerSleeps.Store(0)
			runtime.Gosched()
		}
	}
}

// Invalid positions by the peer are errors, and nothing outside the ring is accessed.
func TestRingWithInvalidPositions(t *testing.T) {
	for _, lie := range []uint64{ringBytes + 1, 1 << 40, 1<<64 - 1} {
		w, r := ends(t)
		w.head.Store(lie)
		if n, errno := r.read(vectorOf(make([]byte, 10))); n != 0 || errno != unix.EBADMSG {
			t.Errorf("a head of %d: read %d, %v", lie, n, errno)
		}
		w.tail.Store(lie / 2)
		if n, errno := w.write(vectorOf(make([]byte, 10))); n != 0 || errno != unix.EBADMSG {
			t.Errorf("a tail of %d: wrote %d, %v", lie, n, errno)
		}
		if !w.free() {
			t.Errorf("a tail of %d hides for ever", lie)
		}
	}
}
