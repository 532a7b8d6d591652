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

// asked answers an Ask, whatever it is: with what was asked for, or with a refusal and its
// reason. owned is the payload's buffer, nil where it has none of its own.
func (a *Aggregator) asked(node uint32, h *wire.Header, payload []byte, owned *aggregate.Buffer) error {
	if owned != nil {
		defer owned.Release()
	}
	if a.rank(node) < 0 {
		return fmt.Errorf("node %d asks, and is no worker", node)
	}
	m := transport.Outgoing{Header: wire.Header{
		Kind: wire.Answer, Op: h.Op, Tensor: h.Tensor, Packet: h.Packet, Run: 1, Round: h.Round, Priority: h.Priority,
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

// reply does what h asks, and gives what it asks for; nil where that is nothing but to be done.
func (a *Aggregator) reply(h *wire.Header, payload []byte) (*aggregate.Buffer, error) {
	switch h.Op {
	case wire.AskRule:
		rule, err := store.ParseRule(payload)
		if err == nil {
			err = a.store.SetRule(h.Tensor, rule)
		}
		return nil, err
	case wire.AskClock:
		return a.clock(h.Tensor)
	case wire.AskResume:
		if len(payload)%8 != 0 {
			return nil, fault.New(fault.Value, "%d bytes are no clock", len(payload))
		}
		clock := make([]uint64, len(payload)/8)
		for rank := range clock {
			clock[rank] = binary.LittleEndian.Uint64(payload[8*rank:])
		}
		return nil, a.store.Resume(h.Tensor, clock)
	case wire.AskState:
		return a.store.Read(h.Tensor, h.Packet, h.Part(), int(h.RawLen))
	case wire.AskRows:
		return a.store.Rows(h, payload)
	case wire.AskRestore:
		return nil, a.store.Write(h.Tensor, h.Packet, h.Part(), payload)
	}
	return nil, fault.New(fault.Value, "this aggregator does not know operation %d", h.Op)
}

func (a *Aggregator) clock(tensor uint32) (*aggregate.Buffer, error) {
	clock := a.store.Clock(tensor)
	if clock == nil {
		return nil, fault.New(fault.Key, "the tensor is not initialised here")
	}
	b := a.pool.Get(8 * len(clock))
	for rank, round := range clock {
		binary.LittleEndian.PutUint64(b.Bytes[8*rank:], round)
	}
	return b, nil
}
