package wire

import "fmt"

// Requests of a worker to an aggregator. Each Ask has one Answer; both fit in a packet.
const (
	AskRule    Op = opEnd + iota // sets the tensor's optimiser to the payload
	AskClock                     // returns the number of applied rounds of each worker, as uint64s
	AskResume                    // sets the clock to the payload
	AskState                     // returns RawLen bytes of a chunk of a packet's state
	AskRestore                   // sets a chunk of a packet's state to the payload
	AskRows                      // returns rows of a packet of a table (CodecRows): the payload holds their numbers, RawLen is their size
	askEnd
)

func (h *Header) asks() bool { return h.Kind == Ask || h.Kind == Answer }

func (h *Header) goodOp() bool {
	if h.asks() {
		return h.Op >= AskRule && h.Op < askEnd
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
