package cluster

import (
	"fmt"
	"testing"
	"time"

	"fptps/gocore/wire"
)

// TestDeclareManyIsOneExchange: 200 tensors take one message to the scheduler and one back, at every worker.
func TestDeclareManyIsOneExchange(t *testing.T) {
	const tensors = 200
	inBubble(t, 1, func(b *bench) {
		workers, _ := b.start(3, 1)
		time.Sleep(time.Second) // virtual: the last messages of the start arrive
		b.each(len(workers), func(rank int) error {
			p := workers[rank]
			ended := make(chan error, tensors)
			list := make([]Declaration, tensors)
			for key := range list {
				list[key] = Declaration{
					Key: uint64(key), Tensor: wire.Tensor{Bytes: 4, DType: wire.Float32, Policy: wire.Sync, Shape: "(1,)"},
					Done: func(_ uint32, err error) { ended <- err },
				}
			}
			before := b.vans[p].Stats()
			p.Declare(list)
			for range list {
				if err := <-ended; err != nil {
					return err
				}
			}
			if after := b.vans[p].Stats(); after.Sent != before.Sent+1 || after.Received != before.Received+1 {
				return fmt.Errorf("worker %d: %d messages sent, %d received", rank, after.Sent-before.Sent, after.Received-before.Received)
			}
			return nil
		})
	})
}
