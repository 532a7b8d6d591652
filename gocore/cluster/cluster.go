package cluster

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"fptps/gocore/van"
	"fptps/gocore/wire"
)

// Protocol is the version of what fptps's nodes say to each other beyond ps-lite.
const Protocol = 1

// Role is what a node is; the numbers are ps-lite's.
type Role int

// The roles.
const (
	RoleServer Role = iota
	RoleWorker
	RoleScheduler
)

// String is the role's name, as in DMLC_ROLE.
func (r Role) String() string {
	switch r {
	case RoleServer:
		return "server"
	case RoleWorker:
		return "worker"
	case RoleScheduler:
		return "scheduler"
	}
	return fmt.Sprintf("role %d", int(r))
}

// Groups of nodes for Barrier; they add up.
const (
	SchedulerGroup = wire.SchedulerGroup
	ServerGroup    = wire.ServerGroup
	WorkerGroup    = wire.WorkerGroup
	AllGroup       = wire.AllGroup
)

// Name is what people call a node: "worker 3".
func Name(id int) string { return wire.NodeName(id) }

// inGroup tells whether a node of role r belongs to group.
func inGroup(r Role, group int) bool {
	bit := map[Role]int{RoleServer: ServerGroup, RoleWorker: WorkerGroup, RoleScheduler: SchedulerGroup}[r]
	return group&bit != 0
}

// Member is one node of a cluster.
type Member struct {
	ID          int // 0 until the scheduler has given one
	Role        Role
	Host        string // of both planes
	Port        int    // control plane
	DataPort    int    // data plane
	Incarnation uint64 // another one in every process
	Share       uint32 // of the summing
	Place       uint32 // the rank that it would like, + 1; 0: any
	LinkRate    uint64 // of its link, each direction, bit/s; 0: not known
	Protocol    uint32 // 0: a ps-lite program, to which nothing of fptps's own is sent
	Customer    int    // which of its process's customers asks to be let in, from 0
	Customers   int    // of a member's process: each has asked for a place among DMLC_NUM_WORKER
	Classic     bool   // it takes part as a ps-lite program does: another node can take its place
	Vacant      bool   // it is dead, and its place is kept for another
	Recovered   bool   // it has taken the place of one that had died
}

// PSLite tells whether the node is a program of dmlc ps-lite.
func (m Member) PSLite() bool { return m.Protocol == 0 }

// Rank counts the nodes of one role from 0.
func (m Member) Rank() int {
	switch m.Role {
	case RoleServer:
		return (m.ID - wire.ServerID(0)) / 2
	case RoleWorker:
		return (m.ID - wire.WorkerID(0)) / 2
	}
	return 0
}

// View is a cluster as a node knows it. It does not change.
type View struct {
	Self       int
	Members    []Member // everyone, the scheduler last
	Token      [16]byte // names this run of the cluster
	Generation uint32   // deaths so far
	Epoch      uint32   // changes of membership so far
}

// Me is this node.
func (v View) Me() Member { return v.Member(v.Self) }

// Member is the node of an id; a zero Member when there is none.
func (v View) Member(id int) Member {
	for _, m := range v.Members {
		if m.ID == id {
			return m
		}
	}
	return Member{}
}

// Rank is this node's.
func (v View) Rank() int { return v.Me().Rank() }

// ByRole lists the nodes of one role by rank.
func (v View) ByRole(r Role) []Member {
	var all []Member
	for _, m := range v.Members {
		if m.Role == r {
			all = append(all, m)
		}
	}
	return all
}

// PSLite tells whether a program of dmlc ps-lite is among the nodes. A scheduler of
// ps-lite's hides what the others are.
func (v View) PSLite() bool { return slices.ContainsFunc(v.Members, Member.PSLite) }

// Classic tells whether all nodes take part as ps-lite programs do. No tensors are shared out then, and the cluster
// goes on without a node until another takes its place.
func (v View) Classic() bool {
	return !slices.ContainsFunc(v.Members, func(m Member) bool {
		return m.Role != RoleScheduler && !m.Classic && !m.PSLite()
	})
}

// with is the view after a change of one member.
func (v View) with(m Member) View {
	v.Members = slices.Clone(v.Members)
	for i := range v.Members {
		if v.Members[i].ID == m.ID {
			v.Members[i] = m
		}
	}
	return v
}

// Workers lists the workers by rank.
func (v View) Workers() []Member { return v.ByRole(RoleWorker) }

// Servers lists the servers by rank.
func (v View) Servers() []Member { return v.ByRole(RoleServer) }

// Config is what a node, the scheduler included, knows before it has met anyone.
type Config struct {
	Role              Role
	SchedulerHost     string
	SchedulerPort     int
	Host              string // under which others reach this node; "": found by the route to the scheduler
	Port              int    // of this node's van, 0: any; the scheduler's is SchedulerPort
	DataPort          int
	Incarnation       uint64
	Share             uint32
	Place             uint32        // the rank that it would like, + 1; 0: any. Where two want the same, address decides
	LinkRate          uint64        // of this node's link, each direction, bit/s; 0: not known
	Secret            string        // FPTPS_TOKEN: nodes with another one are refused
	Workers, Servers  int           // how many make the cluster; a node with 0 workers takes the scheduler's word
	HeartbeatInterval time.Duration // 0: no heartbeats
	HeartbeatTimeout  time.Duration // silence after which a node is dead; 0: never
	RecoveryTimeout   time.Duration // the scheduler's: how long a dead node's place is kept for another; 0: not at all
	JoinTimeout       time.Duration // of Join; 0: as long as its context
	PSLite            bool          // it takes part as a ps-lite program does, and a scheduler of ps-lite's will do
	Attends           bool          // a scheduler whose program comes to the barriers of its group; else it counts as there
	Customer          int           // of this process, the one that asks to be let in
	Customers         <-chan int    // others, which ask while the node joins; nil: none
	Log               *slog.Logger  // nil: slog.Default
}

func (c Config) log() *slog.Logger {
	if c.Log == nil {
		return slog.Default()
	}
	return c.Log
}

// beats tells whether silence means death.
func (c Config) beats() bool { return c.HeartbeatInterval > 0 && c.HeartbeatTimeout > 0 }

// Events is what a Postoffice or a Runner tells of its own accord, on its own
// goroutine: the functions must not block, and not call Close. Each may be nil.
type Events struct {
	// Lost is the verdict that a node is dead, and with it the cluster; at most once.
	Lost func(id int, why string)
	// Vacated says that a node is dead, and that its place is kept for another.
	Vacated func(id int, why string)
	// Recovered says that another node has taken such a place. It comes before anything of that one.
	Recovered func(m Member)
	// Waiting names whom something has waited for 5 s, and again every 5 s: what is
	// "barrier" or "key 3". Without anyone missing: it goes on.
	Waiting func(what string, missing []string)
	// Message is what a node, this one included, has sent to an application of this one.
	Message func(from Member, e *van.Envelope)
	// Failed says that the control plane of this node broke; at most once, the last call.
	Failed func(err error)
}

func (e Events) lost(id int, why string) {
	if e.Lost != nil {
		e.Lost(id, why)
	}
}

func (e Events) vacated(id int, why string) {
	if e.Vacated != nil {
		e.Vacated(id, why)
	}
}

func (e Events) recovered(m Member) {
	if e.Recovered != nil {
		e.Recovered(m)
	}
}

func (e Events) waiting(what string, missing []string) {
	if e.Waiting != nil {
		e.Waiting(what, missing)
	}
}

func (e Events) message(from Member, m *van.Envelope) {
	if e.Message != nil {
		e.Message(from, m)
	}
}

func (e Events) failed(err error) {
	if e.Failed != nil {
		e.Failed(err)
	}
}
