package transport

import (
	"math"
	"time"
)

// A receiver's link is shared by all who send to it. Each of them knows its own rate
// only, so the receiver tells them theirs: its own rate, divided over the flows that
// are active, in proportion to their weights. A sender that was not told lately
// keeps to its share of the worst case (Rates.To).
const (
	// budgetEvery is the shortest time between two looks at the flows.
	budgetEvery = time.Millisecond
	// activeTime without a byte makes a flow inactive.
	activeTime = 5 * time.Millisecond
	// fallBackTime without a write makes the sender forget what it was told. It is
	// longer than activeTime, so that the receiver then tells it anew.
	fallBackTime = 4 * activeTime
	// activeBytes makes a flow active: a few small packets fill no queue.
	activeBytes = 64 << 10
	// toldAgain is the change of a share that is worth a packet.
	toldAgain = 0.05
)

// inflow is what the receive loop knows of one connection's flow.
type inflow struct {
	weight float64       // against that of the others; guarded by Transport.mu
	bytes  int           // since it became active
	last   time.Duration // when the last bytes came
	told   float64       // the rate that its sender was told, 0 if it falls back
}

// took notes that bytes came.
func (f *inflow) took(now time.Duration, bytes int) {
	if now-f.last > activeTime {
		f.bytes, f.told = 0, 0
	}
	f.bytes += bytes
	f.last = now
}

func (f *inflow) active(now time.Duration) bool {
	return now-f.last <= activeTime && f.bytes >= activeBytes
}

// divide gives each active flow its share of rate and calls tell where the sender
// has to be told.
func divide(now time.Duration, rate float64, flows []*inflow, tell func(i int)) {
	weights := 0.0
	for _, f := range flows {
		if f.active(now) {
			weights += f.weight
		}
	}
	for i, f := range flows {
		if !f.active(now) {
			continue
		}
		share := rate * f.weight / weights
		if math.Abs(share-f.told) > toldAgain*f.told {
			f.told = share
			tell(i)
		}
	}
}
