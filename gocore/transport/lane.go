package transport

import "fptps/gocore/fault"

// Where one core cannot fill the link, a data plane has several lanes. Each is a
// Transport of its own with two loops, and two nodes have a connection in each; only
// the listener is the first one's, which passes on what is for the others. The first
// one's Start, Goodbye, Close, Stats and Sockets are for all.

// Divide gives the data plane n lanes. It is called before Start, at most once.
func (t *Transport) Divide(n int) error {
	var lanes []*Transport
	for i := 1; i < n; i++ {
		l, err := newTransport(t.config)
		if err != nil {
			for _, l := range lanes {
				l.Close()
			}
			return fault.New(fault.Config, "lane %d of the data plane: %v", i, err)
		}
		l.lane, l.count, l.sys, l.handshakeTimeout = uint16(i), t.count, t.sys, t.handshakeTimeout
		lanes = append(lanes, l)
	}
	t.mu.Lock()
	stopped := t.mu.stopped
	t.mu.lanes = lanes
	t.mu.Unlock()
	if stopped { // by a Close that knew nothing of them
		t.Close()
	}
	return nil
}

// Lane gives lane number i, nil where there is none: for Send, Dial, Await and Weigh.
func (t *Transport) Lane(i int) *Transport {
	if i == 0 {
		return t
	}
	if others := t.others(); i <= len(others) {
		return others[i-1]
	}
	return nil
}

// others gives the lanes but the first.
func (t *Transport) others() []*Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.lanes
}

// split gives each of so many lanes its part. They carry like amounts, as tensors are
// spread over them.
func (r Rates) split(lanes int) Rates {
	part := Rates{Out: r.Out / float64(lanes), In: r.In / float64(lanes), To: map[uint32]float64{}}
	for peer, rate := range r.To {
		part.To[peer] = rate / float64(lanes)
	}
	return part
}
