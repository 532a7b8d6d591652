package trace

import (
	"encoding/json"
)

// Format names the format of parts, in their heads.
const Format = "fptps trace 1"

// Head describes the node of a part.
type Head struct {
	Format   string     `json:"format"`
	Role     string     `json:"role"`
	ID       int        `json:"id"`
	Name     string     `json:"name"`
	HostName string     `json:"host_name"`
	HostID   string     `json:"host_id"` // nodes with the same one share the clock
	PID      int        `json:"pid"`
	Address  string     `json:"address"`
	Sampling uint32     `json:"sampling"` // 1 packet in so many
	Lost     uint64     `json:"lost"`     // events that were overwritten
	From     int64      `json:"from"`     // from when on all events are there
	Clock    [][3]int64 `json:"clock"`    // exchanges with the scheduler: time, offset, uncertainty, ns
	Tensors  []Tensor   `json:"tensors"`
	PerStep  uint64     `json:"per_step"` // pushes in a step; 0: not known
	LinkRate uint64     `json:"link_rate"`
	Shares   []Share    `json:"shares"` // of the summing
}

// Tensor names a tensor.
type Tensor struct {
	ID    uint32 `json:"id"`
	Name  string `json:"name"`
	Bytes uint64 `json:"bytes"`
}

// Share is the part of the summing that a node has, of 1.
type Share struct {
	Node string  `json:"node"`
	Part float64 `json:"part"`
}

// Encode encodes what the tracer has recorded: a line of JSON, h, and the events.
func (t *Tracer) Encode(h Head) ([]byte, error) {
	events, lost, from := t.events()
	h.Format, h.Sampling, h.Lost, h.From = Format, t.last.Load(), lost, from
	for _, x := range t.Clock.Exchanges() {
		h.Clock = append(h.Clock, [3]int64{x.Time, x.Offset, x.Uncertainty})
	}
	head, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	head = append(head, '\n')
	out := make([]byte, len(head)+len(events)*EventBytes)
	copy(out, head)
	for i := range events {
		events[i].put(out[len(head)+i*EventBytes:])
	}
	return out, nil
}
