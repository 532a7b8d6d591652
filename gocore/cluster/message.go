package cluster

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// maxHost is the longest name in DNS.
const maxHost = 253

// addNode makes a node's request to join.
func addNode(c Config, m Member) *pspb.Meta {
	return &pspb.Meta{
		Control: &pspb.Control{Cmd: proto.Int32(pspb.AddNode), Node: []*pspb.Node{nodeOf(m)}},
		Own: &pspb.Meta_Join{Join: &pspb.Join{
			Secret:  proto.String(c.Secret),
			Workers: proto.Uint32(uint32(c.Workers)),
			Servers: proto.Uint32(uint32(c.Servers)),
		}},
	}
}

// barrierMessage makes the request to enter a barrier, or the answer that it is passed.
func barrierMessage(group, app, customer int32, request bool) *pspb.Meta {
	return &pspb.Meta{
		Control:    &pspb.Control{Cmd: proto.Int32(pspb.Barrier), BarrierGroup: proto.Int32(group)},
		Request:    proto.Bool(request),
		AppId:      proto.Int32(app),
		CustomerId: proto.Int32(customer),
	}
}

// lostNode makes the verdict that m's process is dead; vacant: the cluster continues.
func lostNode(m Member, why string, vacant bool) *pspb.Meta {
	lost := &pspb.Lost{Id: proto.Int32(int32(m.ID)), Why: proto.String(why), Incarnation: proto.Uint64(m.Incarnation)}
	if vacant {
		lost.Vacant = proto.Bool(true)
	}
	return &pspb.Meta{Own: &pspb.Meta_Lost{Lost: lost}}
}

// heartbeat makes a heartbeat of m.
func heartbeat(m Member) *pspb.Meta {
	return &pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.Heartbeat), Node: []*pspb.Node{nodeOf(m)}}}
}

// clock adds to a heartbeat what the clocks show: the node's, and in an answer the scheduler's.
func clock(m *pspb.Meta, sent, scheduler int64) *pspb.Meta {
	m.Clock = &pspb.Clock{Sent: proto.Int64(sent)}
	if scheduler != 0 {
		m.Clock.Scheduler = proto.Int64(scheduler)
	}
	return m
}

// nodeOf encodes m.
func nodeOf(m Member) *pspb.Node {
	n := &pspb.Node{
		Role:     proto.Int32(int32(m.Role)),
		Hostname: proto.String(m.Host),
		Port:     proto.Int32(int32(m.Port)),
	}
	if m.ID != 0 {
		n.Id = proto.Int32(int32(m.ID))
	}
	if m.Customer != 0 {
		n.CustomerId = proto.Int32(int32(m.Customer))
	}
	if m.Protocol != 0 {
		n.Protocol = proto.Uint32(m.Protocol)
		n.DataPort = proto.Uint32(uint32(m.DataPort))
		n.Incarnation = proto.Uint64(m.Incarnation)
		if m.Share != Unset {
			n.Share = proto.Uint32(uint32(m.Share))
		}
		if m.Place != 0 {
			n.Place = proto.Uint32(m.Place)
		}
		if m.LinkRate != 0 {
			n.LinkRate = proto.Uint64(m.LinkRate)
		}
		if m.Classic {
			n.Classic = proto.Bool(true)
		}
	}
	if m.Vacant {
		n.Vacant = proto.Bool(true)
	}
	if m.Recovered {
		n.IsRecovery = proto.Bool(true)
	}
	if m.Newcomer {
		n.Newcomer = proto.Bool(true)
	}
	return n
}

// memberOf decodes a node, without its id. The error is for invalid fields.
func memberOf(n *pspb.Node) (Member, error) {
	m := Member{
		Role: Role(n.GetRole()), Host: n.GetHostname(), Port: int(n.GetPort()), DataPort: int(n.GetDataPort()),
		Incarnation: n.GetIncarnation(), Share: Unset, Place: n.GetPlace(), Protocol: n.GetProtocol(),
		LinkRate: n.GetLinkRate(), Customer: int(n.GetCustomerId()), Classic: n.GetClassic(), Vacant: n.GetVacant(), Recovered: n.GetIsRecovery(), Newcomer: n.GetNewcomer(),
	}
	if n.Share != nil {
		m.Share = int(n.GetShare())
	}
	switch {
	case m.Role < RoleServer || m.Role > RoleScheduler:
		return m, fmt.Errorf("node of role %d", int(m.Role))
	case !validHost(m.Host):
		return m, fmt.Errorf("node at host %.60q", m.Host)
	case m.Port < 1 || m.Port > 65535 || m.DataPort < 0 || m.DataPort > 65535:
		return m, fmt.Errorf("node at ports %d and %d", m.Port, m.DataPort)
	case m.Share > wire.MaxShare:
		return m, fmt.Errorf("node with a share of %d, at most %d", m.Share, wire.MaxShare)
	}
	return m, nil
}

// validHost reports whether a host is a name or address, without characters that a resolver could treat specially.
func validHost(host string) bool {
	return host != "" && len(host) <= maxHost && strings.IndexFunc(host, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(".-_:", r))
	}) < 0
}

// viewOf decodes the scheduler's answer to ADD_NODE for the node me.
func viewOf(m *pspb.Meta, me Member) (View, error) {
	nodes := m.GetControl().GetNode()
	v := View{Epoch: int(m.GetEpoch()), FastestLink: m.GetFastestLink(), Replans: m.GetReplans(), Recovers: m.GetRecovers(), Replicates: m.GetReplicates()}
	v.SchedulerTimeout = time.Duration(min(m.GetSchedulerTimeout(), math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
	if len(m.GetToken()) == len(v.Token) {
		copy(v.Token[:], m.GetToken())
	}
	seen := map[int]int{} // places in v.Members
	for i, n := range nodes {
		member, err := memberOf(n)
		if err != nil {
			return v, err
		}
		member.ID = int(n.GetId())
		if at, again := seen[member.ID]; again && sameAddress(v.Members[at], member) {
			v.Members[at].Customers++
			continue
		} else if again || !fits(member.ID, member.Role) || (member.Role == RoleScheduler) != (i == len(nodes)-1) {
			return v, fmt.Errorf("%v of id %d in place %d of %d", member.Role, member.ID, i+1, len(nodes))
		}
		member.Customers = 1
		seen[member.ID] = len(v.Members)
		v.Members = append(v.Members, member)
		mine := member.Incarnation == me.Incarnation || member.Protocol == 0 // ps-lite's scheduler passes on what it knows
		if sameAddress(member, me) && member.Role == me.Role && mine {
			v.Self = member.ID
		}
	}
	if v.Self == 0 {
		return v, fmt.Errorf("a list of %d nodes without this one", len(nodes))
	}
	slices.SortStableFunc(v.Members[:len(v.Members)-1], func(a, b Member) int {
		if a.Role != b.Role {
			return int(a.Role) - int(b.Role)
		}
		return a.ID - b.ID
	})
	return v, nil
}

// fits reports whether a node of role r may have the id.
func fits(id int, r Role) bool {
	switch r {
	case RoleScheduler:
		return id == wire.SchedulerID
	case RoleServer:
		return id >= wire.ServerID(0) && id < wire.ServerID(wire.MaxWorkers) && id%2 == 0
	}
	return id >= wire.WorkerID(0) && id < wire.WorkerID(wire.MaxWorkers) && id%2 == 1
}

// count formats "1 worker", "2 workers".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
