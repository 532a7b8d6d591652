package kv

import (
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
		if err != nil {
			return nil, err
		}
		return nil, a.store.SetRule(h.Tensor, rule)
	}
	return nil, fault.New(fault.Value, "this aggregator does not know operation %d", h.Op)
}
