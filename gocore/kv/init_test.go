package kv

import "fptps/gocore/wire"

// Init declares one tensor.
func (w *Worker) Init(key uint64, dtype wire.DType, policy wire.Policy, memory []byte) (*Ticket, error) {
	return first(w.InitAll([]Init{{Key: key, DType: dtype, Policy: policy, Memory: memory}}))
}

// InitTable declares one table.
func (w *Worker) InitTable(key uint64, dtype wire.DType, policy wire.Policy, row int, memory []byte) (*Ticket, error) {
	if row == 0 {
		row = -1 // which is refused, where 0 is no table
	}
	return first(w.InitAll([]Init{{Key: key, DType: dtype, Policy: policy, Row: row, Memory: memory}}))
}

func first(tickets []*Ticket, err error) (*Ticket, error) {
	if err != nil {
		return nil, err
	}
	return tickets[0], nil
}

// each is a Declare that has every tensor declared by f.
func each(f func(key uint64, t wire.Tensor, done func(uint32, error))) func([]Declaration) {
	return func(list []Declaration) {
		for _, d := range list {
			f(d.Key, d.Tensor, d.Done)
		}
	}
}
