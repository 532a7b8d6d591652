package transport

import "fptps/gocore/fault"

// If one core cannot fill the link, a data plane has several lanes. Each is a Transport
// with two loops, and two nodes have a connection in each lane. Lane 0 has the listener, and
// passes accepted connections to the other lanes; its Start, Goodbye, Close, Stats,
// Sockets and Weigh apply to all lanes.

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
		l.lane, l.count, l.sys, l.handshakeTimeout, l.brokenTime, l.futileTime = uint16(i), t.count, t.sys, t.handshakeTimeout, t.brokenTime, t.futileTime
		lanes = append(lanes, l)
	}
	t.mu.Lock()
	stopped := t.mu.stopped
	t.mu.lanes = lanes
	t.mu.Unlock()
	if stopped { // by a Close that did not know the new lanes
		t.Close()
	}
	return nil
}

// Lane returns lane i, nil if there is none. Send, Dial and Await are called on it.
func (t *Transport) Lane(i int) *Transport {
	if i == 0 {
		return t
	}
	if others := t.others(); i <= len(others) {
		return others[i-1]
	}
	return nil
}

// others returns the lanes but lane 0.
func (t *Transport) others() []*Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.lanes
}
