package trace

import "sync"

const (
	// windowTime is the time in which one exchange of times counts: the fastest, whose answer says most.
	windowTime = 1e9
	// maxExchanges bounds the exchanges that are kept: those of an hour at least.
	maxExchanges = 4096
)

// Exchange says what the scheduler's clock showed at a time of this node's: Offset more, up to Uncertainty ns earlier or later.
type Exchange struct {
	Time        int64
	Offset      int64
	Uncertainty int64
}

// Clock compares this node's clock with the scheduler's, by the round trips of heartbeats, as NTP does: the scheduler has read its clock
// at some moment between the question and the answer. It is pure but for its lock: times are arguments.
type Clock struct {
	mu        sync.Mutex
	exchanges []Exchange // the fastest of each window
}

// Observe takes the answer to a question: when it was sent and received on this node's clock, and what the scheduler's showed.
func (c *Clock) Observe(sent, scheduler, received int64) {
	if received < sent {
		return
	}
	half := (received - sent + 1) / 2
	x := Exchange{Time: sent + half, Offset: scheduler - (sent + half), Uncertainty: half}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.exchanges)
	if n > 0 && x.Time/windowTime == c.exchanges[n-1].Time/windowTime {
		if x.Uncertainty < c.exchanges[n-1].Uncertainty {
			c.exchanges[n-1] = x
		}
		return
	}
	if n == maxExchanges {
		c.exchanges = append(c.exchanges[:0], c.exchanges[n/2:]...)
	}
	c.exchanges = append(c.exchanges, x)
}

// Exchanges returns what Observe has learned, in order.
func (c *Clock) Exchanges() []Exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Exchange(nil), c.exchanges...)
}
