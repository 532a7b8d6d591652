package wire

import "fmt"

// An aggregator may have a backup. That is another aggregator, with a replica of the first one's store, to which it applies all changes. A Replica is one
// change. Its operation is that of an Ask, or one of these.
const (
	ReplicaInit   Op = askEnd + iota // the initial value of a packet; without payload it is zeros
	ReplicaUpdate                    // the sum of round Round, to which the optimiser is applied; without payload nothing is
	ReplicaDrop                      // the initial value is dropped, as round Round is a plain sum
	ReplicaPush                      // the push of worker Rank, with its own round Round; without payload it skips
	replicaEnd
)

// replicatesAsk reports whether a Replica is the change by an Ask.
func (h *Header) replicatesAsk() bool { return h.Op < ReplicaInit }

// checkReplica is checkKind for Replica.
func (h *Header) checkReplica() error {
	switch {
	case h.Run != 1 || h.WireLen != h.RawLen && h.WireLen != 0:
		return fmt.Errorf("replica of %d bytes, %d on the wire, run %d", h.RawLen, h.WireLen, h.Run)
	case h.replicatesAsk() && (h.DType != 0 || h.Rank != 0):
		return fmt.Errorf("replica of a request with dtype %d and rank %d", h.DType, h.Rank)
	case !h.replicatesAsk() && (!h.DType.Valid() || h.RawLen == 0 || int(h.RawLen)%h.DType.Size() != 0):
		return fmt.Errorf("replica of %d bytes of %v", h.RawLen, h.DType)
	}
	return nil
}
