package cluster

import (
	"crypto/subtle"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"fptps/gocore/van"
	"fptps/gocore/wire/pspb"
)

// mail carries the messages of applications between nodes of a cluster. Nodes of one
// role have no connection in ps-lite until one of them sends; here none has.
type mail struct {
	van  van.Van
	view atomic.Pointer[View] // of now
	mu   struct {
		sync.Mutex
		reached map[int]bool // nodes that the van is connected to
	}
}

// newMail makes the mail of a node that has joined; reached are those that its van
// is connected to already.
func newMail(v van.Van, view View, reached ...int) *mail {
	m := &mail{van: v}
	m.view.Store(&view)
	m.mu.reached = map[int]bool{}
	for _, id := range reached {
		m.mu.reached[id] = true
	}
	return m
}

// change notes that a node has died, or that another has its id from now on. To speak to it needs a new connection.
func (m *mail) change(view View, id int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.reached[id] {
		m.van.Disconnect(id, true)
		delete(m.mu.reached, id)
	}
	m.view.Store(&view)
}

// send takes an application's message to another node. It does not wait, and has no
// use of data any more when it returns.
func (m *mail) send(id int, meta *pspb.Meta, data ...[]byte) error {
	if err := m.reach(id); err != nil {
		return err
	}
	meta.Token = m.view.Load().Token[:]
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
	connect := m.van.Connect
	if to.PSLite() {
		connect = m.van.ConnectPSLite
	}
	if err := connect(id, to.Host, to.Port); err != nil {
		return err
	}
	m.mu.reached[id] = true
	return nil
}

// known finds the node that an envelope comes from; false for a stranger, or one
// that does not know this cluster's token. A ps-lite program never does.
func (m *mail) known(e *van.Envelope) (Member, bool) {
	view := m.view.Load()
	from := view.Member(e.From)
	if from.ID == 0 || from.Vacant {
		return from, false
	}
	return from, from.PSLite() || subtle.ConstantTimeCompare(e.Meta.GetToken(), view.Token[:]) == 1
}

// IsMail tells an application's message from the cluster's own.
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
