package kv

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"fptps/gocore/fault"
)

func TestWait(t *testing.T) {
	s := NewTickets()
	good, bad, open := s.New(nil), s.New(nil), s.New(nil)
	broken := errors.New("broken")
	s.Finish(bad, broken)
	for _, c := range []struct {
		what    string
		id      int64
		timeout time.Duration
		done    bool
		err     error
	}{
		{"an end that is known", bad.ID, 0, true, broken},
		{"no wait", good.ID, 0, false, nil},
		{"a negative wait", good.ID, -time.Second, false, nil},
		{"too short a wait", good.ID, time.Millisecond, false, nil},
		{"a wait", good.ID, time.Hour, true, nil},
		{"one that never ends", open.ID, time.Millisecond, false, nil},
	} {
		if c.what == "a wait" {
			go s.Finish(good, nil)
		}
		before := time.Now()
		done, err := s.Wait(c.id, c.timeout)
		if took := time.Since(before); done != c.done || err != c.err || !done && took < c.timeout {
			t.Errorf("%s: done %v, error %v, after %v", c.what, done, err, took)
		}
	}
	for _, id := range []int64{good.ID, bad.ID, 0, -1, 99} {
		if done, err := s.Wait(id, time.Hour); done || fault.CodeOf(err) != fault.Value {
			t.Errorf("ticket %d, told or never known: done %v, error %v", id, done, err)
		}
	}
}

func TestReap(t *testing.T) {
	s := NewTickets()
	notified := 0
	var tickets []*Ticket
	for range 6 {
		tickets = append(tickets, s.New(nil))
	}
	s.Finish(tickets[4], nil) // before anybody listens: Reap gives it all the same
	s.Notify(func() { notified++ })
	for _, i := range []int{1, 3, 0} {
		s.Finish(tickets[i], nil)
	}
	if notified != 3 {
		t.Errorf("notified %d times of 3 ends", notified)
	}
	if done, err := s.Wait(tickets[3].ID, 0); !done || err != nil {
		t.Fatal(done, err)
	}
	var got []int64
	for range 5 {
		got = append(got, s.Reap())
	}
	if want := []int64{tickets[4].ID, tickets[1].ID, tickets[0].ID, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("reaped %v, expected %v", got, want)
	}
	s.Finish(tickets[2], errors.New("broken"))
	if id := s.Reap(); id != tickets[2].ID {
		t.Errorf("reaped %d", id)
	}
	if done, err := s.Wait(tickets[2].ID, 0); !done || err == nil {
		t.Errorf("a reaped ticket is not told: done %v, error %v", done, err)
	}
}

// TestNobodyReaps: what is kept of ended tickets stays short where they are only
// waited for, whichever stay open or untold.
func TestNobodyReaps(t *testing.T) {
	s := NewTickets()
	untold := s.New(nil)
	s.Finish(untold, nil)
	s.New(nil) // never ends
	for range 1000 {
		ticket := s.New(nil)
		s.Finish(ticket, nil)
		if done, err := s.Wait(ticket.ID, 0); !done || err != nil {
			t.Fatal(done, err)
		}
	}
	if n := len(s.mu.ended); n > 32 {
		t.Errorf("%d ended tickets are remembered", n)
	}
	if id := s.Reap(); id != untold.ID {
		t.Errorf("reaped %d, expected %d", id, untold.ID)
	}
}

// TestManyWaiters: each end reaches everyone who waits for it, under the race detector too.
func TestManyWaiters(t *testing.T) {
	s := NewTickets()
	var group sync.WaitGroup
	for range 20 {
		ticket := s.New(nil)
		for range 3 {
			group.Go(func() {
				// Who comes when another has been told finds none.
				if done, err := s.Wait(ticket.ID, time.Hour); !done && fault.CodeOf(err) != fault.Value {
					t.Error(done, err)
				}
			})
		}
		group.Go(func() { s.Finish(ticket, nil) })
	}
	group.Wait()
	if len(s.mu.open) != 0 {
		t.Errorf("%d tickets are open at the end", len(s.mu.open))
	}
}

func TestExplainOfATicket(t *testing.T) {
	s := NewTickets()
	ticket, silent := s.New(func() string { return "the weather" }), s.New(nil)
	if s.Explain(ticket.ID) != "the weather" || s.Explain(silent.ID) != "" || s.Explain(99) != "" {
		t.Error("wrong explanation")
	}
	s.Finish(ticket, nil)
	if s.Explain(ticket.ID) != "" {
		t.Error("an ended ticket waits for something")
	}
}

// Once Notify returns, the function before it is not running: its file descriptor
// may be closed.
func TestNotifyWaitsForTheCallUnderWay(t *testing.T) {
	tickets := NewTickets()
	entered, leave, left := make(chan bool), make(chan bool), false
	tickets.Notify(func() { entered <- true; <-leave; left = true })
	go tickets.Finish(tickets.New(nil), nil)
	<-entered
	go func() { leave <- true }()
	tickets.Notify(nil)
	if !left {
		t.Error("Notify returned while the function was running")
	}
}
