package wire

import "fmt"

// What a worker can ask of an aggregator, beside contributing. Each Ask has one Answer, and each of the two fits in a packet.
const (
	AskRule    Op = opEnd + iota // the tensor's optimiser becomes the one in the payload
	AskClock                     // the rounds of each worker that are applied to all packets here, uint64 each
	AskResume                    // the clock goes on from the one in the payload
	AskState                     // RawLen bytes of a part of a packet's state
	AskRestore                   // a part of a packet's state becomes the payload
	AskRows                      // rows of a packet of a table, by CodecRows: the payload has the numbers, RawLen bytes are wanted
	askEnd
)

// Part is which part of a packet's state an Ask or an Answer is about; see gocore/store.
func (h *Header) Part() uint16 { return h.Contributors }

func (h *Header) asks() bool { return h.Kind == Ask || h.Kind == Answer }

func (h *Header) goodOp() bool {
	if h.asks() {
		return h.Op >= AskRule && h.Op < askEnd
	}
	return h.Op < opEnd
}

// checkAsk is the part of check for what is asked and answered.
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
