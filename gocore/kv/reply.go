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
	answer := aggregate.Sum{Header: wire.Header{
		Kind: wire.Answer, Op: h.Op, Tensor: h.Tensor, Packet: h.Packet, Run: 1, Number: h.Number, Priority: h.Priority,
	}}
	reply, err := request(a.store, a.pool, h, payload)
	if err != nil {
		answer.Header.Flags = wire.FlagRefused
		a.plane.Send(node, transport.Outgoing{Header: answer.Header, Data: wire.PutReason(fmt.Sprintf("%s: %v", fault.CodeOf(err), err))})
		return nil
	}
	answer.Buffer = reply
	if changesStore(h.Op) {
		a.replicateAsk(h, payload)
		a.deliver(rankOf(node), &answer)
	} else {
		a.reply(rankOf(node), &answer)
	}
	return nil
}

// request carries out the request h on a store and returns the answer's payload, nil if it has none.
func request(s *store.Store, pool *aggregate.Pool, h *wire.Header, payload []byte) (*aggregate.Buffer, error) {
	switch h.Op {
	case wire.AskRule:
		rule, err := store.ParseRule(payload)
		if err == nil {
			err = s.SetRule(h.Tensor, rule)
		}
		return nil, err
	case wire.AskClock, wire.AskResume:
		about, clock, err := wire.ParseClock(payload)
		switch {
		case err != nil:
			return nil, fault.New(fault.Value, "%v", err)
		case h.Op == wire.AskClock:
			return clockOf(s, pool, h.Tensor, about)
		}
		return nil, resume(s, h.Tensor, about, clock)
	case wire.AskArrive:
		arrival, err := store.ParseArrival(payload)
		if err == nil {
			err = s.Arrive(h.Tensor, h.Packet, arrival)
		}
		return nil, err
	case wire.AskDepart:
		departure, err := s.Depart(h.Tensor, h.Packet)
		if err != nil {
			return nil, err
		}
		text := departure.Text()
		b := pool.Get(len(text))
		copy(b.Bytes, text)
		return b, nil
	case wire.AskLeave:
		about, plan, err := wire.ParseClock(payload)
		if err != nil || len(plan) != 2 {
			return nil, fault.New(fault.Value, "%d bytes name no packets that move, and no plan: %v", len(payload), err)
		}
		return nil, s.Leave(h.Tensor, about, binary.LittleEndian.Uint16(plan))
	case wire.AskState:
		return s.Read(h.Tensor, h.Packet, h.Part, int(h.RawLen))
	case wire.AskRows:
		return s.Rows(h, payload)
	case wire.AskRestore:
		return nil, s.Write(h.Tensor, h.Packet, h.Part, payload)
	}
	return nil, fault.New(fault.Value, "this aggregator does not know operation %d", h.Op)
}

func resume(s *store.Store, tensor uint32, about wire.Clock, text []byte) error {
	if len(text)%8 != 0 {
		return fault.New(fault.Value, "%d bytes are not a clock: 8 for each worker are expected", len(text))
	}
	clock := make([]uint64, len(text)/8)
	for rank := range clock {
		clock[rank] = binary.LittleEndian.Uint64(text[8*rank:])
	}
	return s.Resume(tensor, about, clock)
}

func clockOf(s *store.Store, pool *aggregate.Pool, tensor uint32, about wire.Clock) (*aggregate.Buffer, error) {
	clock := s.Clock(tensor, about)
	if clock == nil {
		return nil, fault.New(fault.Key, "the tensor is not initialised here")
	}
	b := pool.Get(8 * len(clock))
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
