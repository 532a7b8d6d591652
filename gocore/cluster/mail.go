package cluster

import (
	"crypto/subtle"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/van"
	"fptps/gocore/wire/pspb"
)

// mail sends messages of apps between nodes of a cluster over the van. A connection between
// two nodes other than the scheduler is made at the first message.
type mail struct {
	van  van.Van
	view atomic.Pointer[View] // current view
	mu   struct {
		sync.Mutex
		reached map[int]bool // nodes to which the van is connected
	}
}

// newMail makes the mail of a node that has joined; reached are the nodes to which its van is
// connected already.
func newMail(v van.Van, view View, reached ...int) *mail {
	m := &mail{van: v}
	m.view.Store(&view)
	m.mu.reached = map[int]bool{}
	for _, id := range reached {
		m.mu.reached[id] = true
	}
	v.Trust(func(e *van.Envelope) bool {
		_, known := m.known(e)
		return known
	})
	return m
}

// change records that a node has died or was replaced. The next message to its id makes a new connection.
func (m *mail) change(view View, id int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.reached[id] {
		m.van.Disconnect(id, true)
		delete(m.mu.reached, id)
	}
	m.view.Store(&view)
}

// send sends a message of an app to another node. It does not block, and does not use data
// after it returns.
func (m *mail) send(id int, meta *pspb.Meta, data ...[]byte) error {
	if err := m.reach(id); err != nil {
		return err
	}
	view := m.view.Load()
	meta.Token, meta.Incarnation = view.Token[:], proto.Uint64(view.Me().Incarnation)
	return m.van.Send(id, meta, data...)
}

// reach connects to a node, once.
func (m *mail) reach(id int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.reached[id] {
		return nil
	}
	to := m.view.Load().Member(id)
	if to.ID == 0 || to.Vacant {
		return fmt.Errorf("there is no node %d now", id)
	}
	if err := m.van.Connect(id, to.Host, to.Port); err != nil {
		return err
	}
	m.mu.reached[id] = true
	return nil
}

// known finds the member that sent an envelope; false for a stranger, a node without the
// cluster's token, and the predecessor of the current member. A ps-lite program has neither
// token nor incarnation.
func (m *mail) known(e *van.Envelope) (Member, bool) {
	view := m.view.Load()
	from := view.Member(e.From)
	if from.ID == 0 || from.Vacant {
		return from, false
	}
	return from, from.PSLite() || isOf(e.Meta, view.Token, from)
}

// isOf reports whether a message of an fptps node has this cluster's token and the
// incarnation of the current member.
func isOf(m *pspb.Meta, token [16]byte, from Member) bool {
	return subtle.ConstantTimeCompare(m.GetToken(), token[:]) == 1 && m.GetIncarnation() == from.Incarnation
}

// IsMail reports whether a message belongs to an app, not to the cluster itself.
func IsMail(m *pspb.Meta) bool {
	_, failure := m.GetOwn().(*pspb.Meta_Failure)
	return m.GetControl().GetCmd() == 0 && (m.GetOwn() == nil || failure)
}

// toSelf makes the envelope of a message of a node to itself.
func toSelf(self int, m *pspb.Meta, data [][]byte) *van.Envelope {
	e := &van.Envelope{From: self, Meta: m}
	for _, frame := range data {
		e.Data = append(e.Data, slices.Clone(frame))
	}
	return e
}
