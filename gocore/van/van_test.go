package van_test

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/van"
	"fptps/gocore/van/memvan"
	"fptps/gocore/wire/pspb"
)

const localhost = "127.0.0.1"

func trustAll(*van.Envelope) bool { return true }

// eachVan runs f for every implementation.
func eachVan(t *testing.T, f func(t *testing.T, newVan func() van.Van)) {
	t.Run("zmq", func(t *testing.T) {
		f(t, func() van.Van { return newZMQ(t, slog.New(slog.DiscardHandler)) })
	})
	t.Run("mem", func(t *testing.T) {
		net := memvan.New(1, 2*time.Millisecond)
		f(t, func() van.Van {
			v := net.Van(localhost)
			t.Cleanup(func() { v.Close() })
			return v
		})
	})
}

func newZMQ(t *testing.T, log *slog.Logger) van.Van {
	t.Helper()
	v, err := van.NewZMQ(log, van.MaxFrame)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

func bind(t *testing.T, v van.Van, port int) int {
	t.Helper()
	got, err := v.Bind(localhost, port)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func connect(t *testing.T, v van.Van, id, port int) {
	t.Helper()
	if err := v.Connect(id, localhost, port); err != nil {
		t.Fatal(err)
	}
}

func send(t *testing.T, v van.Van, id, head int, data ...[]byte) {
	t.Helper()
	if err := v.Send(id, &pspb.Meta{Head: proto.Int32(int32(head))}, data...); err != nil {
		t.Fatal(err)
	}
}

// want receives one message and checks it.
func want(t *testing.T, v van.Van, from, head int, data ...string) {
	t.Helper()
	e, err := v.Receive()
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, d := range e.Data {
		got = append(got, string(d))
	}
	if e.From != from || int(e.Meta.GetHead()) != head || !slices.Equal(got, data) {
		t.Fatalf("got head %d from %d with %.20q, want %d from %d with %.20q", e.Meta.GetHead(), e.From, got, head, from, data)
	}
}

func TestDelivers(t *testing.T) {
	eachVan(t, func(t *testing.T, newVan func() van.Van) {
		a, b := newVan(), newVan()
		port := bind(t, b, 0)
		b.Trust(trustAll)
		connect(t, a, 1, port)
		send(t, a, 1, 6)
		want(t, b, 0, 6)
		a.Identify(9)
		connect(t, a, 1, port)
		send(t, a, 1, 7, []byte("keys"), nil, []byte("values"))
		want(t, b, 9, 7, "keys", "", "values")
		for i := range 2000 {
			send(t, a, 1, i)
		}
		for i := range 2000 {
			want(t, b, 9, i)
		}
		if err := a.Send(2, &pspb.Meta{}); err == nil {
			t.Error("a message to an unknown node was taken")
		}
		a.Disconnect(1, false)
		a.Disconnect(1, true)
		if err := a.Send(1, &pspb.Meta{}); err == nil {
			t.Error("a message to a node that was disconnected was taken")
		}
		if got := a.Stats().Sent; got != 2002 {
			t.Errorf("%d messages sent, want 2002", got)
		}
		if got := b.Stats(); got.Received != 2002 || got.Rejected != 0 {
			t.Errorf("counts %+v", got)
		}
	})
}

// Messages sent before the peer has bound its address are queued for it.
func TestSendBeforeBind(t *testing.T) {
	eachVan(t, func(t *testing.T, newVan func() van.Van) {
		first := newVan()
		port := bind(t, first, 0)
		first.Close()
		a, b := newVan(), newVan()
		connect(t, a, 1, port)
		send(t, a, 1, 1)
		send(t, a, 1, 2)
		bind(t, b, port)
		want(t, b, 0, 1)
		want(t, b, 0, 2)
	})
}

// A connection that broke is counted anew when the next van at the address has taken it.
func TestConnections(t *testing.T) {
	eachVan(t, func(t *testing.T, newVan func() van.Van) {
		first := newVan()
		port := bind(t, first, 0)
		first.Close()
		a := newVan()
		if err := a.ConnectCounted(1, localhost, port); err != nil {
			t.Fatal(err)
		}
		if got := a.Connections(1) + a.Connections(2); got != 0 {
			t.Errorf("%d connections to nobody", got)
		}
		for made := 1; made <= 3; made++ {
			b := newVan()
			bind(t, b, port)
			for n := 0; a.Connections(1) < made; n++ { // the count may come after the message
				send(t, a, 1, n)
				if _, err := b.Receive(); err != nil {
					t.Fatal(err)
				}
			}
			if got := a.Connections(1); got != made {
				t.Errorf("%d connections, want %d", got, made)
			}
			b.Close()
		}
	})
}

func TestAddressInUse(t *testing.T) {
	eachVan(t, func(t *testing.T, newVan func() van.Van) {
		a, b := newVan(), newVan()
		if _, err := b.Bind(localhost, bind(t, a, 0)); err == nil {
			t.Error("two vans bound one address")
		}
	})
}

func TestCloseWakesReceive(t *testing.T) {
	eachVan(t, func(t *testing.T, newVan func() van.Van) {
		v := newVan()
		bind(t, v, 0)
		ended := make(chan error)
		go func() {
			_, err := v.Receive()
			ended <- err
		}()
		v.Close()
		if err := <-ended; !errors.Is(err, van.ErrClosed) {
			t.Errorf("Receive ended with %v", err)
		}
		if _, err := v.Receive(); !errors.Is(err, van.ErrClosed) {
			t.Errorf("Receive after Close: %v", err)
		}
		if err := v.Send(1, &pspb.Meta{}); err == nil {
			t.Error("Send after Close was taken")
		}
		v.Disconnect(1, true)
		v.Close()
	})
}

// The last messages leave before Close returns, or Disconnect forgets: more of them
// than the kernel and the other van take by themselves.
func TestLastMessagesLeave(t *testing.T) {
	eachVan(t, func(t *testing.T, newVan func() van.Van) {
		const messages = 600
		data := bytes.Repeat([]byte("x"), 64<<10)
		a, b := newVan(), newVan()
		van.LingerLong(a)
		a.Identify(9)
		b.Trust(trustAll)
		port := bind(t, b, 0)
		for _, leave := range []func(){func() { a.Disconnect(1, false) }, func() { a.Close() }} {
			connect(t, a, 1, port)
			for i := range messages {
				send(t, a, 1, i, data)
			}
			var leaving sync.WaitGroup
			leaving.Go(leave)
			for i := range messages {
				want(t, b, 9, i, string(data))
			}
			leaving.Wait()
		}
	})
}

// One van may be used from many goroutines.
func TestConcurrentSends(t *testing.T) {
	eachVan(t, func(t *testing.T, newVan func() van.Van) {
		const senders, each = 8, 200
		a, b := newVan(), newVan()
		connect(t, a, 1, bind(t, b, 0))
		var all sync.WaitGroup
		for s := range senders {
			all.Go(func() {
				for i := range each {
					if err := a.Send(1, &pspb.Meta{Head: proto.Int32(int32(s*each + i))}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		last := map[int]int{}
		for range senders * each {
			e, err := b.Receive()
			if err != nil {
				t.Fatal(err)
			}
			s, i := int(e.Meta.GetHead())/each, int(e.Meta.GetHead())%each
			if i != last[s] {
				t.Fatalf("message %d of sender %d came in place %d", i, s, last[s])
			}
			last[s]++
		}
		all.Wait()
	})
}
