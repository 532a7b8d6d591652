package wire

import "fmt"

// Tensor is what all workers have to agree on of a tensor.
type Tensor struct {
	Bytes  uint64
	DType  DType
	Policy Policy
	Row    uint32 // bytes of a row, of a table; 0: it is no table
}

// String says it in words.
func (t Tensor) String() string {
	text := fmt.Sprintf("%d bytes of %v, %v", t.Bytes, t.DType, t.Policy)
	if t.Row > 0 {
		text += fmt.Sprintf(", in rows of %d bytes", t.Row)
	}
	return text
}

// Refusal says why no tensor can be like this, "" if one can.
func (t Tensor) Refusal() string {
	switch {
	case !t.DType.Valid():
		return fmt.Sprintf("unknown dtype %d", t.DType)
	case !t.Policy.Valid():
		return fmt.Sprintf("unknown consistency %d", t.Policy)
	case t.Bytes > MaxTensorBytes:
		return fmt.Sprintf("%d bytes, at most %d", t.Bytes, uint64(MaxTensorBytes))
	case t.Bytes%uint64(t.DType.Size()) != 0:
		return fmt.Sprintf("%d bytes are no whole number of %v", t.Bytes, t.DType)
	case t.Row > 0 && (t.Row > PacketBytes || t.Row%uint32(t.DType.Size()) != 0 || t.Bytes%uint64(t.Row) != 0):
		return fmt.Sprintf("%d bytes of %v in rows of %d", t.Bytes, t.DType, t.Row)
	}
	return ""
}
