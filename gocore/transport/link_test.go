package transport

import (
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// Link describes connections and leaves them as they were: all packets arrive while threads ask for it all the time.
func TestLink(t *testing.T) {
	overTCPAndShm(t, func(t *testing.T) {
		var stuck atomic.Bool
		nodes := mesh(t, func(n *node) {
			n.sys.write = func(fd int, vector []unix.Iovec) (int, unix.Errno) {
				if stuck.Load() {
					return 0, unix.EAGAIN
				}
				return writev(fd, vector)
			}
		}, 8, 9)
		server, worker := nodes[0], nodes[1]
		if l := worker.Link(77); l.Connected || l.String() != "no connection" {
			t.Errorf("%+v: %v", l, l)
		}
		l := worker.Link(8)
		if want := map[bool]string{true: "shared memory, 0 messages queued", false: "TCP, 0 messages queued"}[l.Shared]; !strings.HasPrefix(l.String(), want) {
			t.Errorf("%v, want %s", l, want)
		}
		if got := worker.Peers(); len(got) != 1 || got[0] != 8 {
			t.Error(got)
		}
		stuck.Store(!l.Shared)
		const count = 200
		for tensor := range uint32(count) {
			worker.Send(8, Outgoing{Header: contrib(tensor, 0), Data: fill(make([]byte, 100), 9, tensor)})
			worker.Link(8)
		}
		if l := worker.Link(8); !l.Shared && (!l.Waits() || l.Queued == 0) {
			t.Errorf("nothing waits: %+v", l)
		}
		asks := make(chan struct{})
		go func() {
			defer close(asks)
			for range 1000 {
				worker.Link(8)
				server.Link(9)
			}
		}()
		stuck.Store(false)
		server.h.untilArrived(t, count)
		<-asks
		for _, a := range server.h.untilArrived(t, count) {
			if err := checkContent(9, &a.header, a.payload); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestLinkTexts(t *testing.T) {
	for _, c := range []struct {
		link Link
		want string
	}{
		{Link{}, "no connection"},
		{Link{Connected: true, Broken: true, Queued: 3}, "the connection broke and is not made again yet, 3 messages queued"},
		{Link{Connected: true, Shared: true}, "shared memory, 0 messages queued"},
		{Link{Connected: true, Queued: 1, Unsent: 5, Unacked: 2, Retransmits: 4, Silence: 12_340_000_000, RoundTrip: 316_000},
			"TCP, 1 messages queued, 5 bytes not sent, 2 segments not acknowledged, 4 retransmissions without an answer, last data from there 12.3s ago, round trip 320µs"},
	} {
		if got := c.link.String(); got != c.want {
			t.Errorf("%+v: %q", c.link, got)
		}
	}
}
