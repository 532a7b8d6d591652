package wire

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"fptps/gocore/fault"
)

// Tensor is a tensor's description, which has to be the same on all workers.
type Tensor struct {
	Bytes  uint64
	DType  DType
	Policy Policy
	Row    uint32 // bytes of a row of a table; 0: the tensor is not a table
	Name   string // of its key, "" if that is a number
	Shape  string // "(3, 10)", or "(3, 10) (1, 0)" if the axes lie in memory in that order; "" if the caller gave none
}

// AboutKey is what errors about a tensor have as its key.
func AboutKey(key uint64, name string) fault.About {
	if name != "" {
		return fault.About{Key: name}
	}
	return fault.About{Key: key}
}

// KeyText is a key in texts: `key 7`, or by its name `key "optimizer/weight"`.
func KeyText(key uint64, name string) string {
	if name == "" {
		return fmt.Sprintf("key %d", key)
	}
	return fmt.Sprintf("key %q", name)
}

// String describes the tensor in words.
func (t Tensor) String() string {
	text := fmt.Sprintf("%d bytes of %v, %v", t.Bytes, t.DType, t.Policy)
	if t.Shape != "" {
		shape, order, permuted := strings.Cut(t.Shape, " (")
		text = fmt.Sprintf("%v of shape %s, %v", t.DType, shape, t.Policy)
		if permuted {
			text += ", axes in memory (" + order
		}
	}
	if t.Row > 0 {
		text += fmt.Sprintf(", in rows of %d bytes", t.Row)
	}
	return text
}

// Permuted reports whether the tensor's axes lie in memory in another order than C's.
func (t Tensor) Permuted() bool { return strings.Contains(t.Shape, ") (") }

// Refusal returns the reason why there can be no such tensor, "" if there can.
func (t Tensor) Refusal() string {
	switch {
	case len(t.Name) > MaxName || !utf8.ValidString(t.Name):
		return fmt.Sprintf("a name of %d bytes: UTF-8 of at most %d bytes is expected", len(t.Name), MaxName)
	case len(t.Shape) > MaxShapeText || strings.Trim(t.Shape, "(), 0123456789") != "":
		return "the shape cannot be read"
	case !t.DType.Valid():
		return fmt.Sprintf("unknown dtype %d", t.DType)
	case !t.Policy.Valid():
		return fmt.Sprintf("unknown consistency %d", t.Policy)
	case t.Bytes > MaxTensorBytes:
		return fmt.Sprintf("%d bytes, at most %d", t.Bytes, uint64(MaxTensorBytes))
	case t.Bytes%uint64(t.DType.Size()) != 0:
		return fmt.Sprintf("%d bytes are not a whole number of %v elements", t.Bytes, t.DType)
	case t.Row > 0 && (t.Row > PacketBytes || t.Row%uint32(t.DType.Size()) != 0 || t.Bytes%uint64(t.Row) != 0):
		return fmt.Sprintf("%d bytes of %v in rows of %d", t.Bytes, t.DType, t.Row)
	}
	return ""
}
