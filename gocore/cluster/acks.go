package cluster

import (
	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire/pspb"
)

// A ps-lite program with PS_RESEND=1 resends each message until it is acknowledged. Nodes of fptps acknowledge messages and
// drop duplicates. They do not resend their own, because TCP does not lose messages.

const (
	// maxRecent bounds the signatures that are remembered for a sender: more than it can
	// send until it repeats a message.
	maxRecent = 1 << 15
	// firstTimestamp is the least one of a control message of ours. Those of applications
	// count from 0, and a ps-lite program takes one signature twice for one message.
	firstTimestamp = 1 << 29
)

// acks acknowledges messages of ps-lite programs that resend. It is pure.
type acks struct {
	on     bool
	self   int             // the id of this node
	stamp  int32           // of this node's last control message, from firstTimestamp
	recent map[int]*recent // by sender
}

// recent is what a sender has sent lately: at least the last maxRecent messages.
type recent struct{ now, before map[uint64]bool }

func newAcks(on bool, self int) *acks {
	return &acks{on: on, self: self, stamp: firstTimestamp, recent: map[int]*recent{}}
}

// take handles a message before all other handlers. answer is the acknowledgement to send,
// nil if none; done means that the message must not be handled further.
func (a *acks) take(from Member, m *pspb.Meta) (answer *pspb.Meta, done bool) {
	cmd := m.GetControl().GetCmd()
	switch {
	case cmd == pspb.Ack:
		return nil, true
	case !a.on || !from.PSLite() || m.Timestamp == nil || cmd == pspb.Terminate || cmd == pspb.AddNode:
		return nil, false
	}
	sign := signature(m, from.ID, a.self)
	answer = &pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.Ack), MsgSig: proto.Uint64(sign)}}
	return answer, a.remember(from.ID, sign)
}

// remember records a signature, and reports whether it was known.
func (a *acks) remember(sender int, sign uint64) bool {
	r := a.recent[sender]
	if r == nil {
		r = &recent{now: map[uint64]bool{}}
		a.recent[sender] = r
	}
	if r.now[sign] || r.before[sign] {
		return true
	}
	if len(r.now) == maxRecent {
		r.now, r.before = map[uint64]bool{}, r.now
	}
	r.now[sign] = true
	return false
}

// forget drops the signatures of a dead sender: its successor starts with new timestamps.
func (a *acks) forget(sender int) { delete(a.recent, sender) }

// stamped gives a control message for a ps-lite program the timestamp that it needs to
// acknowledge it.
func (a *acks) stamped(to Member, m *pspb.Meta) {
	if a.on && to.PSLite() && m.GetControl().GetCmd() != pspb.Ack {
		m.Timestamp = proto.Int32(a.stamp)
		a.stamp++
	}
}

// signature computes the signature of a message as ps-lite's resender does.
func signature(m *pspb.Meta, from, to int) uint64 {
	number := m.GetTimestamp() << 1
	if m.GetRequest() {
		number |= 1
	}
	return uint64(uint16(m.GetCustomerId()))<<48 | uint64(uint8(from))<<40 | uint64(uint8(to))<<32 | uint64(int64(number))
}
