package wire

import (
	"encoding/binary"
	"fmt"
)

// Requests of a worker to an aggregator. Each Ask has one Answer; both fit in a packet.
const (
	AskRule      Op = opEnd + iota // sets the tensor's optimiser to the payload
	AskClock                       // returns the number of applied rounds of each worker, as uint64s, for the packets that the payload names: Clock
	AskResume                      // sets the clock of the packets that the payload names (Clock) to the numbers that follow, a uint64 for each worker
	AskState                       // returns RawLen bytes of a chunk of a packet's state
	AskRestore                     // sets a chunk of a packet's state to the payload
	AskArrive                      // makes a packet of weights that another aggregator has kept so far; the payload describes it: store.Arrival
	AskLeave                       // forgets the packets that the payload names (Clock), which have moved to another aggregator under the plan whose number follows, a uint16
	AskRows                        // returns rows of a packet of a table (CodecRows): the payload holds their numbers, RawLen is their size
	AskDepart                      // returns the description of a packet of weights that will move to another aggregator: store.Arrival
	AskInventory                   // returns a chunk, that with the number in Packet, of what a worker keeps for newcomers; it goes to the worker of a node
	askEnd
)

func (h *Header) asks() bool { return h.Kind == Ask || h.Kind == Answer }

func (h *Header) goodOp() bool {
	switch {
	case h.asks():
		return h.Op >= AskRule && h.Op < askEnd
	case h.Kind == Replica:
		return h.Op >= AskRule && h.Op < replicaEnd
	}
	return h.Op < opEnd
}

// checkAsk is checkKind for Ask and Answer.
func (h *Header) checkAsk() error {
	refused := h.Flags&FlagRefused != 0
	switch {
	case h.Kind == Ask && h.Op == AskRows:
		return fmt.Errorf("ask for rows without any")
	case h.Flags&^FlagRefused != 0 || h.Kind == Ask && refused:
		return fmt.Errorf("ask or answer with flags %#x", h.Flags)
	case h.DType != 0 || h.Run != 1:
		return fmt.Errorf("ask or answer with dtype %d and run %d", h.DType, h.Run)
	case h.WireLen != 0 && h.WireLen != h.RawLen:
		return fmt.Errorf("ask or answer of %d bytes, %d on the wire", h.RawLen, h.WireLen)
	case refused && (h.WireLen == 0 || h.WireLen > MaxReason):
		return fmt.Errorf("refusal of %d bytes", h.WireLen)
	}
	return nil
}

// Clock names packets of a tensor, in AskClock, AskResume and AskLeave.
type Clock struct {
	First, Count uint32
	Complete     uint64 // Sync: rounds that are complete on the worker that asks; AskLeave: the last round before the move
}

// Names reports whether the packet with a number is one of them.
func (c Clock) Names(number uint32) bool { return number-c.First < c.Count }

// clockBytes is the size of an encoded Clock.
const clockBytes = 16

// Text encodes c.
func (c Clock) Text() []byte {
	text := binary.LittleEndian.AppendUint32(nil, c.First)
	text = binary.LittleEndian.AppendUint32(text, c.Count)
	return binary.LittleEndian.AppendUint64(text, c.Complete)
}

// ParseClock decodes a Clock and returns the bytes that follow it.
func ParseClock(text []byte) (c Clock, rest []byte, err error) {
	if len(text) < clockBytes {
		return c, nil, fmt.Errorf("%d bytes name no packets: at least %d are expected", len(text), clockBytes)
	}
	c.First, c.Count = binary.LittleEndian.Uint32(text), binary.LittleEndian.Uint32(text[4:])
	c.Complete = binary.LittleEndian.Uint64(text[8:])
	if uint64(c.First)+uint64(c.Count) > MaxTensorBytes/PacketBytes {
		return c, nil, fmt.Errorf("packets %d to %d are out of range", c.First, uint64(c.First)+uint64(c.Count))
	}
	return c, text[clockBytes:], nil
}
