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
		name    string
		ticket  *Ticket
		timeout time.Duration
		done    bool
		err     error
	}{
		{"an end that is known", bad, 0, true, broken},
		{"no wait", good, 0, false, nil},
		{"a negative wait", good, -time.Second, false, nil},
		{"too short a wait", good, time.Millisecond, false, nil},
		{"a wait", good, time.Hour, true, nil},
		{"waiting again", good, 0, true, nil},
		{"one that never ends", open, time.Millisecond, false, nil},
	} {
		if c.name == "a wait" {
			go s.Finish(good, nil)
		}
		before := time.Now()
		done, err := c.ticket.Wait(c.timeout)
		if took := time.Since(before); done != c.done || err != c.err || !done && took < c.timeout {
			t.Errorf("%s: done %v, error %v, after %v", c.name, done, err, took)
		}
	}
}

// number gives each ticket a number, from 1.
func number(t *testing.T, s *Tickets, tickets ...*Ticket) {
	t.Helper()
	for i, ticket := range tickets {
		if err := s.Number(ticket, int64(i+1)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEnded: each ticket that has a number is given until its end is noted, in the order of the ends.
func TestEnded(t *testing.T) {
	s := NewTickets()
	notified := 0
	var tickets []*Ticket
	for range 6 {
		tickets = append(tickets, s.New(nil))
	}
	s.Finish(tickets[4], nil) // before it has a number
	number(t, s, tickets...)
	s.Notify(func() { notified++ })
	for _, i := range []int{1, 3, 0} {
		s.Finish(tickets[i], nil)
	}
	if notified != 3 {
		t.Errorf("notified %d times of 3 ends", notified)
	}
	if again := s.Ended(0); s.Ended(0) != again || s.Ended(99) != again || s.Ended(3) != again {
		t.Error("a ticket whose end was not noted was forgotten")
	}
	s.Ended(4) // noted by the waiter
	var got []int64
	for next := s.Ended(0); next != 0; next = s.Ended(next) {
		got = append(got, next)
	}
	if want := []int64{5, 2, 1}; !slices.Equal(got, want) {
		t.Errorf("ended: %v, expected %v", got, want)
	}
	if s.Find(5) != nil || s.Find(4) != nil || s.Find(3) != tickets[2] {
		t.Error("what was noted is known, or what was not is unknown")
	}
	for _, number := range []int64{0, -1, 3} {
		if err := s.Number(s.New(nil), number); fault.CodeOf(err) != fault.Internal {
			t.Errorf("number %d: %v", number, err)
		}
	}
}

// TestEndedStaysShort: the list of ended tickets stays short, whichever tickets stay open.
func TestEndedStaysShort(t *testing.T) {
	s := NewTickets()
	number(t, s, s.New(nil)) // never ends
	for i := range 1000 {
		ticket := s.New(nil)
		if err := s.Number(ticket, int64(i+2)); err != nil {
			t.Fatal(err)
		}
		s.Finish(ticket, nil)
		if next := s.Ended(int64(i + 2)); next != 0 {
			t.Fatal(next)
		}
	}
	if n, known := len(s.mu.ended), len(s.mu.numbered); n > 0 || known != 1 {
		t.Errorf("%d ended tickets are remembered, %d are known", n, known)
	}
}

// TestManyWaiters: each end reaches all its waiters, under the race detector too.
func TestManyWaiters(t *testing.T) {
	s := NewTickets()
	var group sync.WaitGroup
	for range 20 {
		ticket := s.New(nil)
		for range 3 {
			group.Go(func() {
				if done, err := ticket.Wait(time.Hour); !done || err != nil {
					t.Error(done, err)
				}
			})
		}
		group.Go(func() { s.Finish(ticket, nil) })
	}
	group.Wait()
	if s.mu.open != 0 {
		t.Errorf("%d tickets are open at the end", s.mu.open)
	}
}

func TestExplainOfATicket(t *testing.T) {
	s := NewTickets()
	ticket, silent := s.New(func() Waiting { return Waiting{Text: "the weather"} }), s.New(nil)
	if ticket.Explain().Text != "the weather" || silent.Explain().Text != "" {
		t.Error("wrong explanation")
	}
	s.Finish(ticket, nil)
	if ticket.Explain().Text != "" {
		t.Error("an ended ticket waits for something")
	}
}

// Once Notify returns, the function before it is not running: its file descriptor
// may be closed.
func TestNotifyWaitsForTheCallUnderWay(t *testing.T) {
	tickets := NewTickets()
	ticket := tickets.New(nil)
	number(t, tickets, ticket)
	entered, leave, left := make(chan bool), make(chan bool), false
	tickets.Notify(func() { entered <- true; <-leave; left = true })
	go tickets.Finish(ticket, nil)
	<-entered
	go func() { leave <- true }()
	tickets.Notify(nil)
	if !left {
		t.Error("Notify returned while the function was running")
	}
}
