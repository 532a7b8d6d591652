package kv

import (
	"encoding/binary"
	"fmt"

	"fptps/gocore/aggregate"
	"fptps/gocore/fault"
	"fptps/gocore/store"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// answer answers every Ask: with the requested payload, or with a refusal and its reason.
// owned is the payload's buffer, which answer releases; nil if it has none of its own.
func (a *Aggregator) answer(node uint32, h *wire.Header, payload []byte, owned *aggregate.Buffer) error {
	if owned != nil {
		defer owned.Release()
	}
	if rankOf(node) < 0 {
		return fmt.Errorf("node %d asks, but is not a worker", node)
	}
	m := transport.Outgoing{Header: wire.Header{
		Kind: wire.Answer, Op: h.Op, Tensor: h.Tensor, Packet: h.Packet, Run: 1, Number: h.Number, Priority: h.Priority,
	}}
	reply, err := a.reply(h, payload)
	switch {
	case err != nil:
		m.Header.Flags = wire.FlagRefused
		m.Data = wire.PutReason(fmt.Sprintf("%s: %v", fault.CodeOf(err), err))
	case reply != nil:
		m.Data, m.Owner = reply.Bytes, reply
	}
	a.plane.Send(node, m)
	return nil
}

// reply carries out the request h and returns the answer's payload, nil if it has none.
func (a *Aggregator) reply(h *wire.Header, payload []byte) (*aggregate.Buffer, error) {
	switch h.Op {
	case wire.AskRule:
		rule, err := store.ParseRule(payload)
		if err == nil {
			err = a.store.SetRule(h.Tensor, rule)
		}
		return nil, err
	case wire.AskClock, wire.AskResume:
		about, clock, err := wire.ParseClock(payload)
		switch {
		case err != nil:
			return nil, fault.New(fault.Value, "%v", err)
		case h.Op == wire.AskClock:
			return a.clock(h.Tensor, about)
		}
		return nil, a.resume(h.Tensor, about, clock)
	case wire.AskArrive:
		arrival, err := store.ParseArrival(payload)
		if err == nil {
			err = a.store.Arrive(h.Tensor, h.Packet, arrival)
		}
		return nil, err
	case wire.AskLeave:
		about, _, err := wire.ParseClock(payload)
		if err != nil {
			return nil, fault.New(fault.Value, "%v", err)
		}
		return nil, a.store.Leave(h.Tensor, about)
	case wire.AskState:
		return a.store.Read(h.Tensor, h.Packet, h.Part, int(h.RawLen))
	case wire.AskRows:
		return a.store.Rows(h, payload)
	case wire.AskRestore:
		return nil, a.store.Write(h.Tensor, h.Packet, h.Part, payload)
	}
	return nil, fault.New(fault.Value, "this aggregator does not know operation %d", h.Op)
}

func (a *Aggregator) resume(tensor uint32, about wire.Clock, text []byte) error {
	if len(text)%8 != 0 {
		return fault.New(fault.Value, "%d bytes are not a clock: 8 for each worker are expected", len(text))
	}
	clock := make([]uint64, len(text)/8)
	for rank := range clock {
		clock[rank] = binary.LittleEndian.Uint64(text[8*rank:])
	}
	return a.store.Resume(tensor, about, clock)
}

func (a *Aggregator) clock(tensor uint32, about wire.Clock) (*aggregate.Buffer, error) {
	clock := a.store.Clock(tensor, about)
	if clock == nil {
		return nil, fault.New(fault.Key, "the tensor is not initialised here")
	}
	b := a.pool.Get(8 * len(clock))
	for rank, round := range clock {
		binary.LittleEndian.PutUint64(b.Bytes[8*rank:], round)
	}
	return b, nil
}

// sendValues sends a worker the values of packets, straight from the store's buffers.
func (a *Aggregator) sendValues(node uint32, h *wire.Header) error {
	if rankOf(node) < 0 {
		return fmt.Errorf("node %d asks for values, but is not a worker", node)
	}
	for p := h.Packet; p < h.Packet+h.Run; p++ {
		dtype, value, err := a.store.Value(h.Tensor, p)
		if err != nil {
			return err
		}
		sum := wire.Header{
			Kind: wire.Sum, DType: dtype, Tensor: h.Tensor, Packet: p, Run: 1, Round: h.Round, Epoch: h.Epoch, Priority: h.Priority,
			Contributors: uint16(a.members.Size()), RawLen: uint32(len(value.Bytes)),
		}
		a.plane.Send(node, transport.Outgoing{Header: sum, Data: value.Bytes, Owner: value})
	}
	return nil
}
